"""Seconds of a training step on GPUs, computed on paper from sizes, bandwidths and lengths; nothing is measured."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from .common import Result

BYTES = 2  # bfloat16


@dataclass(frozen=True)
class Machine:
    """One kind of GPU; shares of its peaks that are reached are assumptions.

    Attributes:
        memory, flops, links: bytes a second of its memory, operations a second, bytes a second from other GPUs.
        reads, computes, receives: shares of these that are reached.
        launch: seconds of a decoding step beside reading memory.
        call: seconds that handing one weight to vLLM takes beside sending it.
    """

    memory: float = 3.35e12
    flops: float = 989e12
    links: float = 450e9
    reads: float = 0.7
    computes: float = 0.4
    receives: float = 0.5
    launch: float = 2e-3
    call: float = 10e-3


@dataclass(frozen=True)
class Policy:
    """Qwen2.5-VL-7B: parameters, weights of their own, and bytes of keys and values a token."""

    parameters: float = 8.3e9
    weights: int = 729
    cache: float = 2 * 28 * 4 * 128 * BYTES


def drawn_lengths(rows: int, mean: float, spread: float, bound: int) -> list[int]:
    """Log-normal tokens of trajectories, cut at the bound."""
    rng, middle = random.Random(0), math.log(mean) - spread**2 / 2
    return [min(bound, max(1, round(rng.lognormvariate(middle, spread)))) for _ in range(rows)]


def rollout_seconds(lengths: list[int], prompt: int, policy: Policy, machine: Machine) -> tuple[float, float]:
    """Seconds until the last answer of a GPU's rows ends, and those that its tokens take while all rows are there."""

    def step(rows: int, context: float) -> float:
        read = policy.parameters * BYTES + rows * context * policy.cache
        return read / (machine.memory * machine.reads) + machine.launch

    until_last, answered = 0.0, sorted(lengths)
    for number, length in enumerate(answered):
        before = answered[number - 1] if number else 0
        until_last += (length - before) * step(len(answered) - number, prompt + (before + length) / 2)
    mean = sum(lengths) / len(lengths)
    return until_last, mean * step(len(lengths), prompt + mean / 2)


def on_paper(
    *, gpus: int = 8, rows: int = 512, mean: float = 1039, spread: float = 1.0, bound: int = 4096, prompt: int = 500
) -> Result:
    """A step of AdaPO with Qwen2.5-VL-7B on H100 by parts, on paper: ZeRO-3, a colocated vLLM, full training.

    Args:
        gpus: of the machine, among which trajectories are shared out.
        rows: trajectories of a step.
        mean: tokens of a trajectory.
        spread: standard deviation of their logarithm.
        bound: tokens of a trajectory at most.
        prompt: tokens of a prompt, its images' included.
    """
    machine, policy, own = Machine(), Policy(), rows // gpus
    drawn = drawn_lengths(rows, mean, spread, bound)
    until_last, work = max(
        rollout_seconds(drawn[start : start + own], prompt, policy, machine) for start in range(0, rows, own)
    )
    forward = 2 * policy.parameters / (machine.flops * machine.computes)  # seconds a token
    useful = sum(drawn) / gpus + own * prompt
    padded = own * (prompt + max(drawn))
    sent = policy.parameters * BYTES / (machine.links * machine.receives)
    buckets = math.ceil(policy.parameters * BYTES / (256 * 2**20))
    parts = {
        "rollout, tokens": (work, work, work),
        "rollout, waiting for the last row": (until_last - work,) * 3,
        "weights to vLLM": (sent + policy.weights * machine.call,) * 2 + (sent + buckets * machine.call,),
        "old log-probabilities": (forward * padded, forward * useful, 0.0),
        "reference": (forward * padded, forward * useful, forward * useful),
        "update, with recomputed activations": (4 * forward * padded, 4 * forward * useful, 4 * forward * useful),
    }
    print("| seconds of | TRL's padding | rows by length | with buckets and `sampled_as_old` |\n|---|---|---|---|")
    totals = [sum(column) for column in zip(*parts.values(), strict=True)]
    for name, values in {**parts, "a step": tuple(totals)}.items():
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |")
    return Result({"parts": parts, "totals": totals})
