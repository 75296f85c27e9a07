"""Keep questions of medium difficulty, by the share of sampled answers that are right.

SRPO keeps 0.1 to 0.9, SOPHIA's GRPO 0.4 to 0.6 over 16 samples (appendix B.2 of both papers).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from datasets import Dataset

from ..generation.engine import Engine, Failure
from ..generation.protocols import AnsweringProtocol, Direct, last_verdict
from ..grading import Grader
from ..grading.reward import items_of
from .answering import answer_questions
from .store import Store

STAGE = "difficulty"
NOT_GRADED = "not graded: sampling failed, or the gold answer cannot be used"
"""The reason to drop a question without verdicts."""


class Filtered(NamedTuple):
    """The kept questions, and the number dropped for each reason."""

    rows: Dataset
    dropped: dict[str, int]

    def __str__(self) -> str:
        return tally(len(self.rows), self.dropped, "questions")


def tally(kept: int, dropped: Mapping[str, int], what: str) -> str:
    """Summarise: number kept, and a line for each reason to drop."""
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
    protocol: AnsweringProtocol | None = None,
    **asking: Any,
) -> Filtered:
    """Answer each question several times and keep it if low ≤ share of right answers ≤ high.

    Args:
        rows, engine, store: as for `answer_questions`, also about killed runs and several processes.
        low, high: shares between 0 and 1, both included.
        n: answers per question.
        protocol: how the engine is asked, `Direct()` by default; the last of several answers counts.
        **asking: arguments of `answer_questions`, such as `sampling_params`, `grader` and `batch_size`.

    Raises:
        ValueError: the bounds are not shares in order.
        SettingsChanged: the store holds answers drawn in another way.
    """
    if not 0 <= low <= high <= 1:
        raise ValueError(f"difficulty_filter: low is {low} and high {high}, expected 0 ≤ low ≤ high ≤ 1.")
    answers = answer_questions(rows, engine, store, protocol or Direct(), stage=STAGE, n=n, **asking)
    reasons = {}
    for id_, samples in answers.items():
        verdicts = [last_verdict(sample, answers.turns) for sample in samples if not isinstance(sample, Failure)]
        share = sum(map(bool, verdicts)) / max(len(verdicts), 1)
        if not verdicts or None in verdicts:
            reasons[id_] = NOT_GRADED
        elif share < low:
            reasons[id_] = f"too hard: fewer than {low:.0%} right"
        else:
            reasons[id_] = f"too easy: more than {high:.0%} right" if share > high else ""
    return keep_rows(rows, reasons)


def usable_questions(rows: Dataset, grader: Grader) -> list[int]:
    """Positions of rows with a usable gold answer, found by grading an empty answer."""
    columns = [name for name in ("id", "prompt", "answer", "choices", "tolerance") if name in rows.column_names]
    questions = rows.select_columns(columns).to_list()
    verdicts = grader.grade_batch(items_of(questions, [""] * len(rows)))
    return [position for position, verdict in enumerate(verdicts) if verdict.correct is not None]


def keep_rows(rows: Dataset, reasons: Mapping[str, str]) -> Filtered:
    """Keep the rows that have no reason to be dropped."""
    positions = [index for index, row_id in enumerate(rows["id"]) if not reasons[row_id]]
    return Filtered(rows.select(positions), dict(Counter(filter(None, reasons.values()))))
