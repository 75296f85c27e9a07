"""What a miniature policy is taught before AdaPO, and before the baselines that answer twice."""

from __future__ import annotations

from ..miniature.cold_start import Lessons
from ..miniature.solutions import plain, quick


def two_answers(followup: str) -> Lessons:
    r"""Lessons to answer `3+4=\boxed{7}`, and to answer again after the user said `followup`."""
    return Lessons(plain, answer_tokens=16, followup=followup)


def quick_then_worked(followup: str) -> Lessons:
    r"""Lessons to answer `\boxed{7}` at a glance, and to work it out after the user's `followup`: `3+4=\boxed{7}`."""
    return Lessons(quick, answer_tokens=16, followup=followup, write_again=plain)
