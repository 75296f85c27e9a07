"""Exact-match grading: the answer in the last box or answer tag, compared as text.

It compares letters, words and plain numbers; it knows no algebra, units or percentages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

# An opening, then anything but another opening, then its end: linear in the text, however hostile.
_CANDIDATE = re.compile(r"\\boxed\{([^{}]*)\}|<answer>([^<]*)</answer>")
_THINK_END = "</think>"


class Verdict(NamedTuple):
    """The grader's decision.

    Attributes:
        correct: True or False; `None` when the gold answer itself cannot be used, which must train nothing.
        extracted: the answer that was read off the completion, if there was one.
        reason: one line for a person.
    """

    correct: bool | None
    extracted: str | None
    reason: str


def extract_answer(text: str) -> str | None:
    """The answer that a completion gives: its last box or answer tag, else the whole text if that is one short line."""
    text = text.rpartition(_THINK_END)[2].strip()
    candidates = [first or second for first, second in _CANDIDATE.findall(text)]
    if candidates:
        return candidates[-1].strip() or None
    return text if text and len(text) <= 40 and "\n" not in text else None


def _normalise(text: str) -> str:
    """Case, outer white space, a final full stop and brackets around one letter do not count."""
    text = " ".join(text.split()).strip().rstrip(".").casefold()
    letter = re.fullmatch(r"\(?([a-z])\)?", text)
    return letter.group(1) if letter else text


def _same(left: str, right: str) -> bool:
    left, right = _normalise(left), _normalise(right)
    if left == right:
        return True
    try:
        return Decimal(left) == Decimal(right)
    except InvalidOperation:
        return False


@dataclass(frozen=True)
class Grader:
    """Decides whether a completion answers a question correctly."""

    def grade(
        self,
        completion: str,
        gold: str | Iterable[str],
        *,
        choices: Mapping[str, str] | None = None,
        question: str | None = None,
    ) -> Verdict:
        """Grade one completion.

        Args:
            completion: the text of the model's answer.
            gold: the right answer, or several of which any one is right.
            choices: letter → text; both the letter and its text are then accepted.
            question: the question; exact matching does not need it.
        """
        golds = [gold] if isinstance(gold, str) else list(gold or [])
        golds = [text for text in golds if isinstance(text, str) and text.strip()]
        if not golds:
            return Verdict(None, None, "the gold answer is empty")
        if choices:
            golds += [choices[text.strip()] for text in golds if choices.get(text.strip())]
        extracted = extract_answer(completion)
        if extracted is None:
            return Verdict(False, None, "no answer found")
        if any(_same(extracted, text) for text in golds):
            return Verdict(True, extracted, "matches the gold answer")
        return Verdict(False, extracted, f"differs from the gold answer {golds[0]!r}")

    def grade_batch(self, items: Iterable[Mapping[str, Any]]) -> list[Verdict]:
        """Grade many; each item holds the arguments of `grade` by name."""
        return [self.grade(**item) for item in items]
