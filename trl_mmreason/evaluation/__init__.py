"""Evaluation: metrics with intervals, training curves, and the HTML report."""
