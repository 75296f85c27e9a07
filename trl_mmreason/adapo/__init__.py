"""AdaPO: two-turn self-evaluation with adaptive rewards and a KL coefficient for each turn."""
