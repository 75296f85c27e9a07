"""What examples and commands are made of: arguments, configurations, stages, comparisons."""
