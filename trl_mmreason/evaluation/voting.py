"""Majority vote over samples: self-consistency (arXiv:2203.11171)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..grading import Grader, JudgeGrader, equivalent

Equality = Callable[[str, str], bool]


def cluster_answers(answers: Sequence[str | None], equal: Equality | None = None) -> list[list[int]]:
    """Cluster equivalent answers, so that 1/2 and 0.5 are one vote.

    Each answer joins the first cluster whose first member it equals, or begins one: `equal` need not be transitive, and
    the order of the answers decides where it is not.

    Args:
        answers: `None` where there is none; these are in no cluster.
        equal: whether two answers that are written differently say the same; the grader's `equivalent` by default.

    Returns:
        The numbers of the answers of each cluster, in order; the clusters in the order of their first members.
    """
    equal = equal or equivalent
    clusters: list[tuple[str, list[int]]] = []
    for number, answer in enumerate(answers):
        if answer is None:
            continue
        for first, members in clusters:
            if first == answer or equal(first, answer):
                members.append(number)
                break
        else:
            clusters.append((answer, [number]))
    return [members for _, members in clusters]


def winning_position(answers: Sequence[str | None], equal: Equality | None = None) -> int | None:
    """The position of the winning answer: the first member of the largest cluster.

    A missing answer never votes. Of clusters of one size the one that began first wins.

    Returns:
        A position in `answers`; `None` if nobody votes.
    """
    largest = max(cluster_answers(answers, equal), key=len, default=None)
    return None if largest is None else largest[0]


def votes_of(row: Mapping[str, Any], answers: Sequence[str | None], grader: Grader | JudgeGrader) -> list[str | None]:
    """Convert answers to votes: letters where they name one of the choices."""
    labels = [label for label, text in (row.get("choices") or {}).items() if text is not None]
    named = {}
    for answer in {answer for answer in answers if answer is not None} if labels else ():
        items = [{"completion": answer, "gold": label, "choices": row["choices"]} for label in labels]
        verdicts = grader.grade_batch(items)
        named[answer] = next((label for label, each in zip(labels, verdicts, strict=True) if each.correct), answer)
    return [None if answer is None else named.get(answer, answer) for answer in answers]
