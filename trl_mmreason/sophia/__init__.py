"""SOPHIA: trajectories from the policy's own captions and a reasoner's thoughts, then an off-policy update."""
