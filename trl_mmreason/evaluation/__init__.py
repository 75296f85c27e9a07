"""What a model can do: metrics with intervals, training curves, and the HTML report."""
