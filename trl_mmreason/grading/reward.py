"""Use the grader in TRL's reward functions: its items and its logged metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..messages import question_text
from .async_rewards import Ahead
from .grader import Grader
from .verdict import Verdict

_COLUMNS = ("prompt", "choices", "id", "tolerance", "hint")


def get_accuracy_reward(grader: Grader) -> Callable[..., list[float | None]]:
    """Make a reward function for `GRPOTrainer`: 1 for answers that `grader` finds right.

    It gives 1 for a right answer, 0 for a wrong one and `None`, no reward, where there is no verdict: the gold answer
    cannot be used, or the judge's reply not be read. The data set needs a column `answer`; `choices`, `hint`,
    `tolerance` and `id` are used if there. See `log_verdicts` for what it logs.

    Args:
        grader: a `Grader`, a `JudgeGrader`, or whatever has their `grade_batch`.
    """
    graded = Ahead(grader.grade_batch, grader)

    def accuracy_reward(
        completions: list,
        answer: list,
        prompts: list | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        texts = [one if isinstance(one, str) else _last_answer(one) for one in completions]
        others = (columns.get(name) for name in _COLUMNS[1:])
        verdicts = graded.finish(grading_items(texts, answer, prompts, *others))
        if log_metric:
            log_verdicts(verdicts, log_metric)
        return [None if verdict.correct is None else float(verdict.correct) for verdict in verdicts]

    def begin(rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> None:
        graded.begin(ended_items(rows, texts, _COLUMNS))

    accuracy_reward.begin = begin  # type: ignore[attr-defined]  # `GroupGRPOTrainer` looks for it
    return accuracy_reward


accuracy_reward = get_accuracy_reward(Grader())
"""The reward function with the default grader."""


def _last_answer(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of a completion that ends with an answer; "" where a tool's result or a call is the end."""
    last = messages[-1]
    return last["content"] if last["role"] == "assistant" and not last.get("tool_calls") else ""


def grading_items(
    texts: Sequence[str],
    answer: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    choices: Sequence[Any] | None = None,
    id: Sequence[Any] | None = None,
    tolerance: Sequence[Any] | None = None,
    hint: Sequence[Any] | None = None,
) -> list[dict[str, Any]]:
    """Make the items for `Grader.grade_batch` from the columns of a batch."""
    questions = None if prompts is None else [question_text(prompt) for prompt in prompts]
    known = {"completion": texts, "gold": answer, "question": questions, "choices": choices, "id": id, "hint": hint}
    columns = {name: values for name, values in (known | {"tolerance": tolerance}).items() if values is not None}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def items_of(rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Make the grader's items from rows and one response a row."""
    columns = [[row.get(name) for row in rows] for name in _COLUMNS]
    return grading_items(texts, [row["answer"] for row in rows], *columns)


def ended_items(
    rows: Sequence[Mapping[str, Any]], texts: Sequence[str], columns: Sequence[str] = _COLUMNS[:-1]
) -> list[dict[str, Any]]:
    """Make the items of finished answers, equal to those that a reward function makes from these columns."""
    column_values = [[row[name] for row in rows] if name in rows[0] else None for name in columns]
    return grading_items(texts, [row.get("answer") for row in rows], *column_values)


def log_verdicts(verdicts: Sequence[Verdict], log_metric: Callable[[str, float], None]) -> None:
    """Log problems of grading, each as a share of these answers.

    `grading/refused`: too large to compare; `grading/no_answer`: no answer in the completion; both count as wrong.
    `grading/unusable_gold`: no verdict, because the gold answer cannot be used; `grading/unreadable`: none, because the
    judge's reply is missing or cannot be read.
    """
    flags = {
        "refused": [verdict.decided_by == "size" for verdict in verdicts],
        "unusable_gold": [verdict.correct is None and verdict.decided_by != "unreadable" for verdict in verdicts],
        "unreadable": [verdict.decided_by == "unreadable" for verdict in verdicts],
        "no_answer": [verdict.correct is False and verdict.extracted is None for verdict in verdicts],
    }
    for name, values in flags.items():
        log_metric(f"grading/{name}", sum(values) / max(len(values), 1))


def grade_answers(grader: Any, rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[Verdict]:
    """Grade one response per row with a `Grader`, a `JudgeGrader`, or whatever has their `grade_batch`.

    The rows have prompt and answer, and optionally choices, id, hint and `tolerance` (see `Grader.grade`). A gold
    answer that the grader cannot use has no verdict, unless its row's tolerance says `as_text`.
    """
    return grader.grade_batch(items_of(rows, texts))
