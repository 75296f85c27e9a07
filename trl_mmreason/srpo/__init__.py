"""SRPO: a cold start on reflections, then GRPO that pays for reflections which help."""
