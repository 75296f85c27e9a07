"""Lessons that prepare a miniature policy for AdaPO and for the baselines that answer twice."""

from __future__ import annotations

from ..miniature.lessons import Lessons
from ..miniature.solutions import plain, quick


def two_answers(followup: str) -> Lessons:
    r"""Lessons in answering `3+4=\boxed{7}`, and in answering again after the user's `followup`."""
    return Lessons(plain, answer_tokens=16, followup=followup)


def quick_then_worked(followup: str) -> Lessons:
    r"""Lessons in answering `\boxed{7}` at once, and, as often, `3+4=\boxed{7}` after the user's `followup`."""
    return Lessons(quick, answer_tokens=16, followup=followup, write_again=plain, again_every=1)
