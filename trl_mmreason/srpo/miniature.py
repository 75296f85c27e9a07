"""Lessons that prepare a miniature policy for SRPO, and reflections by a teacher that knows the truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

from ..miniature.captions import DESCRIBE
from ..miniature.lessons import Lessons
from ..miniature.solutions import tagged, tagged_quick
from ..miniature.tasks import Problem, problems_dataset
from ..miniature.teacher import KnownTruthTeacher
from ..sampling.engine import Engine, SamplingParams
from ..sampling.store import Store
from .cold_start import ReflectionMaking, make_reflections

TAGGED_ANSWERS = Lessons(tagged, answer_tokens=32)
"""To answer `<think>3+4=7</think> <answer>7</answer>`."""

QUICK_TAGGED_ANSWERS = Lessons(tagged_quick, answer_tokens=32, describe=DESCRIBE)
"""To answer `<think>7</think> <answer>7</answer>` at a glance, and to describe, which is how it learns to see."""


def drawn_reflections(
    engine: Engine, problems: Sequence[Problem], replies: Path, *, max_new_tokens: int, right_share: float, seed: int
) -> Dataset:
    """Make reflections, by a teacher that knows the truth, on a policy's answers to drawn problems.

    Args:
        engine: the policy.
        problems: are solved, and reflected on.
        replies: the file that keeps every reply.
        max_new_tokens: token limit of a solution.
        right_share: share of right first answers among the rows.
        seed: seed of the solutions.

    Raises:
        ValueError: there is nothing to reflect on.
    """
    with Store(replies) as store:
        reflections = make_reflections(
            problems_dataset(problems),
            engine,
            KnownTruthTeacher(problems),
            store,
            ReflectionMaking(
                sampling_params=SamplingParams(max_new_tokens),
                right_share=right_share,
                cot_prompt=None,  # a miniature is asked as it was taught; long prompts are noise to it
                system_prompt=None,
                second_thought=True,
                seed=seed,
            ),
            batch_size=250,
        )
    if not len(reflections.rows):
        raise ValueError(
            f"There is nothing to reflect on: {reflections}. Teach the policy more, or give more problems."
        )
    return reflections.rows
