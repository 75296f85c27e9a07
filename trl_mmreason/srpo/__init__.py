"""SRPO: a cold start on reflections, then GRPO that rewards helpful reflections."""
