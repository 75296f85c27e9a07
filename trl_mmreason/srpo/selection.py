"""First solutions for the cold start: the policy writes them, and some are selected (section 3.1.1, appendix B.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from datasets import Dataset

from ..grading import Grader
from ..grading.grader import grader_settings
from ..messages import with_system_message
from ..sampling.asking import reference_answer
from ..sampling.difficulty import items_of, wait_for_all
from ..sampling.engine import Decoding, Engine, Failure, Request, derive_seed
from ..sampling.run import remember_questions, run
from ..sampling.store import Record, Store
from .response import first_answer, parse_reflection_response, tags_in

ANSWERS = "srpo-answers"


class Solution(NamedTuple):
    """A first solution of the policy.

    Attributes:
        id: "<id of the question>#<number of the answer>".
        position: of the question among the rows.
        cot, answer: what stands in the policy's tags.
        correct: whether the answer is right.
        ground_truth: the true answer.
        rating: of the reasoning, from 1 to 10; `None` without a scorer.
    """

    id: str
    position: int
    cot: str
    answer: str
    correct: bool
    ground_truth: str
    rating: float | None = None


@dataclass(frozen=True)
class SolutionSampler:
    """The policy, which solves, and who grades it."""

    policy: Engine
    decoding: Decoding
    grader: Grader
    cot_prompt: str | None
    seed: int

    def solve(self, rows: Dataset, store: Store, n: int, running: Mapping[str, Any]) -> None:
        """Draw and grade `n` answers to each question."""
        settings = {
            "engine": self.policy.settings,
            "decoding": asdict(self.decoding),
            "cot_prompt": self.cot_prompt,
            "seed": self.seed,
            "grader": grader_settings(self.grader),
        }
        remember_questions(store, ANSWERS, rows)
        run(store, ANSWERS, rows, self._answer, settings=settings, n=n, description="solving", **running)
        wait_for_all()

    def _answer(self, units: Sequence[tuple[Mapping[str, Any], int]]) -> list[dict[str, Any] | Failure]:
        asked = [
            Request(
                with_system_message(row["prompt"], self.cot_prompt),
                row.get("images") or (),
                seed=derive_seed(self.seed, row["id"], index),
            )
            for row, index in units
        ]
        drawn = self.policy.sample(asked, self.decoding)
        texts = ["" if isinstance(samples, Failure) else samples[0].text for samples in drawn]
        graded = items_of([row for row, _ in units], [first_answer(text) for text in texts])
        return [
            samples
            if isinstance(samples, Failure)
            else {"text": text, "finish_reason": samples[0].finish_reason, "correct": verdict.correct}
            for samples, text, verdict in zip(drawn, texts, self.grader.grade_batch(graded), strict=True)
        ]


def read_solutions(rows: Dataset, store: Store, n: int, dropped: Counter[str]) -> list[Solution]:
    """The answers that can be reflected on, in the order of the rows."""
    positions = {id_: position for position, id_ in enumerate(rows["id"])}
    golds = [reference_answer(answer) for answer in rows["answer"]]
    solutions = []
    for record in store.records(ANSWERS):
        if record.id not in positions or record.index >= n:
            continue
        position = positions[record.id]
        found = _solution(record, position, golds[position])
        if isinstance(found, Solution):
            solutions.append(found)
        else:
            dropped[found] += 1
    return sorted(solutions, key=lambda solution: solution.position)  # stable: answers stay in their order


def _solution(record: Record, position: int, ground_truth: str) -> Solution | str:
    """The solution that an answer holds, or why it holds none."""
    if record.status == "failed":
        return "answer: sampling failed"
    if record.payload["correct"] is None or not ground_truth:
        return "the gold answer cannot be used"
    if tags_in(ground_truth):
        return "the gold answer holds a tag"
    if record.payload["finish_reason"] == "length":
        return "answer: cut by the length limit"
    response = parse_reflection_response(record.payload["text"])
    cot, answer = response.first_think or "", response.first_answer or ""
    if not cot.strip() or not answer.strip():
        return f"answer: no {'<answer>' if cot.strip() else '<think>'}, or an empty one"
    if tags_in(cot) or tags_in(answer):
        return "answer: a tag inside <think> or <answer>"
    if not response.has_solution_format:
        return "answer: does not begin with <think>…</think><answer>…</answer>"
    id_ = f"{record.id}#{record.index}"
    return Solution(id_, position, cot, answer, record.payload["correct"], ground_truth)


def select_mix(
    correct: Sequence[bool],
    ratings: Sequence[float | None],
    *,
    size: int | None = None,
    right_share: float = 0.3,
) -> list[int]:
    """Positions of the best rated right and wrong solutions, so many that `right_share` of them are right.

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
    ranked = sorted(range(len(correct)), key=lambda k: _rank(ratings[k]), reverse=True)
    right = [k for k in ranked if correct[k]]
    wrong = [k for k in ranked if not correct[k]]
    for total in range(min(len(ranked), size or len(ranked)), 0, -1):
        rights = round(right_share * total)
        if rights <= len(right) and total - rights <= len(wrong):
            return sorted([*right[:rights], *wrong[: total - rights]])
    return []


def _rank(rating: float | None) -> float:
    return float("-inf") if rating is None else rating
