"""Micro-batches that hold as many rows as fit a bound of tokens (`RolloutConfig.max_tokens_per_micro_batch`).

A number of rows has to fit where all of them are as long as can be. With a bound of tokens one long row stands alone,
and many short ones share a pass: fewer passes, and a lower peak of memory. The loss adds up over rows, and so does the
update, whichever rows share a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor
from torch.nn.functional import pad

from ..compat.replaced import replaced
from ..functional import SEQUENCE_NORMALISED_LOSSES
from .exchange import Rows, take
from .length_batching import longest_first
from .padding import adds_up, carries_loss

Size = tuple[int, int]
"""Tokens of a row's prompt and of its completion, which are padded apart."""


def batches_by_tokens(sizes: Sequence[Size], most: int, at_least: int = 1) -> list[list[int]]:
    """Row numbers of batches of at most so many tokens with padding, the longest rows first.

    A row that is longer by itself has a batch of its own.

    Args:
        sizes: of the rows.
        most: tokens of a batch.
        at_least: batches to make, while one has more than a row.

    Example:
        >>> batches_by_tokens([(2, 1), (2, 8), (2, 4), (1, 3)], most=12)
        [[1], [2, 3], [0]]
    """
    batches: list[list[int]] = []
    widest = (0, 0)
    for row in longest_first([sum(size) for size in sizes]):
        wider = max(widest[0], sizes[row][0]), max(widest[1], sizes[row][1])
        if batches and (len(batches[-1]) + 1) * sum(wider) <= most:
            batches[-1].append(row)
            widest = wider
        else:
            batches.append([row])
            widest = sizes[row]
    while len(batches) < at_least and max(map(len, batches)) > 1:
        place = max(range(len(batches)), key=lambda number: len(batches[number]))
        half = len(batches[place]) // 2
        batches[place : place + 1] = [batches[place][:half], batches[place][half:]]
    return batches


def split_by_tokens(sizes: Sequence[Size], most: int, accelerator: Accelerator) -> tuple[list[list[int]], int]:
    """As `batches_by_tokens`, with as many batches in every process, as each pass may wait for those of the others.

    Returns:
        The batches, and how many of them have rows of their own: the others repeat a row.
    """
    batches = batches_by_tokens(sizes, most)
    if accelerator.num_processes == 1:
        return batches, len(batches)
    count = int(accelerator.gather(torch.tensor([len(batches)], device=accelerator.device)).max())
    batches = batches_by_tokens(sizes, most, count)
    return batches + [batches[-1][-1:]] * (count - len(batches)), len(batches)


def loss_by_parts(trainer: Any, model: Any, rows: Rows, most: int, loss_of: Callable[[Any, Rows], Tensor]) -> Tensor:
    """The loss of a micro-batch, of which all parts but the last have gone through their backward pass.

    Args:
        trainer: a `GroupGRPOTrainer` whose loss adds up over rows.
        model: as `compute_loss` is given it.
        most: tokens of a part.
        loss_of: loss of some rows, a mean over them with `SEQUENCE_NORMALISED_LOSSES`.
    """
    everyone = len(rows["completion_mask"])
    asked_for = carries_loss(rows).nonzero().flatten().tolist() or [0]  # the others add nothing
    tokens = [rows[name].sum(1).tolist() for name in ("prompt_mask", "completion_mask")]
    sizes = [(tokens[0][row], tokens[1][row]) for row in asked_for]
    parts, own = split_by_tokens(sizes, most, trainer.accelerator)
    metrics = trainer._metrics[trainer._mode]
    metrics["micro_batches"].append(len(parts))
    logged = {name: len(values) for name, values in metrics.items()}
    done = torch.zeros((), device=trainer.accelerator.device)
    for number, part in enumerate(parts):
        weight = len(part) / everyone if trainer.loss_type in SEQUENCE_NORMALISED_LOSSES else 1.0
        last = number == len(parts) - 1
        with nullcontext() if last else _adding_up(trainer.accelerator, model):
            with _gathering_parts(trainer.accelerator, everyone):
                loss = loss_of(model, take(rows, [asked_for[row] for row in part]))
            loss = loss * (weight if number < own else 0.0)
            if last:
                break
            by_deepspeed = trainer.accelerator.distributed_type == DistributedType.DEEPSPEED
            trainer.accelerator.backward(loss, **({"scale_wrt_gas": False} if by_deepspeed else {}))
        done += loss.detach()
    counts = [_tokens(take(rows, [asked_for[row] for row in part]), trainer.max_turns) for part in parts]
    counts = trainer.accelerator.reduce(torch.stack(counts), reduction="sum").T.tolist()
    for name, values in metrics.items():
        values[logged.get(name, 0) :] = _of_all_parts(name, values[logged.get(name, 0) :], counts)
    return loss + done


@contextmanager
def _gathering_parts(accelerator: Accelerator, most: int) -> Iterator[None]:
    """Let TRL gather a value for each row of a part, of which other processes may have more rows or fewer.

    Processes can only gather equally many values. NaN, which TRL leaves out, stands for rows that a part lacks.

    Args:
        most: rows of a micro-batch, equal in all processes.
    """
    gather = accelerator.gather

    def gather_parts(values: Tensor) -> Tensor:
        return gather(pad(values, (0, most - len(values)), value=torch.nan) if values.ndim == 1 else values)

    with replaced(accelerator, gather=gather_parts):
        yield


def _tokens(rows: Rows, turns: int) -> Tensor:
    """(1 + turns,) tokens that carry loss, of all turns and of each."""
    mask = rows["completion_mask"] * rows["tool_mask"]
    turn = rows.get("turn", torch.ones_like(mask))
    return torch.stack([mask.sum(), *((mask * (turn == number)).sum() for number in range(1, turns + 1))])


def _of_all_parts(name: str, values: list[float], counts: list[list[int]]) -> list[float]:
    """What one pass would have logged, of the values of its parts: a mean over tokens, or the least or largest.

    Args:
        name: of the metric.
        values: one for each part with tokens that count; any other number is none of parts.
        counts: of all turns and of each, how many tokens each part has.
    """
    own = counts[int(name.removeprefix("kl_t"))] if name.startswith("kl_t") else counts[0]
    weights = [count for count in own if count]
    if len(values) != len(weights) or len(values) < 2:
        return values
    if name.endswith(("_min", "_max")):
        return [min(values) if name.endswith("_min") else max(values)]
    return [sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)]


@contextmanager
def _adding_up(accelerator: Accelerator, model: Any) -> Iterator[None]:
    """Add gradients up in each process, as transformers does between the micro-batches of an optimizer step."""
    state = accelerator.gradient_state
    if not accelerator.sync_gradients or state.plugin_kwargs.get("sync_each_batch", False):
        yield
    elif accelerator.distributed_type == DistributedType.DEEPSPEED:  # which would make its step
        state._set_sync_gradients(False)
        try:
            yield
        finally:
            state._set_sync_gradients(True)
    else:
        with accelerator.no_sync(model):
            yield


def why_not_bounded(trainer: Any) -> str | None:
    """Why the update would depend on who shares a micro-batch."""
    if not adds_up(trainer):
        settings = "loss_type='bnpo', top_entropy_quantile, entropy_coef, or router_aux_loss_coef"
        return f"the loss is a mean over the micro-batch ({settings})"
    if trainer._is_vlm and trainer._sampled_by_others:
        return "a rollout of yours brings images that only TRL can tell apart"
    return None
