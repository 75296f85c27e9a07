"""Exact-match grading: the answer in the last box or answer tag, compared as text.

It compares letters, words and plain numbers; it knows no algebra, units or percentages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

# A box may hold one more level of braces, as in \boxed{\frac{1}{2}}; the alternatives share no first character, so
# matching stays linear however hostile the text.
_CANDIDATE = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}|<answer>([^<]*)</answer>")
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


def _accepted(golds: Iterable[Any], choices: Mapping[str, str]) -> list[str]:
    """What counts as right: each gold as written and without its box or dollar signs, and its choice's other name."""
    texts = [str(gold).strip() for gold in golds if gold is not None]
    texts += [found for text in texts if (found := extract_answer(text.strip("$"))) and found != text]
    for letter, choice in choices.items():
        if any(_same(letter, text) or _same(choice, text) for text in texts):
            texts += [letter, choice]
    return [text for text in texts if text]


@dataclass(frozen=True)
class Grader:
    """Decides whether a completion answers a question correctly."""

    def grade(
        self,
        completion: str,
        gold: str | float | Iterable[str],
        *,
        choices: Mapping[str, str] | None = None,
        question: str | None = None,
    ) -> Verdict:
        """Grade one completion.

        Args:
            completion: the text of the model's answer.
            gold: the right answer, or several of which any one is right.
            choices: letter → text; whichever of the two is the gold, both are accepted.
            question: the question; exact matching does not need it.
        """
        golds = _accepted([gold] if isinstance(gold, str | int | float) else gold or [], choices or {})
        if not golds:
            return Verdict(None, None, "the gold answer is empty")
        extracted = extract_answer(completion)
        if extracted is None:
            return Verdict(False, None, "no answer found")
        if any(_same(extracted, text) for text in golds):
            return Verdict(True, extracted, "matches the gold answer")
        return Verdict(False, extracted, f"differs from the gold answer {golds[0]!r}")

    def grade_batch(self, items: Iterable[Mapping[str, Any]]) -> list[Verdict]:
        """Grade many; each item holds the arguments of `grade` by name."""
        return [self.grade(**item) for item in items]
