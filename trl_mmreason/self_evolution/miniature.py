"""Lessons that prepare a miniature policy for self-evolution: answering, and judging answers."""

from __future__ import annotations

from collections.abc import Callable

from ..miniature.captions import DESCRIBE
from ..miniature.lessons import Lessons
from ..miniature.solutions import boxed_thoughts


def judged_answers(judge: Callable[[str, str], str], *, answers_every: int = 8) -> Lessons:
    r"""Lessons in answering `<think>3+4=7</think>\boxed{7}`, judging such answers one by one, and describing.

    The judge reads a picture in the words of a description. It learns to see from descriptions, as a response gives
    most digits away.

    Args:
        judge: question, response → what the user says to have it judged.
        answers_every: one problem of so many is answered. Every eighth is enough for one category, but not for two
            (docs/study.md).
    """
    return Lessons(boxed_thoughts, answer_tokens=32, describe=DESCRIBE, judge=judge, answers_every=answers_every)
