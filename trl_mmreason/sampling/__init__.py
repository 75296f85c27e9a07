"""Conversations into text, for every pipeline that samples outside training."""

from .engine import Engine, Failure, Request, Sample, SamplingParams, derive_seed

__all__ = ["Engine", "Failure", "Request", "Sample", "SamplingParams", "derive_seed"]
