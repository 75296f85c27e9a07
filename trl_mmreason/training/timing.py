"""Measure the time of each part of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer
from transformers.trainer_utils import TrainOutput


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


class TimedRolloutsMixin(Trainer):
    """For a `GRPOTrainer`: logs where the time of a run went."""

    _stopwatch: Stopwatch

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as TRL does, and print at the end where the time went."""
        self._stopwatch = watch = Stopwatch()
        with watch.part("rest"):
            result = super().train(*args, **kwargs)
        if self.accelerator.is_main_process and not self.args.disable_tqdm:
            sys.stdout.write(f"{format_seconds(watch.seconds)}\n")
        return result

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """As TRL's, with the time of rollouts counted separately."""
        self.model.train()  # before the first part begins, whose name says in which mode the model is
        with self._timed("update"):
            return super().training_step(*args, **kwargs)

    @property
    def _mode(self) -> str:
        """`train` or `eval`: the key of TRL's metrics."""
        return "train" if self.model.training else "eval"

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Log the block's seconds as `time/PART`, without those of nested parts."""
        mode, seconds = self._mode, self._stopwatch.seconds
        name = part if mode == "train" else f"evaluation: {part}"
        before = seconds.get(name, 0.0)
        with self._stopwatch.part(name):
            yield
        self._metrics[mode][f"time/{part}"].append(seconds[name] - before)
