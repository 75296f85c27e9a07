"""Chain-of-Step: reasoning in steps, a reward for every step, and learning from both."""
