"""The grader as an ordinary reward function of TRL."""

from __future__ import annotations

from typing import Any

from .grader import Grader


def accuracy_reward(completions: list, answer: list, choices: list | None = None, **kwargs: Any) -> list[float | None]:
    """1 for a right answer, 0 for a wrong one, `None` (no reward) where the gold answer cannot be used."""
    choices = choices or [None] * len(answer)
    verdicts = Grader().grade_batch(
        {"completion": completion[-1]["content"], "gold": gold, "choices": options}
        for completion, gold, options in zip(completions, answer, choices, strict=True)
    )
    return [None if verdict.correct is None else float(verdict.correct) for verdict in verdicts]
