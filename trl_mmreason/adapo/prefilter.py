"""The offline filter of AdaPO (appendix A.2): drop questions that have nothing to teach the initial policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset

from ..generation.engine import Engine, Failure
from ..generation.protocols import TwoTurn, last_verdict
from ..jobs.answering import answer_questions
from ..jobs.difficulty import NOT_GRADED, Filtered, keep_rows
from ..jobs.store import Store
from .prompts import EVALUATION_PROMPT

STAGE = "adapo-prefilter"


def prefilter(
    rows: Dataset,
    engine: Engine,
    store: Store,
    *,
    n: int = 8,
    followup: str = EVALUATION_PROMPT,
    **asking: Any,
) -> Filtered:
    """Sample `n` two-turn trajectories of each question and keep it unless all are 1→1 or all are 0→0.

    It resumes, and several processes share the work, as `answer_questions` says. A first answer that hit the length
    limit gets no second turn, and a second answer that was never given is not right.

    Args:
        rows: rows with id, prompt, answer, and optionally images and choices.
        engine: the initial policy.
        store: keeps every trajectory and every verdict.
        n: trajectories a question.
        followup: user message between the two answers.
        **asking: arguments of `answer_questions`, such as `sampling_params`, `grader`, `seed` and `batch_size`.

    Raises:
        SettingsChanged: the store holds trajectories drawn in another way.
    """
    protocol = TwoTurn(followup)
    answers = answer_questions(rows, engine, store, protocol, stage=STAGE, n=n, description="two turns", **asking)
    types = {
        id_: [
            (sample["turns"][0]["correct"], last_verdict(sample, answers.turns))
            for sample in samples
            if not isinstance(sample, Failure)
        ]
        for id_, samples in answers.items()
    }
    return keep_rows(rows, {id_: _reason(trajectory_types) for id_, trajectory_types in types.items()})


_HOMOGENEOUS: dict[frozenset[tuple[bool | None, bool | None]], str] = {
    frozenset(): NOT_GRADED,
    frozenset({(True, True)}): "too easy: all 1→1",
    frozenset({(False, False)}): "too hard: all 0→0",
}


def _reason(types: Sequence[tuple[bool | None, bool | None]]) -> str:
    """Reason to drop a question with trajectories of these types; empty if it is kept."""
    if any(None in kind for kind in types):
        return NOT_GRADED
    return _HOMOGENEOUS.get(frozenset(types), "")
