"""Let any policy answer a benchmark, and grade what it says; killed at any moment, it goes on to the same result.

    with Store("runs/mathvista/answers.sqlite") as store:
        samples = evaluate(rows, engine, store, Direct())
    results = summarise(samples)

What was said and how it was graded are kept apart: another grader costs no new answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from datasets import Dataset

from ..grading import Grader, JudgeGrader, Verdict
from ..grading.grader import grader_settings
from ..messages import with_system_message
from ..sampling.difficulty import wait_for_all
from ..sampling.engine import Decoding, Engine, Failure
from ..sampling.run import remember_questions, run
from ..sampling.store import Record, Store
from .protocols import Answered, EvaluationProtocol, Unit
from .provenance import grader_version
from .verdicts import grade_answers

ANSWERS = "answers"
"""The stage of the store that keeps what was said; `verdict_stage` names the one of the verdicts."""

GREEDY = Decoding(max_new_tokens=2048, temperature=0.0)

_TEXTS = ("id", "prompt", "answer", "choices", "category", "hint", "group", "tolerance")  # all but the pictures


@dataclass(frozen=True)
class Samples:
    """What became of every question, in the order of the rows.

    Attributes:
        rows: the questions, without their pictures.
        n: samples a question.
        turns: answers that a whole sample has.
        samples: (Q, n) the payload of each sample: `turns`, each with `text`, `answer`, `correct`, `reason` and
            `decided_by`, and the other fields of `Answered`. A `Failure` where there is none.
    """

    rows: list[dict[str, Any]]
    n: int
    turns: int
    samples: list[list[dict[str, Any] | Failure]]


def evaluate(
    rows: Dataset,
    engine: Engine,
    store: Store,
    protocol: EvaluationProtocol,
    *,
    n: int = 1,
    decoding: Decoding = GREEDY,
    grader: Grader | JudgeGrader | None = None,
    system_prompt: str | None = None,
    seed: int = 0,
    batch_size: int = 32,
    retry_failed: bool = False,
    retries: int = 2,
    description: str = "answering",
) -> Samples:
    """Sample and grade `n` answers to each question.

    It goes on where a killed run stopped. Under several processes each takes its share; call it on all of them with the
    same store, and every process gets the whole result.

    Args:
        rows: of `load_benchmark` or `load_rows`.
        engine: the policy.
        store: keeps every answer and every verdict.
        protocol: how it is asked.
        n: samples a question.
        decoding: greedy by default.
        grader: `Grader()` by default. With another one than before only the grading is done again.
        system_prompt: put before every question.
        seed: other seeds give other samples.
        batch_size: samples asked for at once; it changes no answer, as far as the engine keeps its promise.
        retry_failed: ask again for what failed in an earlier run.
        retries: as for `sampling.run.run`.
        description: beside the progress bar.

    Raises:
        ValueError: several greedy samples, which would be all alike.
        SettingsChanged: the store holds answers that were drawn in another way, or to other questions.
    """
    if n > 1 and not decoding.temperature:
        raise ValueError(f"evaluate: n={n} greedy samples are all alike; give a temperature above 0, or n=1.")
    grader = grader or Grader()
    running: dict[str, Any] = {"batch_size": batch_size, "retry_failed": retry_failed, "retries": retries}

    def answer(units: list[Unit]) -> list[dict[str, Any] | Failure]:
        asked = [({**row, "prompt": with_system_message(row["prompt"], system_prompt)}, index) for row, index in units]
        answers = protocol.answer(asked, engine, decoding, seed)
        return [answered if isinstance(answered, Failure) else _payload(answered) for answered in answers]

    settings = {
        "engine": engine.settings,
        "protocol": protocol.settings,
        "decoding": asdict(decoding),
        "system_prompt": system_prompt,
        "seed": seed,
    }
    remember_questions(store, ANSWERS, rows)
    run(store, ANSWERS, rows, answer, settings=settings, n=n, description=description, **running)
    wait_for_all()
    texts = rows.select_columns([name for name in _TEXTS if name in rows.column_names]).to_list()
    answers = _found(store, ANSWERS, texts, n)
    verdicts = _graded(store, texts, answers, n, grader, running)
    return Samples(texts, n, protocol.turns, _joined(texts, answers, verdicts, n))


def verdict_stage(grader: Grader | JudgeGrader) -> str:
    """The stage that keeps this grader's verdicts."""
    return f"verdicts-{hashlib.sha256(_graded_by(grader).encode()).hexdigest()[:12]}"


def _graded_by(grader: Grader | JudgeGrader) -> str:
    return f"{grader_settings(grader)} {grader_version()}"


def _found(store: Store, stage: str, rows: Sequence[Mapping[str, Any]], n: int) -> dict[tuple[str, int], Record]:
    units = [(row["id"], index) for row in rows for index in range(n)]
    return {(record.id, record.index): record for record in store.find(stage, units)}


def _graded(
    store: Store,
    rows: Sequence[Mapping[str, Any]],
    answers: Mapping[tuple[str, int], Record],
    n: int,
    grader: Grader | JudgeGrader,
    running: Mapping[str, Any],
) -> dict[str, Record]:
    """Unit → the verdicts on its turns; those of a sample that failed are not there."""
    asked = [
        {"id": unit_name(row, index), "row": row, "turns": record.payload["turns"]}
        for row in rows
        for index in range(n)
        if (record := answers.get((row["id"], index))) and record.status == "done"
    ]

    def grade(units: list[Unit]) -> list[dict[str, Any] | Failure]:
        turns = [(unit["row"], turn["graded"]) for unit, _ in units for turn in unit["turns"]]
        verdicts = iter(grade_answers(grader, [row for row, _ in turns], [text for _, text in turns]))
        return [{"turns": [_said(next(verdicts)) for _ in unit["turns"]]} for unit, _ in units]

    stage = verdict_stage(grader)
    run(store, stage, asked, grade, settings={"grader": _graded_by(grader)}, description="grading", **running)
    wait_for_all()
    return {record.id: record for record in store.find(stage, [(unit["id"], 0) for unit in asked])}


def unit_name(row: Mapping[str, Any], index: int) -> str:
    """The id of a sample's verdicts: under another tolerance they are others."""
    tolerance = row.get("tolerance")
    return f"{row['id']}#{index}" + (f" {json.dumps(tolerance, sort_keys=True)}" if tolerance else "")


def _payload(answered: Answered) -> dict[str, Any]:
    fields = answered._asdict()
    fields["turns"] = [turn._asdict() for turn in answered.turns]
    return {name: value for name, value in fields.items() if value is not None}


def _said(verdict: Verdict) -> dict[str, Any]:
    fields = verdict._asdict()
    return {"answer": fields.pop("extracted"), **fields}


def _joined(
    rows: Sequence[Mapping[str, Any]],
    answers: Mapping[tuple[str, int], Record],
    verdicts: Mapping[str, Record],
    n: int,
) -> list[list[dict[str, Any] | Failure]]:
    def sample(row: Mapping[str, Any], index: int) -> dict[str, Any] | Failure:
        answer = answers.get((row["id"], index))
        if answer is None or answer.status == "failed":
            return Failure("was not sampled" if answer is None else answer.reason)
        verdict = verdicts[unit_name(row, index)]
        if verdict.status == "failed":
            return Failure(f"was not graded: {verdict.reason}")
        turns = [
            {"text": said["text"], **graded}
            for said, graded in zip(answer.payload["turns"], verdict.payload["turns"], strict=True)
        ]
        return {**answer.payload, "turns": turns}

    return [[sample(row, index) for index in range(n)] for row in rows]
