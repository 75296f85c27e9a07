"""Skip computation on padding: rows of similar length share a micro-batch, which is cut to its longest row.

TRL pads a whole generation batch to its longest prompt and its longest completion, and every forward pass computes all
of that. Lengths of reasoning have long tails, so most of it is padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.functional import pad

from ..functional import SEQUENCE_NORMALISED_LOSSES, TOKEN_NORMALISED_LOSSES
from ..generation.image_fields import joined_fields
from .exchange import Rows, exchange_rows, join, take
from .length_batching import batches_by_length, longest_first

Fields = dict[str, Any]
"""What a model reads of a row besides its ids: "token", name → a value per token; "image", name → tensor;
"axes", of those that are not joined along the first dimension."""


def sort_by_length(
    micro_batches: Sequence[Rows], window: int, accelerator: Accelerator, together: int | None = None
) -> list[Rows]:
    """Sort rows so that a micro-batch holds rows of similar length, longest first, shared out over processes.

    Args:
        micro_batches: as TRL's GRPOTrainer buffers them, of equal size, as many on every process.
        window: so many in a row share their rows, those of one optimizer step.
        together: rows of similar length that go to one process, a micro-batch by default.
    """
    batches: list[Rows] = []
    size = len(micro_batches[0]["completion_mask"])
    for start in range(0, len(micro_batches), window):
        rows = join(micro_batches[start : start + window])
        if accelerator.num_processes > 1:
            rows = exchange_rows(rows, _computed(rows), together or size, accelerator.process_index, accelerator.device)
        parts = batches_by_length(_computed(rows), [size] * window)
        batches += [take(rows, part) for part in parts]
    return batches


def adds_up(trainer: Any) -> bool:
    """Whether a GRPO trainer's loss is a sum over rows, so that the update is the same however they are shared out."""
    by_micro_batch = trainer._entropy_bonus_enabled or trainer.top_entropy_quantile < 1 or trainer.aux_loss_enabled
    return trainer.loss_type in SEQUENCE_NORMALISED_LOSSES | TOKEN_NORMALISED_LOSSES and not by_micro_batch


def _computed(rows: Rows) -> list[int]:
    """Tokens of each row that are computed: none of a row that carries no loss."""
    tokens = rows["prompt_mask"].sum(1) + rows["completion_mask"].sum(1)
    return (tokens * carries_loss(rows)).tolist()


def carries_loss(rows: Rows) -> Tensor:
    """(B,) bool: rows with a token that carries loss; filters may have left none."""
    mask = rows["completion_mask"]
    return (mask if rows.get("tool_mask") is None else mask * rows["tool_mask"]).any(dim=1)


def score_by_length(
    score: Callable[..., tuple],
    input_ids: Tensor,
    attention_mask: Tensor,
    scored: int,
    batch_size: int | None = None,
    *,
    fields: Sequence[Fields],
    split: Callable[[list[tuple[int, int]]], list[list[int]]] | None = None,
    rows: Tensor | None = None,
    otherwise: Tensor | None = None,
    multiple: int = 1,
    compute_entropy: bool = False,
    compute_aux_loss: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Call TRL's `_get_per_token_logps_and_entropies` on rows of similar length, without the padding that none needs.

    Args:
        score: that method, given what the model reads besides as its first argument.
        input_ids, attention_mask: (B, L), padded left of the prompts and right of the completions.
        scored: the last so many columns are completions.
        batch_size: rows per forward pass; all by default.
        fields: what the model reads of each row besides its ids.
        split: gives the passes instead of `batch_size`: tokens of each row's prompt and completion → row numbers.
        rows: (B,) bool: score these alone; all by default. Where it names none one is scored all the same, as other
            processes may wait for this one in the forward pass.
        otherwise: (B, scored) log-probabilities of the other rows; 0 by default.
        multiple: of which the columns of prompts and of completions stay one, as they are (`pad_to_multiple_of`).
        compute_entropy, compute_aux_loss: as there.

    Returns:
        (B, scored) log-probabilities and entropies, 0 where nothing was computed, and the auxiliary loss.
    """
    flags = {"compute_entropy": compute_entropy, "compute_aux_loss": compute_aux_loss}

    def score_cut(part: Sequence[int]) -> tuple:
        ids, mask, completion_columns = cut_to_longest(input_ids[part], attention_mask[part], scored, multiple)
        of_model = model_inputs([fields[row] for row in part], mask)
        *by_token, aux_loss = score(of_model, ids, mask, completion_columns, **flags)
        return *(each if each is None else pad(each, (0, scored - completion_columns)) for each in by_token), aux_loss

    lengths = attention_mask.sum(1).tolist()
    order = longest_first(lengths)
    if rows is not None:
        asked_for = rows.tolist()
        order = [row for row in order if asked_for[row]] or order[-1:]
    batch_size = batch_size or len(order)
    if split is None and len(order) == len(lengths) <= batch_size:
        return score_cut(range(len(lengths)))
    if split is None:
        parts = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    else:
        completions = attention_mask[:, -scored:].sum(1).tolist()
        sizes = [(lengths[row] - completions[row], completions[row]) for row in order]
        parts = [[order[number] for number in part] for part in split(sizes)]
    logps, entropies, aux_losses = zip(*map(score_cut, parts), strict=True)
    places = torch.tensor([row for part in parts for row in part], device=input_ids.device)

    def in_place(scores: Sequence[Tensor], others: Tensor | None = None) -> Tensor:
        values = torch.cat(list(scores))
        others = values.new_zeros(len(lengths), scored) if others is None else others.to(values.dtype)
        return others.index_copy(0, places, values)

    return (
        in_place(logps, otherwise),
        in_place(entropies) if compute_entropy else None,
        torch.stack(aux_losses).mean() if compute_aux_loss else None,
    )


def cut_to_longest(ids: Tensor, mask: Tensor, scored: int, multiple: int = 1) -> tuple[Tensor, Tensor, int]:
    """Remove the columns that are padding in every row.

    Args:
        ids, mask: (B, L), padded left of the prompts and right of the completions.
        scored: the last so many columns are completions.
        multiple: as for `score_by_length`.

    Returns:
        Ids and mask, and how many columns of completions they have, at least 1.
    """
    used = mask.any(dim=0).nonzero().squeeze(1).tolist()
    prompts = mask.shape[1] - scored
    first, end = used[0], max(used[-1], prompts) + 1
    first, end = first - (first - prompts) % multiple, end + (prompts - end) % multiple
    return ids[:, first:end], mask[:, first:end], end - prompts


def model_inputs(rows: Sequence[Fields], mask: Tensor) -> dict[str, Tensor]:
    """What a model reads of some rows besides ids and mask.

    Args:
        rows: fields of each; a row without a field of tokens has text alone, type 0.
        mask: (B, L) attention mask, in each row ones without a gap.
    """
    axes = {name: axis for row in rows for name, axis in row.get("axes", {}).items()}
    found = {name: torch.zeros(mask.shape, dtype=torch.long) for row in rows for name in row["token"]}
    places = [(line.index(1), sum(line)) for line in mask.tolist()] if found else []  # waits for the device
    for name, values in found.items():
        for line, row, (start, length) in zip(values, rows, places, strict=True):
            own = row["token"].get(name, [])[:length]
            line[start : start + len(own)] = torch.tensor(own, dtype=torch.long)
    return {name: values.to(mask.device) for name, values in found.items()} | joined_fields(
        [row["image"] for row in rows], axes
    )
