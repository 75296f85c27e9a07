"""Baselines of the methods: fixed rewards, SCoRe, STaR, supervised training, and other reasoning patterns."""
