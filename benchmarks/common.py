"""What benchmarks share: contestants that take turns, ratios, memory, and the standard workload."""

from __future__ import annotations

import ctypes
import math
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as ResultTimeout  # until Python 3.11 not the built-in one
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch
from datasets import Dataset

from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.tasks import make_problems, problems_dataset
from trl_mmreason.training.timing import device_clock

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
Seconds = dict[str, list[float]]
"""Contestant → seconds of each round."""


# ------------------------------------------------------------------------------------------------------------ measuring


@dataclass
class Result:
    """What a benchmark measured, and in what it failed.

    Attributes:
        numbers: written where `--json` asks for it.
        failures: sentences, one for each ratio beyond its limit and each result that is wrong.
    """

    numbers: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def check(self, holds: bool, failure: str) -> None:
        """Note a failure unless the condition holds."""
        if not holds:
            self.failures.append(failure)


def take_turns(
    contestants: Mapping[str, Callable[[], T]], rounds: int, *, warm_up: int = 1
) -> tuple[Seconds, dict[str, list[T]]]:
    """Let contestants work in turns, in every other round backwards: a busy machine slows all alike.

    Args:
        contestants: name → what is measured.
        rounds: rounds that are measured.
        warm_up: rounds before them, which are not.

    Returns:
        The seconds of each contestant, and what it returned, in each round.
    """
    seconds: Seconds = {name: [] for name in contestants}
    returned: dict[str, list[T]] = {name: [] for name in contestants}
    for number in range(warm_up + rounds):
        for name in list(contestants)[:: 1 if number % 2 else -1]:
            start = device_clock()
            result = contestants[name]()
            took = device_clock() - start
            if number >= warm_up:
                seconds[name].append(took)
                returned[name].append(result)
    return seconds, returned


def report(seconds: Seconds, numerator: str, denominator: str, *, title: str = "") -> float:
    """Print the medians of two contestants and their ratio; gives the median of the rounds' ratios."""
    ratios = np.divide(seconds[numerator], seconds[denominator])
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75]).tolist()
    times = ", ".join(f"{name} {median(seconds[name]):.4g} s" for name in (numerator, denominator))
    print(
        f"{title}{': ' if title else ''}{times}; "
        f"{numerator} / {denominator}: {middle:.2f} (middle half {low:.2f} to {high:.2f})"
    )
    return middle


def run_apart(
    work: Callable[..., T], *arguments: Any, context: BaseContext | None = None, seconds: float | None = None
) -> T:
    """Run a function in a process of its own.

    Args:
        work: the function, at the top level of a module.
        arguments: its arguments.
        context: how the process is started, "spawn" by default.
        seconds: time bound, the start of the process included. The process then leads a group, which is killed when the
            time is over, with the processes that it started.

    Raises:
        TimeoutError: the time was over.
    """
    begun = time.monotonic()
    group = None if seconds is None else os.setsid
    with ProcessPoolExecutor(1, mp_context=context or get_context("spawn"), initializer=group) as pool:
        if seconds is None:
            return pool.submit(work, *arguments).result()
        leader = pool.submit(os.getpid).result()
        future = pool.submit(work, *arguments)
        try:
            return future.result(max(0.0, begun + seconds - time.monotonic()))
        except ResultTimeout:
            if future.done():  # an error of the work itself
                raise
            raise TimeoutError(f"it did not end within {seconds:.0f} s") from None
        finally:
            if not future.done():
                os.killpg(leader, signal.SIGKILL)


def memory(kind: str) -> float:
    """MiB of this process: VmRSS, those that it holds, or VmHWM, the most that it has held."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(kind)) / 1024


def forget_peak() -> float:
    """Give free memory back to the system, and let VmHWM begin again at what the process holds now; gives that."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def forget_device_peak() -> float:
    """Let `device_peak` begin again; gives the MiB held now: allocated on the GPU, or of the process without one."""
    if not torch.cuda.is_available():
        return forget_peak()
    torch.cuda.init()  # without it there are no statistics to reset
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**20


def device_peak() -> float:
    """MiB that were held at most since `forget_device_peak`."""
    return torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else memory("VmHWM")


# ------------------------------------------------------------------------------------------------ the standard workload

MEDIAN, BOUND = 64, 512
"""Tokens of a trajectory; lengths are log-normal, their 95th percentile is `BOUND`, and longer ones are cut there."""
GROUP = 8  # trajectories per question
SIDES = (56, 112, 168)  # of an image, in pixels
_SIGMA = math.log(BOUND / MEDIAN) / 1.645


def lengths(n: int, *, shortest: int = 1, seed: int = 0, bound: int = BOUND) -> list[int]:
    """Tokens of n trajectories; with another bound they are shorter or longer in proportion."""
    rng, middle = random.Random(seed), MEDIAN * bound / BOUND
    return [min(bound, max(shortest, round(middle * math.exp(rng.gauss(0, _SIGMA))))) for _ in range(n)]


def make_questions(n: int, *, sides: Sequence[int] = SIDES, fewest_images: int = 1, most_images: int = 3) -> Dataset:
    """Sums with one to three images, of which the first is asked about."""
    rng = random.Random(0)
    drawn = {side: list(problems_dataset(make_problems(["adding"], most_images * n, size=side))) for side in sides}

    def row(number: int) -> dict[str, Any]:
        images = rng.randint(fewest_images, most_images)
        shown = [drawn[rng.choice(sides)][most_images * number + k] for k in range(images)]
        return {**shown[0], "images": [image for each in shown for image in each["images"]]}

    return Dataset.from_list([row(number) for number in range(n)])


def save_policy(folder: Path, size: str) -> None:
    """Save a randomly initialised Qwen2.5-VL of a size of the miniature, which sees these images as they are."""
    model, processor = build_model("qwen2_5_vl", size)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
