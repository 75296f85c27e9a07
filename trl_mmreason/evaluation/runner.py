"""Let any policy answer a benchmark, and grade what it says; a killed run resumes and comes to the same result.

    with Store("runs/mathvista/answers.sqlite") as store:
        samples = evaluate(rows, engine, store, Direct())
    results = summarise(samples)

What was said and how it was graded are kept apart: another grader costs no new answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from ..sampling.answering import answer_questions
from ..sampling.engine import Decoding, Engine, Failure
from ..sampling.protocols import AnsweringProtocol
from ..sampling.store import Store

ANSWERS = "answers"
"""The stage of the store that keeps what was said."""

GREEDY = Decoding(max_new_tokens=2048, temperature=0.0)


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
    protocol: AnsweringProtocol,
    *,
    n: int = 1,
    decoding: Decoding = GREEDY,
    **asking: Any,
) -> Samples:
    """Sample and grade `n` answers to each question.

    Args:
        rows: of `load_benchmark` or `load_rows`.
        engine: the policy.
        store: keeps every answer and every verdict.
        protocol: how it is asked.
        n: samples a question.
        decoding: greedy by default.
        **asking: for `answer_questions`, such as `grader`, `system_prompt`, `seed` and `batch_size`.

    Raises:
        ValueError: several greedy samples, which would be all alike.
        SettingsChanged: the store holds answers that were drawn in another way, or to other questions.
    """
    if n > 1 and not decoding.temperature:
        raise ValueError(f"evaluate: n={n} greedy samples are all alike; give a temperature above 0, or n=1.")
    answers = answer_questions(rows, engine, store, protocol, stage=ANSWERS, n=n, decoding=decoding, **asking)
    return Samples(answers.rows.to_list(), n, answers.turns, list(map(list, answers)))
