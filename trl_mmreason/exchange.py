"""Redistribute rows so that processes have about equally many tokens.

A process whose trajectories are long keeps the others waiting. Of eight processes with 16 rows each, prompts of 100
tokens and log-normal completions (median 64, 95th percentile 512), the one with most has 1.2 times the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import torch
from accelerate.utils import gather_object, send_to_device
from torch import Tensor, distributed
from torch.nn.functional import pad

Rows = dict[str, Any]
"""Name → a tensor or a list with an entry a row, a tensor of no dimension, or `None`; pictures as TRL has them."""

A_VALUE_A_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
"""Fields over prompt and completion."""
_A_VALUE_A_PROMPT_TOKEN = ("prompt_ids", "prompt_mask")
_A_VALUE_A_COMPLETION_TOKEN = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
    "turn",
)


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Row numbers sorted by length, longest first; equally long rows keep their order."""
    return sorted(range(len(lengths)), key=lambda row: -lengths[row])


def balance_rows(lengths: Sequence[int], processes: int, size: int) -> list[list[int]]:
    """Assign equally many micro-batches to each process, of like length at each step and about equal in sum.

    Args:
        lengths: lengths of all rows, in tokens.
        size: rows a micro-batch.

    Returns:
        Row numbers of each process, micro-batch after micro-batch, the longest first.

    Example:
        >>> balance_rows([1, 2, 3, 4, 5, 6, 7, 8], processes=2, size=2)
        [[7, 6, 1, 0], [5, 4, 3, 2]]
    """
    order = longest_first(lengths)
    parts = [order[start : start + size] for start in range(0, len(order), size)]
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

    Rows stay where they are if their fields differ between processes, as where one process has no pictures at all.

    Args:
        rows: rows of this process, as many as on every other, pictures split by row.
        lengths: lengths of these rows, in tokens.
        size: rows a micro-batch.
        process: number of this process.
        device: of this process; the rows come back there.

    Returns:
        The rows of this process in the order of `balance_rows`.
    """
    widths = [(rows["prompt_ids"].shape[1], rows["completion_ids"].shape[1])]
    prompt, completion = (max(each) for each in zip(*gather_object(widths), strict=True))
    rows = _widen(rows, prompt, completion)
    fields = {name: _kind(values) for name, values in rows.items()}
    everyone = gather_object([{"fields": fields, "lengths": list(lengths)}])
    if any(each["fields"] != fields for each in everyone):
        return take(rows, longest_first(lengths))

    plan = balance_rows([length for each in everyone for length in each["lengths"]], len(everyone), size)
    own = range(process * len(lengths), (process + 1) * len(lengths))
    sent = [take(rows, [row - own.start for row in wanted if row in own]) for wanted in plan]
    received = join(_send(sent, device))
    by_source = sorted(plan[process], key=lambda row: row // len(lengths))  # each source keeps the order of the plan
    place = {row: number for number, row in enumerate(by_source)}
    return take(received, [place[row] for row in plan[process]])


def _widen(rows: Rows, prompt: int, completion: int) -> Rows:
    """Pad to as many columns of prompts, on their left, and of completions, on their right."""
    left, right = prompt - rows["prompt_ids"].shape[1], completion - rows["completion_ids"].shape[1]
    sides = dict.fromkeys(_A_VALUE_A_PROMPT_TOKEN, (left, 0)) | dict.fromkeys(A_VALUE_A_TOKEN, (left, right))
    for name in _A_VALUE_A_COMPLETION_TOKEN:  # some of which may have a value a row instead
        if isinstance(rows.get(name), Tensor) and rows[name].shape[1:] == rows["completion_ids"].shape[1:]:
            sides[name] = (0, right)
    there = {name: side for name, side in sides.items() if rows.get(name) is not None}
    # Turns count from 1, and padding needs a number that the coefficients have.
    return {**rows, **{name: pad(rows[name], side, value=int(name == "turn")) for name, side in there.items()}}


def _kind(values: Any) -> Any:
    """The type, and a tensor's dtype and row shape, which must be equal on all processes."""
    if isinstance(values, Tensor):
        return values.dtype, values.ndim, tuple(values.shape[1:])
    if isinstance(values, list):
        return {_kind(value) if isinstance(value, Tensor) else type(value) for value in values}
    return type(values)


def _send(parts: Sequence[Rows], device: torch.device) -> list[Rows]:
    """Send part k to process k; return the parts that were sent to this process."""
    sent = [_as_bytes(part) for part in parts]
    sizes = torch.tensor([len(each) for each in sent], device=device)
    incoming = torch.empty_like(sizes)
    distributed.all_to_all_single(incoming, sizes)
    received = torch.empty(int(incoming.sum()), dtype=torch.uint8, device=device)
    distributed.all_to_all_single(received, torch.cat(sent).to(device), incoming.tolist(), sizes.tolist())
    read = (BytesIO(each.numpy().tobytes()) for each in received.cpu().split(incoming.tolist()))
    return [send_to_device(torch.load(each, weights_only=True), device) for each in read]


def _as_bytes(rows: Rows) -> Tensor:
    # Pictures are views of one tensor, which would be saved whole with each of them.
    lists = {name: values for name, values in rows.items() if isinstance(values, list)}
    cloned = {k: [v.clone() if isinstance(v, Tensor) else v for v in values] for k, values in lists.items()}
    buffer = BytesIO()
    torch.save(send_to_device({**rows, **cloned}, "cpu"), buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)
