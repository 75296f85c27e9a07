"""Check and collate rows with rewards and behaviour log-probabilities."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import torch
from torch import Tensor
from trl.data_utils import apply_chat_template

from ..compat.chat_template import tokenizer_of
from ..data.rows import Row
from ..generation.batch import conversation_of

logger = logging.getLogger(__name__)

_ROUNDING = 1e-3  # a log-probability of 16 bit may come out above 0 by less


def rewarded_rows(rows: Any, name: str) -> Any:
    """Select the rows with a non-zero reward; the others would have no gradient.

    Raises:
        ValueError: a reward is no finite number, or all are 0; of a stream when the row comes.
    """

    def check(reward: Any, number: int) -> dict[str, float]:
        return {"reward": finite_reward(reward, f"{name}: the reward of row {number}")}

    checked = rows.map(check, input_columns=["reward"], with_indices=True)
    rewarded = checked.filter(lambda reward: reward != 0, input_columns=["reward"])
    if hasattr(rows, "__len__"):
        if not len(rewarded):
            raise ValueError(f"{name}: the reward of all {len(rows)} rows is 0, so that none has a gradient.")
        if left_out := len(rows) - len(rewarded):
            logger.warning(
                "%s: %d of %d rows have a reward of 0 and are left out; errors number the rest",
                name,
                left_out,
                len(rows),
            )
    return rewarded


def finite_reward(reward: Any, what: str) -> float:
    """Return a reward as a float; raise a ValueError that names it if it is no finite number."""
    if not isinstance(reward, SupportsFloat) or not math.isfinite(reward):
        raise ValueError(
            f"{what} is {reward!r}, expected a finite number. Leave out rows that could not be graded; a reward of 0 "
            "says that a row is to teach nothing."
        )
    return float(reward)


def check_behavior(rows: Any, name: str, level: str, processing_class: Any) -> Any:
    """Check that `behavior_logps` suffice for importance weights of this level, and return the rows.

    Raises:
        ValueError: they are missing, no log-probabilities, or, for the level "token", not one per token.
    """
    fix = "Drop the row, or set importance_sampling to 'none'."

    def check(row: Row, number: int) -> Row:
        logps = row.get("behavior_logps")
        if not logps:
            raise ValueError(f"{name}: row {number} has no behavior_logps, which importance weights need. {fix}")
        wrong = next((logp for logp in logps if not math.isfinite(logp) or logp > _ROUNDING), None)
        if wrong is not None:
            raise ValueError(
                f"{name}: the behavior_logps of row {number} hold {wrong}, expected natural logarithms of "
                f"probabilities, at most 0. {fix}"
            )
        if level == "token":
            ids = completion_ids(row, processing_class)
            if not len(ids) - 1 <= len(logps) <= len(ids):  # the end of the turn may not have been sampled
                raise ValueError(
                    f"{name}: row {number} has {len(logps)} behavior_logps, and {len(ids)} tokens in its completion "
                    "under this policy's tokenizer, end of turn included: it was written with another tokenizer, or "
                    "would be read back in other tokens. Drop the row, or set importance_sampling to 'sequence'."
                )
        return {}

    return rows.map(check, with_indices=True)


def completion_ids(row: Row, processing_class: Any) -> list[int]:
    """Tokens of a completion up to its end of turn, as in TRL's collator."""
    parts = {role: conversation_of(processing_class, row[role], []) for role in ("prompt", "completion")}
    text = apply_chat_template(parts, processing_class)["completion"]
    tokenizer = tokenizer_of(processing_class)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return _sampled(torch.tensor(ids), tokenizer.eos_token_id).tolist()


class RewardedCompletions:
    """Collates rows as `collate` does, and adds the inputs of the off-policy loss.

    - `rewards` (B,);
    - `behavior_logps` (B, T), if there is a level of importance weights: for "token" one number a token, for "sequence"
      their sum at the completion's first token and 0 after it; NaN where the behaviour policy said nothing, as before
      the completion and for what the template writes after the end of the turn;
    - `shift_labels` (B, 1), if completions are what is counted: `Trainer` counts these instead of the tokens.

    Args:
        collate: makes `labels` (B, T), -100 for what is not learnt.
        eos_token_id: ends a turn.
        level: level of importance weights, or "none".
        count_rows: whether the loss is divided by the number of completions, not of tokens.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], eos_token_id: int, *, level: str, count_rows: bool) -> None:
        self._collate, self._eos_token_id = collate, eos_token_id
        self._level, self._count_rows = level, count_rows

    def __call__(self, rows: Sequence[Row]) -> Any:
        batch = self._collate([dict(row) for row in rows])
        batch["rewards"] = torch.tensor([row["reward"] for row in rows], dtype=torch.float32)
        if self._level != "none":
            behavior_logps = [torch.tensor(row["behavior_logps"]) for row in rows]
            batch["behavior_logps"] = self._behavior(batch["labels"], behavior_logps)
        if self._count_rows:
            batch["shift_labels"] = torch.zeros(len(rows), 1, dtype=torch.long)
        return batch

    def _behavior(self, labels: Tensor, behavior_logps: Sequence[Tensor]) -> Tensor:
        behavior = torch.full(labels.shape, torch.nan)
        for row, row_labels, logps in zip(behavior, labels, behavior_logps, strict=True):
            places = (row_labels != -100).nonzero().squeeze(1)
            places = places[: len(_sampled(row_labels[places], self._eos_token_id))]
            if self._level == "token":
                row[places[: len(logps)]] = logps
            else:
                # One number less than tokens: the end of the turn was not sampled, and counts in neither.
                row[places[:-1] if len(logps) == len(places) - 1 else places] = 0.0
                row[places[0]] = logps.sum()
        return behavior


def _sampled(ids: Tensor, eos_token_id: int) -> Tensor:
    """Mask of the sampled tokens: a completion up to its first end of turn."""
    ends = (ids == eos_token_id).nonzero()
    return ids[: int(ends[0]) + 1] if len(ends) else ids
