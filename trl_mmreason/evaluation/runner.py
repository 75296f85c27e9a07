"""Let a policy answer a benchmark and grade the answers; a killed run resumes to the same result.

    with Store("runs/mathvista/answers.sqlite") as store:
        samples = evaluate(rows, engine, store, Direct())
    results = summarise(samples)

Answers, verdicts and scores are kept apart: another grader or scorer samples nothing again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from datasets import Dataset

from ..generation.engine import Engine, Failure, SamplingParams, UnsuitableEngine
from ..generation.protocols import AnsweringProtocol
from ..jobs.answering import answer_in_memory, answer_questions, distinct_ids
from ..jobs.store import Store
from ..jobs.verdicts import TEXTS, judge_is_silent

ANSWERS = "answers"
"""The stage of the store that keeps what was said."""

GREEDY = SamplingParams(max_new_tokens=2048, temperature=0.0)


@dataclass(frozen=True)
class Samples:
    """The samples of every question, in the order of the rows.

    Attributes:
        rows: the questions, without their images.
        n: samples per question.
        turns: answers that a whole sample has.
        samples: (Q, n) the payload of each sample: `turns`, each with `text`, `answer`, `correct`, `reason` and
            `decided_by`, the other fields of `Answered`, and `measures` if the protocol has any. A `Failure` where
            there is none.
    """

    rows: list[dict[str, Any]]
    n: int
    turns: int
    samples: list[list[dict[str, Any] | Failure]]


def evaluate(
    rows: Dataset,
    engine: Engine,
    store: Store | None,
    protocol: AnsweringProtocol,
    *,
    n: int = 1,
    sampling_params: SamplingParams = GREEDY,
    **asking: Any,
) -> Samples:
    """Sample and grade `n` answers to each question.

    Args:
        rows: result of `load_benchmark` or `load_rows`.
        engine: the policy.
        store: keeps every answer, verdict and score; `None` for a policy during training.
        protocol: how it is asked.
        sampling_params: greedy by default.
        **asking: arguments of `answer_questions`, or without a store for `answer_in_memory`, such as `grader`,
            `system_prompt`, `seed` and `batch_size`.

    Raises:
        ValueError: several greedy samples, which would be all alike.
        SettingsChanged: the store holds answers that were drawn in another way, or to other questions.
        UnsuitableEngine: with a store, no sample has an answer, or a judge was asked and no reply of it can be read.
    """
    if n > 1 and not sampling_params.temperature:
        raise ValueError(f"evaluate: n={n} greedy samples are all alike; give a temperature above 0, or n=1.")
    if store is None:
        samples = answer_in_memory(rows, engine, protocol, n=n, sampling_params=sampling_params, **asking)
        texts = rows.select_columns([name for name in TEXTS if name in rows.column_names]).to_list()
        rows_said = [{**row, "id": id_} for row, id_ in zip(texts, distinct_ids(rows), strict=True)]
    else:
        answers = answer_questions(
            rows, engine, store, protocol, stage=ANSWERS, n=n, sampling_params=sampling_params, **asking
        )
        rows_said, samples = answers.rows.to_list(), list(map(list, answers))
        _refuse_nothing(list(chain.from_iterable(samples)))
    measure = getattr(protocol, "measures", None)
    if measure is not None:
        for sample in chain.from_iterable(samples):
            if not isinstance(sample, Failure):
                sample["measures"] = measure(sample)
    return Samples(rows_said, n, protocol.turns, samples)


def _refuse_nothing(samples: list[dict[str, Any] | Failure]) -> None:
    """Refuse an evaluation in which every sample failed, or no reply of the judge could be read."""
    done = [sample for sample in samples if not isinstance(sample, Failure)]
    failed = [sample for sample in samples if isinstance(sample, Failure)]
    if failed and not done:
        raise UnsuitableEngine(
            f"all {len(failed)} samples failed, so that there is nothing to measure; the same command tries them "
            f"again. The first: {failed[0].reason}"
        )
    if judge_is_silent(done):
        unread = [turn for sample in done for turn in sample["turns"] if turn["decided_by"] == "unreadable"]
        raise UnsuitableEngine(
            f"the judge decided about none of {len(unread)} answers, which would count nowhere; the same command "
            f"asks it again. The first: {unread[0]['reason']}"
        )
