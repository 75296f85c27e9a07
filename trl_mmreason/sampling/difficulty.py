"""Keep the questions that are neither too easy nor too hard: by the share of sampled answers that are right.

SRPO keeps 0.1 to 0.9, SOPHIA's GRPO 0.4 to 0.6 over 16 samples (appendix B.2 of both papers).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from datasets import Dataset

from ..grading import Grader, JudgeGrader
from ..grading.grader import grader_settings
from ..grading.reward import grading_items
from ..messages import with_system_message
from .engine import Decoding, Engine, Failure, Request, derive_seed
from .run import remember_questions, run
from .store import Store

STAGE = "difficulty"


class Filtered(NamedTuple):
    """What a filter kept, and why it dropped the rest: reason → number of questions."""

    rows: Dataset
    dropped: dict[str, int]

    def __str__(self) -> str:
        return tally(len(self.rows), self.dropped, "questions")


def tally(kept: int, dropped: Mapping[str, int], what: str) -> str:
    """How many were kept of how many, and a line for each reason why others were not."""
    lines = [f"kept {kept} of {kept + sum(dropped.values())} {what}"]
    return "\n".join([*lines, *(f"dropped {count}: {reason}" for reason, count in dropped.items() if count)])


def difficulty_filter(
    rows: Dataset,
    engine: Engine,
    store: Store,
    *,
    low: float,
    high: float,
    n: int = 16,
    decoding: Decoding | None = None,
    grader: Grader | JudgeGrader | None = None,
    system_prompt: str | None = None,
    read: Callable[[str], str] | None = None,
    seed: int = 0,
    **running: Any,
) -> Filtered:
    """Answer each question `n` times and keep it if low ≤ share of right answers ≤ high.

    It goes on where a killed run stopped. Under several processes each samples its share of the answers; call it on all
    of them with the same store, and every process gets the whole result.

    Args:
        rows: rows with id, prompt, answer, and optionally images and choices.
        engine: what answers.
        store: keeps every answer with its verdict.
        low, high: shares between 0 and 1, both included.
        n: answers a question.
        decoding: how answers are drawn; by default as `Decoding()` says.
        grader: `Grader()` by default.
        system_prompt: put before every question; the rows that are kept stay as they are.
        read: what of an answer is graded; all of it by default.
        seed: other seeds give other answers.
        **running: for `run`, such as `batch_size`.

    Raises:
        ValueError: the bounds are no shares in order.
        SettingsChanged: the store holds answers drawn in another way.
    """
    if not 0 <= low <= high <= 1:
        raise ValueError(f"difficulty_filter: low is {low} and high {high}, expected 0 ≤ low ≤ high ≤ 1.")
    answer_questions(
        rows,
        engine,
        store,
        STAGE,
        n=n,
        decoding=decoding,
        grader=grader,
        system_prompt=system_prompt,
        read=read,
        seed=seed,
        **running,
    )
    shares = share_of_right_answers(store, STAGE)
    reasons = {row_id: _reason(shares.get(row_id), low, high) for row_id in rows["id"]}
    return keep_rows(rows, reasons)


def answer_questions(
    rows: Dataset,
    engine: Engine,
    store: Store,
    stage: str,
    *,
    n: int = 1,
    decoding: Decoding | None = None,
    grader: Grader | JudgeGrader | None = None,
    system_prompt: str | None = None,
    read: Callable[[str], str] | None = None,
    seed: int = 0,
    **running: Any,
) -> None:
    """Answer each question `n` times and grade the answers; see `difficulty_filter` for the arguments.

    Args:
        stage: of the store. Its records hold `text`, `finish_reason`, `tokens` (`None` if the engine does not say) and
            `correct` (`None` if the gold answer cannot be used).
    """
    decoding, grader = decoding or Decoding(), grader or Grader()

    def answer(units: Sequence[tuple[Mapping[str, Any], int]]) -> list[dict[str, Any] | Failure]:
        asked = [
            Request(
                with_system_message(row["prompt"], system_prompt),
                row.get("images") or (),
                seed=derive_seed(seed, row["id"], index),
            )
            for row, index in units
        ]
        drawn = engine.sample(asked, decoding)
        texts = ["" if isinstance(samples, Failure) else samples[0].text for samples in drawn]
        graded = texts if read is None else [read(text) for text in texts]
        verdicts = grader.grade_batch(items_of([row for row, _ in units], graded))
        return [
            samples
            if isinstance(samples, Failure)
            else {
                "text": text,
                "finish_reason": samples[0].finish_reason,
                "tokens": samples[0].tokens,
                "correct": verdict.correct,
            }
            for samples, text, verdict in zip(drawn, texts, verdicts, strict=True)
        ]

    settings = {
        "engine": engine.settings,
        "decoding": asdict(decoding),
        "seed": seed,
        "grader": grader_settings(grader),
    }
    if system_prompt is not None:
        settings["system_prompt"] = system_prompt
    if read is not None:
        settings["read"] = read.__qualname__
    remember_questions(store, stage, rows)
    run(store, stage, rows, answer, settings=settings, n=n, **{"description": "answering", **running})
    wait_for_all()


def wait_for_all() -> None:
    """Under several processes: until each has saved its share."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


def items_of(rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[dict[str, Any]]:
    """What the grader is asked about one text a row."""
    columns = {name: [row.get(column) for row in rows] for name, column in _COLUMNS.items()}
    return grading_items(texts, [row["answer"] for row in rows], **columns)


_COLUMNS = {"prompts": "prompt", "choices": "choices", "hint": "hint", "id": "id"}


def usable_questions(rows: Dataset, grader: Grader) -> list[int]:
    """Positions of the rows whose gold answer can be used, which no answer, graded against it, tells."""
    columns = [name for name in ("id", "prompt", "answer", "choices") if name in rows.column_names]
    questions = rows.select_columns(columns).to_list()
    verdicts = grader.grade_batch(items_of(questions, [""] * len(rows)))
    return [position for position, verdict in enumerate(verdicts) if verdict.correct is not None]


def share_of_right_answers(store: Store, stage: str) -> dict[str, float | None]:
    """Row id → share of its answers that are right; `None` where its gold answer cannot be used."""
    verdicts = defaultdict(list)
    for record in store.records(stage):
        if record.status == "done":
            verdicts[record.id].append(record.payload["correct"])
    return {row_id: None if None in found else sum(found) / len(found) for row_id, found in verdicts.items()}


def keep_rows(rows: Dataset, reasons: Mapping[str, str]) -> Filtered:
    """The rows without a reason to drop them."""
    kept = [index for index, row_id in enumerate(rows["id"]) if not reasons[row_id]]
    dropped: dict[str, int] = defaultdict(int)
    for reason in reasons.values():
        if reason:
            dropped[reason] += 1
    return Filtered(rows.select(kept), dict(dropped))


def _reason(share: float | None, low: float, high: float) -> str:
    if share is None:
        return "not graded: sampling failed, or the gold answer cannot be used"
    if share < low:
        return f"too hard: fewer than {low:.0%} right"
    return f"too easy: more than {high:.0%} right" if share > high else ""
