"""What trainers are made of: GRPO on whole groups, supervised training, checkpoints, facts of a run, logs and cards."""
