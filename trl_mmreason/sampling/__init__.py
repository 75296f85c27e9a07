"""Conversations into text, for every pipeline that samples outside training."""

from .engine import Decoding, Engine, Failure, Request, Sample, derive_seed

__all__ = ["Decoding", "Engine", "Failure", "Request", "Sample", "derive_seed"]
