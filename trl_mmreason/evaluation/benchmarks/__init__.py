"""Benchmarks in the package's common row format: `load_benchmark("mathvista")`."""

from .adapter import Benchmark, BenchmarkError, Question
from .loading import BENCHMARKS, load_benchmark
from .prompt import INSTRUCTION, TEMPLATE

__all__ = [
    "BENCHMARKS",
    "INSTRUCTION",
    "TEMPLATE",
    "Benchmark",
    "BenchmarkError",
    "Question",
    "load_benchmark",
]
