"""Redistribute rows so that processes have about equally many tokens.

A process whose trajectories are long keeps the others waiting. Of eight processes with 16 rows each, prompts of 100
tokens and log-normal completions (median 64, 95th percentile 512), the one with most has 1.2 times the mean.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, distributed
from torch.nn.functional import pad

from .length_batching import batches_by_length

Rows = dict[str, Any]
"""Name → a tensor or a list with an entry per row, a tensor of no dimension, or `None`; images as TRL has them."""

_BY_PROMPT_TOKEN = ("prompt_ids", "prompt_mask")
_BY_COMPLETION_TOKEN = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
    "kl_coefs",
    "turn",
)


def balance_rows(lengths: Sequence[int], processes: int, size: int) -> list[list[int]]:
    """Assign equally many micro-batches to each process, of similar length at each step and about equal in sum.

    Args:
        lengths: lengths of all rows, in tokens.
        size: rows per micro-batch.

    Returns:
        Row numbers of each process, micro-batch after micro-batch, the longest first.

    Example:
        >>> balance_rows([1, 2, 3, 4, 5, 6, 7, 8], processes=2, size=2)
        [[7, 6, 1, 0], [5, 4, 3, 2]]
    """
    parts = batches_by_length(lengths, [size] * (len(lengths) // size))
    shares: list[list[int]] = [[] for _ in range(processes)]
    for start in range(0, len(parts), processes):
        # The longest goes to the process that has least so far.
        least_first = sorted(shares, key=lambda share: sum(lengths[row] for row in share))
        for share, part in zip(least_first, parts[start : start + processes], strict=True):
            share += part
    return shares


def take(rows: Rows, order: Sequence[int]) -> Rows:
    """The rows with these numbers."""

    def of(values: Any) -> Any:
        if values is None or (isinstance(values, Tensor) and values.ndim == 0):
            return values
        return values[list(order)] if isinstance(values, Tensor) else [values[row] for row in order]

    return {name: of(values) for name, values in rows.items()}


def join(parts: Sequence[Rows]) -> Rows:
    """Concatenate batches with the same fields."""

    def of(values: list[Any]) -> Any:
        if values[0] is None or (isinstance(values[0], Tensor) and values[0].ndim == 0):
            return values[0]
        return torch.cat(values) if isinstance(values[0], Tensor) else [row for value in values for row in value]

    return {name: of([part[name] for part in parts]) for name in parts[0]}


def exchange_rows(rows: Rows, lengths: Sequence[int], size: int, process: int, device: torch.device) -> Rows:
    """Send each row to the process that computes it. Every process calls it.

    Rows stay where they are if their fields differ between processes, as where one process has no images at all.

    Args:
        rows: rows of this process, as many as on every other, images split by row.
        lengths: lengths of these rows, in tokens.
        device: of this process; the rows come back there.

    Returns:
        As many rows, in the order that they have over all processes.
    """
    widths = [(rows["prompt_ids"].shape[1], rows["completion_ids"].shape[1])]
    prompt, completion = (max(each) for each in zip(*gather_object(widths), strict=True))
    rows = widened(rows, prompt, completion)
    fields = {name: _kind(values) for name, values in rows.items()}
    everyone = gather_object([{"fields": fields, "lengths": list(lengths)}])
    if any(each["fields"] != fields for each in everyone):
        return rows

    plan = balance_rows([length for each in everyone for length in each["lengths"]], len(everyone), size)
    own = range(process * len(lengths), (process + 1) * len(lengths))
    sent = [take(rows, [row - own.start for row in sorted(share) if row in own]) for share in plan]
    return join(_send(sent, device))


def widened(rows: Rows, prompt: int, completion: int) -> Rows:
    """Pad to as many columns of prompts, on their left, and of completions, on their right."""
    left, right = prompt - rows["prompt_ids"].shape[1], completion - rows["completion_ids"].shape[1]
    sides = dict.fromkeys(_BY_PROMPT_TOKEN, (left, 0))
    for name in _BY_COMPLETION_TOKEN:  # some of which may have a value per row instead
        if isinstance(rows.get(name), Tensor) and rows[name].shape[1:] == rows["completion_ids"].shape[1:]:
            sides[name] = (0, right)
    there = {name: side for name, side in sides.items() if rows.get(name) is not None}
    return {**rows, **{name: pad(rows[name], side) for name, side in there.items()}}


def _kind(values: Any) -> Any:
    """The type, and a tensor's dtype and row shape, which must be equal on all processes."""
    if isinstance(values, Tensor):
        return values.dtype, values.ndim, tuple(values.shape[1:])
    if isinstance(values, list):
        return {_kind(value) if isinstance(value, Tensor) else type(value) for value in values}
    return type(values)


def _send(parts: Sequence[Rows], device: torch.device) -> list[Rows]:
    """Send part k to process k; return the parts that were sent to this process."""
    sent = [_as_bytes(part, device) for part in parts]
    sizes = torch.tensor([[len(head), len(data)] for head, data in sent], device=device)
    incoming = torch.empty_like(sizes)
    distributed.all_to_all_single(incoming, sizes)
    received = torch.empty(int(incoming.sum()), dtype=torch.uint8, device=device)
    joined = torch.cat([each for pair in sent for each in pair])
    distributed.all_to_all_single(received, joined, incoming.sum(dim=1).tolist(), sizes.sum(dim=1).tolist())
    pieces = received.split(incoming.flatten().tolist())
    return [_as_rows(head, data) for head, data in zip(pieces[::2], pieces[1::2], strict=True)]


@dataclass(frozen=True)
class _Sent:
    """Stands for a tensor whose bytes travel beside."""

    dtype: torch.dtype
    shape: torch.Size


def _as_bytes(rows: Rows, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows without their tensors, pickled, and the bytes of these, which may be many and stay on the device."""
    data = [torch.empty(0, dtype=torch.uint8, device=device)]

    def sent(value: Any) -> Any:
        if isinstance(value, Tensor):
            data.append(value.to(device).flatten().view(torch.uint8))
            return _Sent(value.dtype, value.shape)
        if isinstance(value, dict):
            return {name: sent(each) for name, each in value.items()}
        return [sent(each) for each in value] if isinstance(value, list) else value

    head = pickle.dumps({name: sent(values) for name, values in rows.items()})
    return torch.frombuffer(bytearray(head), dtype=torch.uint8).to(device), torch.cat(data)


def _as_rows(head: Tensor, data: Tensor) -> Rows:
    """The opposite of `_as_bytes`."""
    read = 0

    def received(value: Any) -> Any:
        nonlocal read
        if isinstance(value, _Sent):
            size = value.shape.numel() * value.dtype.itemsize
            read += size
            return data[read - size : read].clone().view(value.dtype).view(value.shape)  # a clone is aligned
        if isinstance(value, dict):
            return {name: received(each) for name, each in value.items()}
        return [received(each) for each in value] if isinstance(value, list) else value

    return {name: received(values) for name, values in pickle.loads(head.cpu().numpy().tobytes()).items()}
