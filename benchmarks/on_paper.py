"""Seconds of a training step on GPUs, computed on paper from sizes, bandwidths and lengths; nothing is measured."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import yaml

from .common import GROUP, ROOT, Result

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


def step_seconds(rows: int, context: float, policy: Policy, machine: Machine) -> float:
    """Seconds in which so many rows, of so many tokens in the mean, get one more each."""
    read = policy.parameters * BYTES + rows * context * policy.cache
    return read / (machine.memory * machine.reads) + machine.launch


def rollout_seconds(lengths: list[int], prompt: int, policy: Policy, machine: Machine) -> tuple[float, float]:
    """Seconds until the last answer of a GPU's rows ends, and those that its tokens take while all rows are there."""
    until_last, answered = 0.0, sorted(lengths)
    for number, length in enumerate(answered):
        before, rows = answered[number - 1] if number else 0, len(answered) - number
        until_last += (length - before) * step_seconds(rows, prompt + (before + length) / 2, policy, machine)
    mean = sum(lengths) / len(lengths)
    return until_last, mean * step_seconds(len(lengths), prompt + mean / 2, policy, machine)


def oversampled_seconds(
    lengths: list[int], needed: int, share: float, prompt: int, policy: Policy, machine: Machine, *, max_age: int = 3
) -> list[float]:
    """Seconds of each rollout of a GPU that ends when enough groups are complete, the others going on in the next.

    Args:
        lengths: of the trajectories of all groups, in the order in which they are asked.
        needed: groups of an update.
        share, max_age: `oversampling` and `oversampling_max_age`.
        prompt, policy, machine: as for `rollout_seconds`.
    """
    groups = [lengths[start : start + GROUP] for start in range(0, len(lengths), GROUP)]
    flying: list[tuple[int, list[int], list[int]]] = []  # rollout in which a group was asked, tokens left, tokens said
    seconds = []
    for rollout in range((len(groups) - math.ceil(share * needed)) // needed):
        for _ in range(needed + (0 if rollout else math.ceil(share * needed))):
            flying.append((rollout, list(groups.pop(0)), [0] * GROUP))
        seconds.append(0.0)
        while True:
            complete = [not any(left) for _, left, _ in flying]
            late = (done for done, (asked, _, _) in zip(complete, flying, strict=True) if rollout - asked >= max_age)
            if sum(complete) >= needed and all(late):
                break
            rows = [(left, said, number) for _, left, said in flying for number in range(GROUP) if left[number]]
            steps = min(left[number] for left, _, number in rows)
            context = prompt + sum(said[number] for _, said, number in rows) / len(rows) + steps / 2
            seconds[-1] += steps * step_seconds(len(rows), context, policy, machine)
            for left, said, number in rows:
                left[number], said[number] = left[number] - steps, said[number] + steps
        chosen = [place for place, done in enumerate(complete) if done][:needed]
        flying = [group for place, group in enumerate(flying) if place not in chosen]
    return seconds


def step_parts(lengths: list[int], gpus: int, prompt: int, policy: Policy, machine: Machine) -> dict[str, float]:
    """Seconds of each part of a step, with rows by length and weights in buckets, as the trainers do it.

    Args:
        lengths: of a rollout's trajectories, of which each GPU has an equal share.
        gpus: of the machine, for sampling and training in turn.
        prompt, policy, machine: as for `rollout_seconds`.
    """
    own = len(lengths) // gpus
    until_last, work = max(
        rollout_seconds(lengths[start : start + own], prompt, policy, machine) for start in range(0, len(lengths), own)
    )
    passed = 2 * policy.parameters / (machine.flops * machine.computes) * (sum(lengths) / gpus + own * prompt)
    buckets = math.ceil(policy.parameters * BYTES / (256 * 2**20))
    return {
        "rollout, tokens": work,
        "rollout, waiting for other rows": until_last - work,
        "weights to vLLM": sent_seconds(policy, machine) + buckets * machine.call,
        "old log-probabilities": passed,
        "reference": passed,
        "update, with recomputed activations": 4 * passed,
    }


def sent_seconds(policy: Policy, machine: Machine) -> float:
    """Seconds in which all weights arrive from other GPUs."""
    return policy.parameters * BYTES / (machine.links * machine.receives)


def split_seconds(
    lengths: list[int], gpus: int, prompt: int, training: float, sent: float, policy: Policy, machine: Machine
) -> dict[str, tuple[float, float, float, float]]:
    """Seconds of a rollout, of training, and of a step that does both in turn or at once, by the GPUs of a server.

    Args:
        lengths: of a rollout's trajectories.
        gpus: of the machine.
        training: seconds on all of them.
        sent: seconds in which the server gets the weights; nothing else is done then.
        prompt, policy, machine: as for `rollout_seconds`.
    """
    found = {}
    for server in (1, 2, 4):
        rollout = max(rollout_seconds(lengths[own::server], prompt, policy, machine)[0] for own in range(server))
        trained = training * gpus / (gpus - server)
        found[f"{server} + {gpus - server}"] = (
            rollout,
            trained,
            rollout + sent + trained,
            max(rollout, trained) + sent,
        )
    return found


def on_paper(
    *,
    gpus: int = 8,
    rows: int = 512,
    mean: float = 1039,
    spread: float = 1.0,
    bound: int = 4096,
    prompt: int = 500,
    share: float = 1.5,
) -> Result:
    """A step of AdaPO with Qwen2.5-VL-7B on H100 by parts, on paper: ZeRO-3, a colocated vLLM, full training.

    Args:
        gpus: of the machine, among which trajectories are shared out.
        rows: trajectories of a step.
        mean: tokens of a trajectory.
        spread: standard deviation of their logarithm.
        bound: tokens of a trajectory at most.
        prompt: tokens of a prompt, its images' included.
        share: `oversampling` of the last column, a mean over twenty rollouts behind five.
    """
    machine, policy, own = Machine(), Policy(), rows // gpus
    drawn = drawn_lengths(rows, mean, spread, bound)
    usual = step_parts(drawn, gpus, prompt, policy, machine)
    work, waiting, buckets_sent, forward = list(usual.values())[:4]
    padded = forward * own * (prompt + max(drawn)) / (sum(drawn) / gpus + own * prompt)
    sent_one_by_one = sent_seconds(policy, machine) + policy.weights * machine.call
    more = drawn_lengths(gpus * (25 * own + GROUP * math.ceil(share * own / GROUP)), mean, spread, bound)
    each = len(more) // gpus
    by_gpu = [
        oversampled_seconds(more[start : start + each], own // GROUP, share, prompt, policy, machine)
        for start in range(0, len(more), each)
    ]
    slowest = [max(of_gpus) for of_gpus in zip(*by_gpu, strict=True)][5:]  # an update waits for all GPUs
    oversampled = sum(slowest) / len(slowest)
    parts = {
        "rollout, tokens": (work,) * 4,
        "rollout, waiting for other rows": (waiting,) * 3 + (oversampled - work,),
        "weights to vLLM": (sent_one_by_one,) * 2 + (buckets_sent,) * 2,
        "old log-probabilities": (padded, forward, 0.0, forward),
        "reference": (padded, *(forward,) * 3),
        "update, with recomputed activations": (4 * padded, *(4 * forward,) * 3),
    }
    print(
        "| seconds of | TRL's padding | rows by length | with buckets and `sampled_as_old` | with buckets and "
        f"`oversampling={share:g}` |\n|---|---|---|---|---|"
    )
    totals = [sum(column) for column in zip(*parts.values(), strict=True)]
    training = 6 * forward  # old log-probabilities, reference, update
    until_last = work + waiting
    splits = split_seconds(drawn, gpus, prompt, training, buckets_sent, policy, machine)
    for name, values in {**parts, "a step": tuple(totals)}.items():
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |")
    together = until_last + buckets_sent + training
    print("\n| GPUs of the server + of training | rollout | training | one after the other | one step ahead | gain |")
    print("|---|---|---|---|---|---|")
    print(f"| all {gpus} for both in turn | {until_last:.1f} | {training:.1f} | {together:.1f} | | |")
    for name, (rollout, trained, after, ahead) in splits.items():
        gain = f"× {together / ahead:.2f}"
        print(f"| {name} | {rollout:.1f} | {trained:.1f} | {after:.1f} | {ahead:.1f} | {gain} |")
    return Result({"parts": parts, "totals": totals, "splits": splits})


_SAMPLING = ("rollout, tokens", "rollout, waiting for other rows", "weights to vLLM", "old log-probabilities")
_NO_KL = ("reference",)
RECIPES = (
    ("adapo/qwen2_5_vl_7b", "", 2, ()),
    ("srpo/qwen2_5_vl_7b", "", 1, ()),
    ("chain_of_step/internvl2_5_mpo_8b", "grpo", 1, _NO_KL),
    ("sophia/internvl3_8b", "update", 1, _SAMPLING + _NO_KL),
    ("sophia/internvl3_8b", "grpo", 1, _NO_KL),
    ("self_evolution/qwen2_5_vl_7b", "evolution", 1, ()),
)
"""File in configs/, its section, answers of a trajectory, and the parts that its step has not."""


def recipe_steps(*, gpus: int = 8, spread: float = 1.0, prompt: int = 500) -> Result:
    """A step of each method's recipe for eight GPUs, on paper, with the assumptions of `on_paper`.

    Args:
        gpus: of the machine.
        spread: standard deviation of the logarithm of lengths.
        prompt: tokens of a prompt, its images' included.
    """
    machine, policy, numbers = Machine(), Policy(), {}
    print("| recipe | trajectories | their limit | s, mean of limit / 8 | s, limit / 4 | s, limit / 2 |")
    print("|---|---|---|---|---|---|")
    for path, section, turns, without in RECIPES:
        whole = yaml.safe_load((ROOT / f"configs/{path}.yaml").read_text())
        recipe = whole | whole.get(section, {})
        passes = recipe.get("steps_per_generation", recipe["gradient_accumulation_steps"])
        rows, bound = gpus * recipe["per_device_train_batch_size"] * passes, turns * recipe["max_completion_length"]
        seconds = []
        for part in (8, 4, 2):
            parts = step_parts(drawn_lengths(rows, bound / part, spread, bound), gpus, prompt, policy, machine)
            seconds.append(sum(value for name, value in parts.items() if name not in without))
        name = f"{path}.yaml{section and f', {section}'}"
        numbers[name] = seconds
        print(f"| `{name}` | {rows:,} | {bound:,} | {' | '.join(f'{value:.0f}' for value in seconds)} |")
    return Result(numbers)
