"""Chain-of-Step's entries for shared reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluation.curves import Panel
from ..evaluation.logged_completions import answers_of
from ..evaluation.trajectory import Piece, scored_pieces
from ..methods import Method
from .paths import path_score, read_path
from .template import scored_ends


def _pieces(completion: Mapping[str, Any]) -> list[Sequence[Piece]] | None:
    """Cut a chain after each scored step."""
    texts = answers_of(completion)
    if len(texts) != 1 or not completion.get("step_scores"):
        return None
    scores = [float(score) for score in completion["step_scores"].split()]
    answer = completion.get("answer_score")
    ends = scored_ends(read_path(texts[0]).scorable).steps
    if len(ends) != len(scores):  # the table has another text than was scored
        return None
    return [scored_pieces(texts[0], ends, scores, float(answer) if answer else None)]


def _weighted_scores(sample: Mapping[str, Any]) -> dict[float, float] | None:
    """The trajectory score for w = 0, 0.1 … 1 (Fig. 3); it is linear in w, so its two ends give all of it."""
    if "step_scores" not in sample or "score" not in sample:  # a search's step scores are those of what it kept
        return None
    steps, answer = sample["step_scores"], sample.get("answer_score")
    low, high = (path_score(steps, answer, weight).total for weight in (0.0, 1.0))
    return {w: w * high + (1 - w) * low for w in (tenths / 10 for tenths in range(11))}


METHOD = Method(
    panels=(
        Panel("Score of the chain", "mean score", {"step_score": "steps", "answer_score": "answer"}, is_share=True),
        Panel("Chains", "share", {"chain/complete": "whole"}, is_share=True),
    ),
    pieces=_pieces,
    weighted_scores=_weighted_scores,
)
