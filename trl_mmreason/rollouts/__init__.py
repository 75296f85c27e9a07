"""What happens between a rollout and its update: prompts, turns, padding, and rows that change the process."""
