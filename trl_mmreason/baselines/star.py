"""STaR with self-correction (AdaPO, appendix B): the policy's own right revisions of wrong answers, to learn from.

The policy answers, and is told twice that there might be an error. Each revision that is right, of an answer that was
wrong, becomes a row of supervised training: question, wrong answer and what the user said to it → the revision.
Sampling, training and sampling again with the trained policy is done twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from datasets import Dataset

from ..grading import Grader
from ..grading.grader import grader_settings
from ..sampling.difficulty import Filtered, items_of, wait_for_all
from ..sampling.engine import Decoding, Engine, Failure, derive_seed
from ..sampling.run import remember_questions, run
from ..sampling.store import Store
from ..sampling.turns import sample_turns

STAGE = "star"


def make_revisions(
    rows: Dataset,
    engine: Engine,
    store: Store,
    *,
    followup: str,
    revisions: int = 2,
    n: int = 1,
    decoding: Decoding | None = None,
    grader: Grader | None = None,
    stage: str = STAGE,
    seed: int = 0,
    **running: Any,
) -> Filtered:
    """Rows of right revisions.

    It goes on where a killed run stopped. Under several processes each samples its share; call it on all of them with
    the same store, and every process gets the whole result.

    Args:
        rows: with id, prompt, answer, and optionally images and choices.
        engine: the policy of this iteration.
        store: keeps every answer with its verdict.
        followup: what the user says to every answer but the last.
        revisions: how often an answer is revised.
        n: trajectories a question.
        decoding: how answers are drawn; by default as `Decoding()` says.
        grader: `Grader()` by default.
        stage: of the store; one for each iteration.
        seed: other seeds give other answers.
        **running: for `run`, such as `batch_size`.

    Returns:
        Rows with id, prompt (messages), images and completion (one message), at most one of each trajectory: its first
        right revision, unless the length limit cut it. And how many trajectories had none, by why.

    Raises:
        SettingsChanged: the store holds answers drawn in another way.
    """
    decoding, grader = decoding or Decoding(), grader or Grader()

    def answer(units: Sequence[tuple[Mapping[str, Any], int]]) -> list[dict[str, Any] | Failure]:
        asked = [row for row, _ in units]
        seeds = [derive_seed(seed, row["id"], index) for row, index in units]
        found = sample_turns(asked, engine, decoding, followup, seeds, turns=1 + revisions)
        said = [[] if isinstance(given, Failure) else [sample.text for sample in given] for given in found]
        flat = [(row, text) for row, texts in zip(asked, said, strict=True) for text in texts]
        verdicts = iter(grader.grade_batch(items_of([row for row, _ in flat], [text for _, text in flat])))
        return [
            given
            if isinstance(given, Failure)
            else {
                "texts": texts,
                "correct": [next(verdicts).correct for _ in texts],
                "finish_reasons": [sample.finish_reason for sample in given],
            }
            for given, texts in zip(found, said, strict=True)
        ]

    settings = {
        "engine": engine.settings,
        "decoding": asdict(decoding),
        "followup": followup,
        "revisions": revisions,
        "seed": seed,
        "grader": grader_settings(grader),
    }
    remember_questions(store, stage, rows)
    run(store, stage, rows, answer, settings=settings, n=n, **{"description": "revising", **running})
    wait_for_all()
    return _learnt(rows, store, stage, followup)


def _learnt(rows: Dataset, store: Store, stage: str, followup: str) -> Filtered:
    positions = {row_id: position for position, row_id in enumerate(rows["id"])}
    chosen, made, dropped = [], [], Counter[str]()
    for record in store.records(stage):
        if record.id not in positions:
            continue
        if record.status == "failed":
            dropped["sampling failed"] += 1
            continue
        texts, correct = record.payload["texts"], record.payload["correct"]
        revised = first_revision(correct)
        if revised is None:
            dropped[_why_not(correct)] += 1
            continue
        if record.payload["finish_reasons"][revised] != "stop":  # it would be learnt with an end that it never had
            dropped["cut by the length limit"] += 1
            continue
        chosen.append(positions[record.id])
        made.append({"id": f"{record.id}#{record.index}", "said": texts[:revised], "completion": texts[revised]})
    picked = rows.select(chosen)

    def with_turns(row: dict[str, Any], place: int) -> dict[str, Any]:
        turns = [
            message
            for text in made[place]["said"]
            for message in ({"role": "assistant", "content": text}, {"role": "user", "content": followup})
        ]
        completion = [{"role": "assistant", "content": made[place]["completion"]}]
        return {"id": made[place]["id"], "prompt": [*row["prompt"], *turns], "completion": completion}

    kept = [name for name in ("id", "prompt", "images") if name in picked.column_names]
    return Filtered(picked.select_columns(kept).map(with_turns, with_indices=True), dict(dropped))


def first_revision(correct: Sequence[bool | None]) -> int | None:
    """Which answer is the first right one behind a wrong one; `None` if there is none.

    Args:
        correct: of each answer of a trajectory, in order.
    """
    turns = zip(correct, correct[1:], strict=False)
    return next((place for place, (one, two) in enumerate(turns, start=1) if one is False and two), None)


def _why_not(correct: Sequence[bool | None]) -> str:
    if None in correct:
        return "the gold answer cannot be used"
    return "never wrong before right" if any(correct) else "never right"
