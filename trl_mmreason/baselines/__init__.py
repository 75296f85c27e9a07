"""What the methods are compared with: fixed rewards, SCoRe, STaR, supervised training, and other reasoning patterns."""
