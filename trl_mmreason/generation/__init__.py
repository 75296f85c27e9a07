"""Sampling outside training: conversations in, answers out."""

from .engine import Engine, Failure, Request, Sample, SamplingParams, derive_seed

__all__ = ["Engine", "Failure", "Request", "Sample", "SamplingParams", "derive_seed"]
