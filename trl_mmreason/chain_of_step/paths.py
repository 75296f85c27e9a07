"""Reasoning paths: a policy's text read as a chain, and its scores by a process reward model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from datasets import Dataset
from torch import Tensor

from ..data.images import pictures_of
from ..data.rows import Row
from ..generation.engine import SamplingParams
from ..jobs.questions import image_digests
from .objective import trajectory_score
from .template import ANSWER_END, ANSWER_START, STEP_START, ChainError, has_token, parse_chain, scored_ends

if TYPE_CHECKING:
    from .process_reward import Scores

SAMPLING_PARAMS = SamplingParams(temperature=1.0, top_p=0.95)
"""How paths and continuations are drawn (appendix C)."""

_WORDS = ("id", "prompt", "answer", "choices")  # columns of a question that need no picture to be decoded


class ProcessReward(Protocol):
    """Interface of a scorer of chains: a `ProcessRewardModel`, or the client of its server."""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines its scores, as JSON; no secrets."""
        ...

    def score(self, rows: Sequence[Row]) -> list[Scores]:
        """Score the steps and the answer of each row's chain, as `ProcessRewardModel.score` does."""
        ...


class ReadPath(NamedTuple):
    """A policy's text, read as a chain or the beginning of one.

    Attributes:
        steps: how many whole steps it begins with.
        answer: the chain's answer; `None` if it does not get so far.
        scorable: the longest beginning that a process reward model can score: all of a chain, or up to the last whole
            step before its first fault; "" if there is nothing to score.
        problem: why it is no whole chain, one of `CHAIN_PROBLEMS`; `None` if it is one.
    """

    steps: int
    answer: str | None
    scorable: str
    problem: str | None


CHAIN_PROBLEMS = ("no_chain", "no_step", "no_answer", "malformed")
"""None of the template's tokens; an answer without a step; steps without an answer; anything else."""


class Path(NamedTuple):
    """One sampled path.

    Attributes:
        index: which sample of its question it is.
        text: text as sampled.
        tokens: number of sampled tokens; `None` if the engine does not say.
        correct: whether the chain's answer is right, False without one; `None` if the gold answer cannot be used.
        score: the trajectory score; `None` without a process reward model.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index
    text: str
    tokens: int | None
    correct: bool | None
    score: float | None = None


class PathScore(NamedTuple):
    """The scores that a process reward model gives a path.

    Attributes:
        steps: the scores of its whole steps.
        answer: the answer's; `None` without one.
        total: the trajectory score, in [0, 1].
    """

    steps: list[float]
    answer: float | None
    total: float


def read_path(text: str) -> ReadPath:
    """Read a policy's text as a path; never raises."""
    if not has_token(text):
        return ReadPath(0, None, "", "no_chain")
    try:
        ends = scored_ends(text)
    except ChainError as error:
        scorable = text[: error.whole]
        return ReadPath(len(scored_ends(scorable).steps), None, scorable, "malformed")
    if ends.answer is None:
        return ReadPath(len(ends.steps), None, text if ends.steps else "", "no_answer" if ends.steps else "malformed")
    if not ends.steps:
        return ReadPath(0, text.partition(ANSWER_START)[2].rpartition(ANSWER_END)[0], text, "no_step")
    return ReadPath(len(ends.steps), parse_chain(text).answer, text, None)


def step_texts(scorable: str) -> list[str]:
    """Steps of a `ReadPath.scorable`, each from its opening to its closing token."""
    return [scorable[scorable.rindex(STEP_START, 0, end) : end] for end in scored_ends(scorable).steps]


def path_metrics(paths: Sequence[Path], count_tokens: Callable[[str], int]) -> dict[str, float]:
    """Measure a policy's paths as the paper does over the rounds (Fig. 6); NaN for a mean of nothing.

    Args:
        paths: paths of any questions, all of them scored or none.
        count_tokens: counts the tokens of a string.

    Returns:
        steps (mean number), step_tokens (mean length of a step), complete (share of whole chains), accuracy (of the
        paths that can be graded), and with scores trajectory_score.
    """
    read = [read_path(path.text) for path in paths]
    lengths = [count_tokens(step) for parsed in read for step in step_texts(parsed.scorable)]
    metrics = {
        "steps": mean([parsed.steps for parsed in read]),
        "step_tokens": mean(lengths),
        "complete": mean([parsed.problem is None for parsed in read]),
        "accuracy": mean([path.correct for path in paths if path.correct is not None]),
    }
    scores = [path.score for path in paths if path.score is not None]
    return {**metrics, "trajectory_score": mean(scores)} if scores else metrics


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")


def score_paths(
    score: Callable[[list[Row]], list[Scores]], rows: Sequence[Row], texts: Sequence[str], step_weight: float = 0.2
) -> list[PathScore]:
    """Score a policy's texts; a missing or malformed part has no score and raises nothing.

    Args:
        score: method of a process reward model that scores the chains, in one call.
        rows: the question of each text: `prompt`, and `images` or `image`.
        texts: the paths.
        step_weight: w of the trajectory score.
    """
    scorable = scorable_rows(rows, texts)
    scores = iter(score([row for row in scorable if row]) if any(scorable) else [])
    return [path_score(*next(scores), step_weight) if row else PathScore([], None, 0.0) for row in scorable]


def scorable_rows(rows: Sequence[Row], texts: Sequence[str]) -> list[Row]:
    """Rows for a process reward model, one for each text; {} where nothing can be scored."""
    scorable = [read_path(text).scorable for text in texts]
    return [
        {"prompt": row["prompt"], "images": pictures_of(row), "completion": text} if text else {}
        for row, text in zip(rows, scorable, strict=True)
    ]


def path_score(steps: Tensor | Sequence[float], answer: float | None, step_weight: float) -> PathScore:
    """Scores of one path and its trajectory score, in which a missing answer counts 0."""
    total = trajectory_score(steps, answer or 0.0, step_weight).item()
    return PathScore(torch.as_tensor(steps).tolist(), answer, total)


def with_ids(questions: Dataset) -> Dataset:
    """Return the questions with ids to store paths by; without an id column, ids are made from the words."""
    if "id" in questions.column_names:
        return questions
    return questions.add_column(
        "id", [f"{number}-{digest}" for number, digest in enumerate(question_digests(questions))]
    )


def question_digests(questions: Dataset) -> list[str]:
    """Return a digest of each question's words and pictures."""
    words = questions.select_columns([name for name in _WORDS if name in questions.column_names])
    digests = zip(words, image_digests(questions), strict=True)
    return [hashlib.sha256(f"{row}{image or ''}".encode()).hexdigest()[:16] for row, image in digests]
