"""Parse a response, and check its format: thoughts in one pair of tags, then one box."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..grading import extract_answer
from ..grading.extraction import find_spans, without_thinking

_FORMAT = re.compile(r"\s*<think>(?:(?!</?think>).)*</think>\s*\\boxed\s*\{(?P<inside>.*)\}\s*", re.DOTALL)
_BRACE = re.compile(r"\\.|([{}])", re.DOTALL)


class Response(NamedTuple):
    """One response.

    Attributes:
        answer: what it votes for; `None` if none can be told.
        is_well_formed: whether it is `<think>…</think>`, then one filled `\\boxed{…}`, and nothing else (δ = 0).
        is_single: whether it gives one clear final answer, in one box after its thoughts; the judge's validity rule.
    """

    answer: str | None
    is_well_formed: bool
    is_single: bool


def read_response(text: str) -> Response:
    """Parse a response, including the beginning that the chat template wrote."""
    answer = extract_answer(text)
    match = _FORMAT.fullmatch(text)
    spans = find_spans(without_thinking(text) or "")
    is_single = len(spans.filled) == 1 and spans.filled[0].is_box and not spans.some_are_empty
    return Response(answer, is_single and match is not None and _is_balanced(match["inside"]), is_single)


def read_free_response(text: str) -> Response:
    """Parse a response to a prompt without a format: any answer is clear, and nothing is violated."""
    answer = extract_answer(text)
    return Response(answer, is_well_formed=True, is_single=answer is not None)


def _is_balanced(inside: str) -> bool:
    """Whether no brace closes unopened, so that the last brace is the box's."""
    depth = 0
    for brace in _BRACE.finditer(inside):
        depth += {"{": 1, "}": -1, None: 0}[brace[1]]
        if depth < 0:
            return False
    return depth == 0
