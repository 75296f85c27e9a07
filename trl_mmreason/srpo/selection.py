"""Read and select first solutions for the cold start (section 3.1.1, appendix B.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from datasets import Dataset

from ..generation.engine import Failure
from ..jobs.answering import Answers
from ..jobs.asking import reference_answer
from .response import parse_reflection_response, tags_in


class PolicySolution(NamedTuple):
    """A first solution of the policy.

    Attributes:
        id: "<id of the question>#<number of the answer>".
        position: position of the question among the rows.
        cot, answer: what is in the policy's tags.
        correct: whether the answer is right.
        ground_truth: the true answer.
        rating: rating of the reasoning, from 1 to 10; `None` without a scorer.
    """

    id: str
    position: int
    cot: str
    answer: str
    correct: bool
    ground_truth: str
    rating: float | None = None


def read_solutions(rows: Dataset, answers: Answers, dropped: Counter[str]) -> list[PolicySolution]:
    """Read the answers that a teacher can reflect on, in the order of the rows.

    Args:
        dropped: why others cannot → how many; grows.
    """
    golds = [reference_answer(answer) for answer in rows["answer"]]
    solutions = []
    for position, (id_, samples) in enumerate(answers.items()):
        for index, sample in enumerate(samples):
            solution = _solution(sample, f"{id_}#{index}", position, golds[position])
            if isinstance(solution, PolicySolution):
                solutions.append(solution)
            else:
                dropped[solution] += 1
    return solutions


def _solution(sample: Mapping[str, Any] | Failure, id_: str, position: int, ground_truth: str) -> PolicySolution | str:
    """Parse an answer's solution, or return the reason why there is none."""
    if isinstance(sample, Failure):
        return "answer: sampling failed"
    (turn,) = sample["turns"]
    if turn["correct"] is None or not ground_truth:
        return "the gold answer cannot be used"
    if tags_in(ground_truth):
        return "the gold answer holds a tag"
    if "length" in sample["finish_reasons"]:
        return "answer: cut by the length limit"
    response = parse_reflection_response(turn["text"])
    cot, answer = response.first_think or "", response.first_answer or ""
    if not cot.strip() or not answer.strip():
        return f"answer: no {'<answer>' if cot.strip() else '<think>'}, or an empty one"
    if tags_in(cot) or tags_in(answer):
        return "answer: a tag inside <think> or <answer>"
    if not response.has_solution_format:
        return "answer: does not begin with <think>…</think><answer>…</answer>"
    return PolicySolution(id_, position, cot, answer, turn["correct"], ground_truth)


def select_mix(
    correct: Sequence[bool],
    ratings: Sequence[float | None],
    *,
    size: int | None = None,
    right_share: float = 0.3,
) -> list[int]:
    """Positions of the best rated right and wrong solutions, of which `right_share` are right.

    Where one side is short the whole shrinks, so that the mix stays: the result is the largest of at most `size` whose
    number of right ones is `right_share` of it, rounded.

    Args:
        correct: whether each solution is right.
        ratings: the higher the better; among equals the earlier wins. `None` is below all.
        size: how many to select; by default as many as the mix allows.
        right_share: between 0 and 1; the paper has 0.3.

    Returns:
        The positions in ascending order.

    Raises:
        ValueError: size or share are out of range.
    """
    if not 0 <= right_share <= 1 or (size is not None and size < 1):
        raise ValueError(
            f"select_mix: got right_share={right_share} and size={size}; expected 0 ≤ right_share ≤ 1, and size ≥ 1 or "
            "None for as many as the mix allows."
        )
    scores = [-math.inf if rating is None else rating for rating in ratings]
    ranked = sorted(range(len(correct)), key=scores.__getitem__, reverse=True)
    right = [k for k in ranked if correct[k]]
    wrong = [k for k in ranked if not correct[k]]
    for total in range(min(len(ranked), size or len(ranked)), 0, -1):
        rights = round(right_share * total)
        if rights <= len(right) and total - rights <= len(wrong):
            return sorted([*right[:rights], *wrong[: total - rights]])
    return []
