"""Chains of a policy: each text is parsed once into a `ReadPath`, which is passed on, and scored as far as it goes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from datasets import Dataset
from torch import Tensor

from ..data.images import images_of
from ..data.rows import Row
from ..generation.engine import SamplingParams
from ..jobs.questions import image_digests
from .objective import trajectory_score
from .template import ANSWER_END, ANSWER_START, STEP_START, ChainError, ScorableText, has_token, scored_ends

if TYPE_CHECKING:
    from .process_reward import Scores

SAMPLING_PARAMS = SamplingParams(temperature=1.0, top_p=0.95)
"""How paths and continuations are drawn (appendix C)."""

CHAIN_PROBLEMS = ("no_chain", "no_step", "no_answer", "malformed")
"""None of the template's tokens; an answer without a step; steps without an answer; anything else."""

_WORDS = ("id", "prompt", "answer", "choices")  # columns of a question that need no image to be decoded


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
        text: text as sampled.
        step_ends: positions after its whole steps, up to its first fault.
        problem: why it is no whole chain, one of `CHAIN_PROBLEMS`; `None` if it is one.
        answer: the chain's answer; `None` if it does not get so far. Stored samples have the grader's reading instead.
    """

    text: str
    step_ends: Sequence[int]
    problem: str | None
    answer: str | None = None

    @property
    def steps(self) -> int:
        """Number of whole steps."""
        return len(self.step_ends)

    @property
    def scorable(self) -> ScorableText:
        """All of a chain, or up to the last whole step before its first fault; "" if there is nothing to score."""
        if self.problem in ("no_chain", "malformed"):
            return ScorableText(self.text[: self.step_ends[-1] if self.step_ends else 0])
        return ScorableText(self.text)

    @property
    def step_texts(self) -> list[str]:
        """The whole steps, each from its opening to its closing token."""
        return [self.text[self.text.rindex(STEP_START, 0, end) : end] for end in self.step_ends]


def read_path(text: str) -> ReadPath:
    """Parse a policy's text; never raises."""
    if not has_token(text):
        return ReadPath(text, [], "no_chain")
    try:
        ends = scored_ends(text)
    except ChainError as error:
        return ReadPath(text, error.step_ends, "malformed")
    if ends.answer is None:
        return ReadPath(text, ends.steps, "no_answer" if ends.steps else "malformed")
    start = text.rindex(ANSWER_START, 0, ends.answer) + len(ANSWER_START)
    answer = text[start : ends.answer - len(ANSWER_END)]
    return ReadPath(text, ends.steps, None if ends.steps else "no_step", answer)


def stored_path(sample: Mapping[str, Any]) -> ReadPath:
    """The path of a sample of `Answers`, as it was parsed when it was sampled; older stores' samples are parsed."""
    text = sample["turns"][0]["text"]
    return ReadPath(text, sample["step_ends"], sample.get("problem")) if "step_ends" in sample else read_path(text)


class Path(NamedTuple):
    """One sampled path.

    Attributes:
        index: which sample of its question it is.
        read: the text, parsed.
        tokens: number of sampled tokens; `None` if the engine does not say.
        correct: whether the chain's answer is right, False without one; `None` if the gold answer cannot be used.
        score: the trajectory score; `None` without a process reward model.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index
    read: ReadPath
    tokens: int | None
    correct: bool | None
    score: float | None = None

    @property
    def text(self) -> str:
        """As sampled."""
        return self.read.text


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


def path_metrics(paths: Sequence[Path], count_tokens: Callable[[str], int]) -> dict[str, float]:
    """Measure a policy's paths as the paper does over the rounds (Fig. 6); NaN for a mean of nothing.

    Args:
        paths: paths of any questions, all of them scored or none.
        count_tokens: counts the tokens of a string.

    Returns:
        steps (mean number), step_tokens (mean length of a step), complete (share of whole chains), accuracy (of the
        paths that can be graded), and with scores trajectory_score.
    """
    metrics = {
        "steps": mean([path.read.steps for path in paths]),
        "step_tokens": mean([count_tokens(step) for path in paths for step in path.read.step_texts]),
        "complete": mean([path.read.problem is None for path in paths]),
        "accuracy": mean([path.correct for path in paths if path.correct is not None]),
    }
    scores = [path.score for path in paths if path.score is not None]
    return {**metrics, "trajectory_score": mean(scores)} if scores else metrics


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")


def score_paths(
    score: Callable[[list[Row]], list[Scores]], rows: Sequence[Row], paths: Sequence[ReadPath], step_weight: float = 0.2
) -> list[PathScore]:
    """Score a policy's paths; a missing or malformed part has no score and raises nothing.

    Args:
        score: method of a process reward model that scores the chains, in one call.
        rows: the question of each path: `prompt`, and `images` or `image`.
    """
    scorable = scorable_rows(rows, paths)
    scores = iter(score([row for row in scorable if row]) if any(scorable) else [])
    return [path_score(*next(scores), step_weight) if row else PathScore([], None, 0.0) for row in scorable]


def scorable_rows(rows: Sequence[Row], paths: Sequence[ReadPath]) -> list[Row]:
    """Rows for a process reward model, one for each path; {} where nothing can be scored."""
    return [
        {"prompt": row["prompt"], "images": images_of(row), "completion": text} if (text := path.scorable) else {}
        for row, path in zip(rows, paths, strict=True)
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
    """Return a digest of each question's words and images."""
    words = questions.select_columns([name for name in _WORDS if name in questions.column_names])
    digests = zip(words, image_digests(questions), strict=True)
    return [hashlib.sha256(f"{row}{image or ''}".encode()).hexdigest()[:16] for row, image in digests]
