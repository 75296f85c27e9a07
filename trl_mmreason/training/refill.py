"""Refill: within a rollout, groups in which nothing differs make room for groups of other questions that teach.

Filters and equal rewards leave some groups without a gradient, and an update then stands on fewer of them. With
`RolloutConfig.refill_attempts` other questions are asked until as many groups teach as the rollout has, or the attempts
are used up (DAPO's dynamic sampling, arXiv:2503.14476, Sec. 3.2, which asks whole batches anew).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from .exchange import Rows, join, take, widened
from .padding import carries_loss
from .read_once import numbered


def teaching_groups(rows: Rows, size: int) -> Tensor:
    """(groups,) bool: whether a group has a row with an advantage other than 0 and tokens that carry loss.

    Args:
        rows: of whole groups of this size, one after the other.
    """
    advantages = rows["advantages"]
    paid = (advantages != 0) if advantages.ndim == 1 else (advantages != 0).any(dim=1)
    return (paid & carries_loss(rows)).view(-1, size).any(dim=1)


def refilled(trainer: Any, rows: Rows, sample: Callable[[list[dict[str, Any]]], Rows]) -> Rows:
    """As many rows, in which groups that teach nothing gave way to others that teach. Every process calls it.

    Each process asks as many other questions as the one that lacks most, as sampling may wait for all of them.

    Args:
        sample: makes rollouts of rows of the data set, as many in each process.
    """
    size, attempts = trainer.num_generations, 0
    groups = len(rows["completion_mask"]) // size
    teaching = teaching_groups(rows, size)
    while True:
        lacking = torch.tensor([groups - int(teaching.sum())], device=trainer.accelerator.device)
        everyone = trainer.accelerator.gather(lacking)
        if attempts == trainer.args.refill_attempts or not everyone.any():
            break
        attempts += 1
        fresh = sample(other_questions(trainer, int(everyone.max())))
        both = joined(rows, fresh)
        teaching = torch.cat([teaching, teaching_groups(fresh, size)])
        kept = sorted(range(len(teaching)), key=lambda group: not teaching[group])[:groups]  # a stable order
        rows = take(both, [group * size + number for group in kept for number in range(size)])
        teaching = teaching[kept]
    metrics = trainer._metrics["train"]
    metrics["refill/attempts"].append(attempts)
    metrics["refill/still_silent"].append(everyone.sum().item() / (groups * len(everyone)))
    return rows


def joined(rows: Rows, others: Rows) -> Rows:
    """Rows of two rollouts, padded alike."""
    widths = [max(each[name].shape[1] for each in (rows, others)) for name in ("prompt_ids", "completion_ids")]
    return join([widened(each, *widths) for each in (rows, others)])


def other_questions(trainer: Any, groups: int) -> list[dict[str, Any]]:
    """Rows of the data set for so many groups of this process, drawn anew by each call, as in a resumed run."""
    count, update, (before, calls) = len(trainer.train_dataset), trainer.state.global_step, trainer._draws
    trainer._draws = update, calls + 1 if before == update else 1  # an update may be of several rollouts
    order = Random(f"{trainer.args.seed} {update} {trainer._draws[1]}").sample(range(count), count)
    first = trainer.accelerator.process_index * groups
    places = [order[place % count] for place in range(first, first + groups)]
    questions = [numbered(trainer.train_dataset, place) for place in places]
    return [dict(row) for row in questions for _ in range(trainer.num_generations)]


def why_not_refilled(trainer: Any) -> str | None:
    """Why groups cannot be told apart, or why a silent group teaches all the same."""
    args = trainer.args
    if (rows := args.per_device_train_batch_size * args.steps_per_generation) % trainer.num_generations:
        return f"a process has {rows} rows of a rollout, no whole groups of num_generations={trainer.num_generations}"
    if args.scale_rewards == "batch" or args.multi_objective_aggregation == "normalize_then_sum":
        return "advantages depend on all groups of a rollout (scale_rewards, multi_objective_aggregation)"
    if not trainer.only_groups_teach():
        return "groups without differences teach, too (entropy bonus, auxiliary losses, a compute_loss of your own)"
    if trainer._sampled_by_others or trainer.environment_factories is not None:
        return "a rollout or environments of your own bring the questions"
    if not isinstance(trainer.train_dataset, Dataset):
        return "the rows are a stream, from which no others can be drawn"
    return None
