"""STaR with self-correction (AdaPO, appendix B): training rows from the policy's right revisions of wrong answers.

The policy answers, and is told twice that there might be an error. Each revision that is right, of an answer that was
wrong, becomes a row of supervised training: question, wrong answer and what the user said to it → the revision.
Sampling, training and sampling again with the trained policy is done twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from datasets import Dataset

from ..data.images import IMAGE_COLUMNS
from ..generation.engine import Engine, Failure
from ..generation.protocols import TwoTurn
from ..jobs.answering import Answers, answer_questions
from ..jobs.difficulty import Filtered, tally
from ..jobs.store import Store

STAGE = "star"


class Revisions(Filtered):
    """Rows of revisions, and the number of other trajectories for each reason."""

    def __str__(self) -> str:
        return tally(len(self.rows), self.dropped, "trajectories")


def make_revisions(
    rows: Dataset,
    engine: Engine,
    store: Store,
    *,
    followup: str,
    revisions: int = 2,
    stage: str = STAGE,
    **asking: Any,
) -> Revisions:
    """Rows of right revisions.

    It resumes, and several processes share the work, as `answer_questions` says.

    Args:
        rows: with id, prompt, answer, and optionally images (or image) and choices.
        engine: the policy of this iteration.
        store: keeps every answer and every verdict.
        followup: user message after every answer but the last.
        revisions: number of revisions of an answer.
        stage: stage of the store; one for each iteration.
        **asking: arguments of `answer_questions`, such as `n`, `sampling_params`, `grader`, `seed` and `batch_size`.

    Returns:
        Rows with id, prompt (messages), images (or image) and completion (one message), at most one of each trajectory:
        its first right revision, unless the length limit cut it. And how many trajectories had none, by why.

    Raises:
        SettingsChanged: the store holds answers drawn in another way.
    """
    protocol = TwoTurn(followup, turns=1 + revisions)
    asking = {"description": "revising", **asking}
    return _learnt(rows, answer_questions(rows, engine, store, protocol, stage=stage, **asking), followup)


def _learnt(rows: Dataset, answers: Answers, followup: str) -> Revisions:
    chosen, revisions, dropped = [], [], Counter[str]()
    for position, (id_, samples) in enumerate(answers.items()):
        for index, sample in enumerate(samples):
            if isinstance(sample, Failure):
                dropped["sampling failed"] += 1
                continue
            correct = [turn["correct"] for turn in sample["turns"]]
            revised = first_revision(correct)
            if revised is None:
                dropped[_why_not(correct)] += 1
                continue
            if sample["finish_reasons"][revised] != "stop":  # it would be learnt with an end that it never had
                dropped["cut by the length limit"] += 1
                continue
            texts = [turn["text"] for turn in sample["turns"]]
            chosen.append(position)
            revisions.append({"id": f"{id_}#{index}", "said": texts[:revised], "completion": texts[revised]})
    picked = rows.select(chosen)

    def with_turns(row: dict[str, Any], place: int) -> dict[str, Any]:
        turns = [
            message
            for text in revisions[place]["said"]
            for message in ({"role": "assistant", "content": text}, {"role": "user", "content": followup})
        ]
        completion = [{"role": "assistant", "content": revisions[place]["completion"]}]
        return {"id": revisions[place]["id"], "prompt": [*row["prompt"], *turns], "completion": completion}

    columns = [name for name in ("id", "prompt", *IMAGE_COLUMNS) if name in picked.column_names]
    return Revisions(picked.select_columns(columns).map(with_turns, with_indices=True), dict(dropped))


def first_revision(correct: Sequence[bool | None]) -> int | None:
    """Find the first right answer after a wrong one; `None` if there is none.

    Args:
        correct: verdict on each answer of a trajectory, in order.
    """
    turns = zip(correct, correct[1:], strict=False)
    return next((place for place, (one, two) in enumerate(turns, start=1) if one is False and two), None)


def _why_not(correct: Sequence[bool | None]) -> str:
    if None in correct:
        return "the gold answer cannot be used"
    return "never wrong before right" if any(correct) else "never right"
