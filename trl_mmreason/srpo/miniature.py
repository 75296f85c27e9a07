"""SRPO's data for drawn problems: reflections of a teacher of known truth, for the cold start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

from ..miniature.tasks import Problem, to_dataset
from ..miniature.teacher import KnownTruthTeacher
from ..sampling.engine import Decoding, Engine
from ..sampling.store import Store
from .cold_start import make_reflections


def drawn_reflections(
    engine: Engine, problems: Sequence[Problem], replies: Path, *, max_new_tokens: int, right_share: float, seed: int
) -> Dataset:
    """Reflections of a teacher that knows the truth, on what a policy answers to drawn problems.

    Args:
        engine: the policy.
        problems: are solved, and reflected on.
        replies: the file that keeps every reply.
        max_new_tokens: bound of a solution.
        right_share: share of right first answers among the rows.
        seed: of the solutions.

    Raises:
        ValueError: there is nothing to reflect on.
    """
    with Store(replies) as store:
        made = make_reflections(
            to_dataset(problems),
            engine,
            KnownTruthTeacher(problems),
            store,
            decoding=Decoding(max_new_tokens),
            right_share=right_share,
            cot_prompt=None,  # a miniature is asked as it was taught; long prompts are noise to it
            system_prompt=None,
            second_thought=True,
            seed=seed,
            batch_size=250,
        )
    if not len(made.rows):
        raise ValueError(f"There is nothing to reflect on: {made}. Teach the policy more, or give more problems.")
    return made.rows
