"""Measure the time of each part of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch


def device_clock() -> float:
    """Seconds, when the GPU has done what it was given: its work belongs to the part that gave it."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


class Stopwatch:
    """Seconds in each part of a run; nested parts do not count for the outer one.

    Attributes:
        seconds: name of a part → its seconds so far.
    """

    def __init__(self, clock: Callable[[], float] = device_clock) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._within = 0.0  # seconds of the parts that have ended within the one that runs

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block's time."""
        begun, outside = self._clock(), self._within
        self._within = 0.0
        try:
            yield
        finally:
            whole = self._clock() - begun
            self.seconds[name] = self.seconds.get(name, 0.0) + whole - self._within
            self._within = outside + whole


def format_seconds(seconds: Mapping[str, float]) -> str:
    """Format a table of each part's seconds and share."""
    whole = sum(seconds.values())
    return "\n".join(
        [f"{'time':<24}{'seconds':>10}{'share':>8}"]
        + [f"{name:<24}{value:>10.1f}{value / whole:>8.0%}" for name, value in {**seconds, "whole": whole}.items()]
    )
