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
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

from ..functional import SEQUENCE_NORMALISED_LOSSES, TOKEN_NORMALISED_LOSSES
from ..generation.batch import TOKEN_FIELDS
from .exchange import Rows, exchange_rows, join, take
from .length_batching import batches_by_length, longest_first


def sort_by_length(micro_batches: Sequence[Rows], window: int, accelerator: Accelerator) -> list[Rows]:
    """Sort rows so that a micro-batch holds rows of similar length, longest first, shared out over processes.

    Args:
        micro_batches: as TRL's GRPOTrainer buffers them, of equal size, as many on every process.
        window: so many in a row share their rows, those of one optimizer step.
        accelerator: accelerator of the trainer.
    """
    batches: list[Rows] = []
    size = len(micro_batches[0]["completion_mask"])
    for start in range(0, len(micro_batches), window):
        rows = join([split_pixel_values_by_grid(each) for each in micro_batches[start : start + window]])
        if accelerator.num_processes > 1:
            rows = exchange_rows(rows, _computed(rows), size, accelerator.process_index, accelerator.device)
        parts = batches_by_length(_computed(rows), [size] * window)
        batches += [unsplit_pixel_values_by_grid(take(rows, part)) for part in parts]
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
    rows: Tensor | None = None,
    otherwise: Tensor | None = None,
    compute_entropy: bool = False,
    compute_aux_loss: bool = False,
    **fields: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Call TRL's `_get_per_token_logps_and_entropies` on rows of similar length, without the padding that none needs.

    Args:
        score: that method, for a model.
        input_ids, attention_mask: (B, L), padded left of the prompts and right of the completions.
        scored: the last so many columns are completions.
        batch_size: rows per forward pass; all by default.
        rows: (B,) bool: score these alone; all by default. Where it names none one is scored all the same, as other
            processes may wait for this one in the forward pass.
        otherwise: (B, scored) log-probabilities of the other rows; 0 by default.
        compute_entropy, compute_aux_loss, **fields: as there.

    Returns:
        (B, scored) log-probabilities and entropies, 0 where nothing was computed, and the auxiliary loss.
    """
    flags = {"compute_entropy": compute_entropy, "compute_aux_loss": compute_aux_loss}
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **fields}
    inputs = {name: value for name, value in inputs.items() if value is not None}

    def score_cut(inputs: Rows) -> tuple:
        inputs, completion_columns = cut_to_longest(inputs, scored)
        ids, mask = inputs.pop("input_ids"), inputs.pop("attention_mask")
        *by_token, aux_loss = score(ids, mask, completion_columns, **flags, **inputs)
        return *(each if each is None else pad(each, (0, scored - completion_columns)) for each in by_token), aux_loss

    lengths = attention_mask.sum(1).tolist()
    order = longest_first(lengths)
    if rows is not None:
        asked_for = rows.tolist()
        order = [row for row in order if asked_for[row]] or order[-1:]
    batch_size = batch_size or len(order)
    if len(order) == len(lengths) <= batch_size:
        return score_cut(inputs)
    by_row = split_pixel_values_by_grid(inputs)
    parts = [take(by_row, order[start : start + batch_size]) for start in range(0, len(order), batch_size)]
    logps, entropies, aux_losses = zip(*(score_cut(unsplit_pixel_values_by_grid(part)) for part in parts), strict=True)
    places = torch.tensor(order, device=input_ids.device)

    def in_place(scores: Sequence[Tensor], others: Tensor | None = None) -> Tensor:
        values = torch.cat(list(scores))
        others = values.new_zeros(len(lengths), scored) if others is None else others.to(values.dtype)
        return others.index_copy(0, places, values)

    return (
        in_place(logps, otherwise),
        in_place(entropies) if compute_entropy else None,
        torch.stack(aux_losses).mean() if compute_aux_loss else None,
    )


def cut_to_longest(inputs: Rows, scored: int) -> tuple[Rows, int]:
    """Remove the columns that are padding in every row.

    Args:
        inputs: of a forward pass; `attention_mask` (B, L) is padded left of the prompts and right of the completions.
        scored: the last so many columns are completions.

    Returns:
        The inputs, and how many columns of completions they have, at least 1.
    """
    used = inputs["attention_mask"].any(dim=0).nonzero().squeeze(1).tolist()
    prompts = inputs["attention_mask"].shape[1] - scored
    first, end = used[0], max(used[-1], prompts) + 1
    cut = {name: inputs[name][:, first:end] for name in TOKEN_FIELDS if name in inputs}
    return {**inputs, **cut}, end - prompts
