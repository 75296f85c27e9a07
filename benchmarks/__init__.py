"""What the package costs and gains, measured beside what one would use otherwise: `python -m benchmarks NAME`."""
