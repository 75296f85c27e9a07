"""SRPO's entries for shared reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluation.curves import Panel
from ..evaluation.logged_completions import answers_of
from ..evaluation.metrics import Metric
from ..evaluation.trajectory import Piece
from ..methods import Method
from .response import parse_reflection_response


def _pieces(completion: Mapping[str, Any]) -> list[Sequence[Piece]] | None:
    """Cut a response after its first answer."""
    texts = answers_of(completion)
    if len(texts) != 1 or "problem" not in completion or "second_correct" not in completion:
        return None
    end = parse_reflection_response(texts[0]).first_end
    halves = [texts[0]] if end is None else [texts[0][:end], texts[0][end:].strip()]
    return [[Piece(half)] for half in halves if half]


METHOD = Method(
    panels=(
        Panel("Effect of the reflection", "mean reward", {"rewards/effectiveness_reward/mean": "I_eff"}),
        Panel(
            "Form of the response",
            "share",
            {"response/complete": "full format", "reflected_share": "reflects and answers"},
            is_share=True,
        ),
        Panel("Length of the response", "tokens", {"length_first": "first solution", "length_response": "response"}),
        Panel(
            "Length by the first answer",
            "tokens",
            {"length_correct": "response, first right", "length_incorrect": "response, first wrong"},
        ),
        Panel(
            "Dropped by the accuracy filter",
            "share of groups",
            {"dropped_too_hard": "too hard", "dropped_too_easy": "too easy"},
            is_share=True,
        ),
    ),
    metrics={
        "effectiveness": Metric("I_eff", is_share=False),
        "reflection_tokens": Metric("tokens of a reflection", is_share=False, decimals=1),
    },
    pieces=_pieces,
)
