"""Aggregate an evaluation's samples into metrics with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..generation.engine import Failure
from ..grading import Grader, JudgeGrader
from .benchmarks import Benchmark
from .metrics import Change, Estimate, bootstrap
from .question_table import QuestionTable, final_turn, is_right, is_usable, question_table
from .runner import Samples

LISTED = 50
"""So many failed samples and unusable gold answers are named; all of them are counted."""

_RESAMPLES = 500  # resamples of a benchmark's own scores, which take seconds


@dataclass(frozen=True)
class EvaluatedQuestion:
    """A question of an evaluation, without its samples.

    Attributes:
        id: id of the question.
        gold: the gold answer.
        problem: problem that the question is a variant of; its own id if it stands alone.
        usable: whether all answers to it have a verdict; otherwise it counts nowhere.
    """

    id: str
    gold: Any
    problem: str
    usable: bool


@dataclass(frozen=True)
class Results:
    """The numbers of an evaluation.

    Attributes:
        metrics: name → value and interval; `accuracy` is that of the final answer, one sample a question.
        categories: category → how many of the questions that can be graded it has, and their metrics.
        counts: questions, samples, and how many of them failed, were cut, had no answer …
        failures: the first samples that failed, with the reason. A failed sample counts as wrong.
        unusable: ids of the first questions whose gold answer cannot be used. They count nowhere.
        questions: all of them, in order.
        table: what each of them adds to each metric.
    """

    metrics: dict[str, Estimate]
    categories: dict[str, tuple[int, dict[str, Estimate]]]
    counts: dict[str, int]
    failures: list[dict[str, Any]]
    unusable: list[str]
    questions: list[EvaluatedQuestion]
    table: QuestionTable


def summarise(
    samples: Samples, benchmark: Benchmark | None = None, *, grader: Grader | JudgeGrader | None = None
) -> Results:
    """Compute all numbers of an evaluation.

    Args:
        samples: result of `evaluate`.
        benchmark: adds what is its own: `worst_case`, the share of problems of which every variant is right, and its
            scores; both of the first sample of each question.
        grader: says whether two answers say the same when they vote: its rules alone, whoever judges.
    """
    has_variants = benchmark is not None and benchmark.has_variants
    table = question_table(samples, grader=grader, has_variants=has_variants)
    questions = [
        EvaluatedQuestion(row["id"], row["answer"], row.get("group") or row["id"], is_usable(tried))
        for row, tried in zip(samples.rows, samples.samples, strict=True)
    ]
    usable = [k for k, question in enumerate(questions) if question.usable]
    kinds = [samples.rows[k].get("category") for k in usable]
    categories = {}
    for kind in sorted({kind for kind in kinds if kind}):
        chosen = [k for k, each in zip(usable, kinds, strict=True) if each == kind]
        categories[kind] = (len(chosen), _estimates(table, questions, chosen))
    unusable = [
        question.id
        for question, tried in zip(questions, samples.samples, strict=True)
        if not (question.usable or _was_unreadable(tried))
    ]
    failures = [
        {"id": row["id"], "sample": index, "reason": sample.reason}
        for row, tried in zip(samples.rows, samples.samples, strict=True)
        for index, sample in enumerate(tried)
        if isinstance(sample, Failure)
    ]
    return Results(
        metrics={**_estimates(table, questions, usable), **_own_scores(samples, usable, benchmark)},
        categories=categories if len(categories) > 1 else {},
        counts=_counts(samples, len(usable)),
        failures=failures[:LISTED],
        unusable=unusable[:LISTED],
        questions=questions,
        table=table,
    )


def compare_results(before: Results, after: Results) -> dict[str, Change]:
    """Compare two evaluations of the same questions; a question's before and after are drawn together.

    Prompts may differ; only questions that can be graded on both sides are counted, and only metrics that both have.

    Raises:
        ValueError: the questions, or their gold answers, are not the same.
    """
    first, second = ([(question.id, question.gold) for question in each.questions] for each in (before, after))
    if first != second:
        same = sum(one in second for one in first)
        raise ValueError(
            f"compare_results: {len(first)} questions before and {len(second)} after, of which {same} are the same; "
            "give evaluations of the same questions, with the same gold answers, in the same order."
        )
    pairs = zip(before.questions, after.questions, strict=True)
    usable = [k for k, (one, two) in enumerate(pairs) if one.usable and two.usable]
    problems = [before.questions[k].problem for k in usable]
    old, new = (each.table.of(usable).by_problem(problems) for each in (before, after))
    shared = [name for name in old.names if name in new.names]

    def change(drawn: np.ndarray) -> dict[str, float]:
        start, end = old.values(drawn), new.values(drawn)
        return {name: end[name] - start[name] for name in shared}

    changes = bootstrap(len(old.numerator), change)
    starts, ends = old.estimates(), new.estimates()
    return {name: Change(starts[name], ends[name], changes[name]) for name in shared}


def _estimates(
    table: QuestionTable, questions: Sequence[EvaluatedQuestion], chosen: Sequence[int]
) -> dict[str, Estimate]:
    return table.of(chosen).by_problem([questions[k].problem for k in chosen]).estimates()


def _own_scores(samples: Samples, usable: Sequence[int], benchmark: Benchmark | None) -> dict[str, Estimate]:
    """The benchmark's own scores, with intervals over problems."""
    if benchmark is None or benchmark.scores is None or not usable:
        return {}
    scores = benchmark.scores
    problems: dict[str, list[tuple[dict[str, Any], bool]]] = {}
    for k in usable:
        row, sample = samples.rows[k], samples.samples[k][0]
        about = {"id": row["id"], "category": row.get("category")}
        problem = row.get("group") or row["id"]
        problems.setdefault(problem, []).append((about, is_right(sample, samples.turns - 1)))
    groups = list(problems.items())

    def of(drawn: np.ndarray) -> dict[str, float]:
        # a problem that is drawn twice is two problems
        rows = [
            ({**about, "group": f"{group}~{copy}"}, right)
            for copy, (group, verdicts) in enumerate(groups[k] for k in drawn)
            for about, right in verdicts
        ]
        return scores([row for row, _ in rows], [right for _, right in rows])

    return bootstrap(len(groups), of, resamples=_RESAMPLES)


def _counts(samples: Samples, usable: int) -> dict[str, int]:
    done = [sample for row in samples.samples for sample in row if not isinstance(sample, Failure)]
    final = [turn for sample in done if (turn := final_turn(sample, samples.turns)) is not None]
    total = len(samples.rows) * samples.n
    counts = Counter(
        {
            "questions": len(samples.rows),
            "samples": total,
            "failed": total - len(done),
            "unusable_gold": len(samples.rows) - usable - sum(map(_was_unreadable, samples.samples)),
            "no_second_turn": len(done) - len(final),
            "no_answer": sum(turn["correct"] is False and turn["answer"] is None for turn in final),
            "malformed": sum("problem" in sample for sample in done),
        }
    )
    counts.update(f"decided_by_{turn['decided_by']}" for turn in final)
    if unreadable := sum(map(_unreadable_turns, done)):
        counts["decided_by_unreadable"] = unreadable  # also of a first answer, as each costs its question
    return dict(counts)


def _was_unreadable(tried: Sequence[dict[str, Any] | Failure]) -> bool:
    """Whether a question has no verdict because a judge's reply about an answer is missing or cannot be read."""
    return any(not isinstance(sample, Failure) and _unreadable_turns(sample) for sample in tried)


def _unreadable_turns(sample: dict[str, Any]) -> int:
    return sum(turn["decided_by"] == "unreadable" for turn in sample["turns"])
