"""What benchmarks share: their options, contestants that take turns, and the file of their numbers."""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from trl_mmreason.commands.parsers import count
from trl_mmreason.timing import device_clock

T = TypeVar("T")

Seconds = dict[str, list[float]]
"""Contestant → seconds of each round."""


def parser_of(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """A parser with the options that all have; `rounds` are the default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=rounds, help="of which the medians are taken")
    parser.add_argument("--json", type=Path, help="write the seconds of every round here")
    return parser


def take_turns(
    contestants: Mapping[str, Callable[[], T]], rounds: int, *, warm_up: int = 1
) -> tuple[Seconds, dict[str, list[T]]]:
    """Let contestants work in turns, in every other round backwards: a busy machine slows all alike.

    Args:
        contestants: name → what is measured.
        rounds: how many are measured.
        warm_up: how many come before and are not.

    Returns:
        Of each contestant the seconds, and what it returned, in each round.
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


def memory(kind: str) -> float:
    """MiB of this process: VmRSS, those that it holds, or VmHWM, the most that it has held."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(kind)) / 1024


def forget_peak() -> float:
    """Give free memory back to the system, and let VmHWM begin again at what the process holds now; gives that."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def medians_of(seconds: Seconds) -> dict[str, float]:
    """The median of each contestant's rounds."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(np.divide(over, under).tolist())


def middle_half(over: Sequence[float], under: Sequence[float]) -> str:
    """Where the ratio lies in the middle half of the rounds."""
    low, high = np.quantile(np.divide(over, under), [0.25, 0.75])
    return f"{low:.3f} to {high:.3f}"


def write_numbers(arguments: argparse.Namespace, **numbers: object) -> None:
    """Write the arguments and what they came to, if `--json` asks for it."""
    if arguments.json:
        arguments.json.write_text(json.dumps({"arguments": vars(arguments), **numbers}, indent=2, default=str))
