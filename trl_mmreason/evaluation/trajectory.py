"""A model's answer to one question, as reports show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from PIL import Image

NOT_GRADED = "not graded"


class Piece(NamedTuple):
    """A stretch of a turn's text, such as a step.

    Attributes:
        text: text as the model wrote it.
        score: score in [0, 1]; `None` if it was not scored.
    """

    text: str
    score: float | None = None


def scored_pieces(
    text: str, ends: Sequence[int], scores: Sequence[float | None], last_score: float | None = None
) -> list[Piece]:
    """Cut `text` after each step, and give the pieces their scores.

    Args:
        ends: for each step the position after it, ascending.
        scores: scores of the steps.
        last_score: score of the text after the last one, such as the answer.
    """
    edges = [0, *ends, len(text)]
    cut = [text[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    return [Piece(part, score) for part, score in zip(cut, [*scores, last_score], strict=True) if part]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One answer.

    Attributes:
        pieces: joined they are the answer; one without scores is one piece.
        correct: the verdict; `None` if the gold answer cannot be used or nothing was graded.
        label: what the turn is called, such as "First answer".
        answer: what the grader read off the text; `None` if nothing, or if that is not known.
        reason: why the verdict is what it is, in a line.
    """

    pieces: Sequence[Piece]
    correct: bool | None
    label: str = ""
    answer: str | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One question and one model's answers to it.

    Attributes:
        id: the question's id; what was answered to it is shown side by side, of training that of one step.
        category: kind of question, for the filter; "" for none.
        question, answer: what was asked, and the gold answer; "" where it is not known.
        images: the question's images.
        run: which model answered, such as "before" or "baseline"; "" where there is one.
        step: training step at which it was sampled; `None` outside training.
        number: position among the samples of one question, from 1; `None` for a single sample.
        turns: turns in order; `None` for a turn that was never given.
        rewards: reward parts, advantage and other numbers by name; `None` where there is none.
        problem: what is wrong with the form of the text, if the method wants one; `None` when nothing is.
    """

    id: str
    category: str
    question: str
    answer: str
    images: Sequence[Image.Image]
    turns: Sequence[Turn | None]
    run: str = ""
    step: int | None = None
    number: int | None = None
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    problem: str | None = None

    @property
    def label(self) -> str:
        """Label that distinguishes it from other trajectories of its question."""
        if self.step is not None:
            return f"completion {self.number}"
        number = f"sample {self.number}" if self.number else ""
        return " · ".join(part for part in (self.run, number) if part) or "answer"

    @property
    def key(self) -> str:
        """Name for links, equal in all reports."""
        place = "" if self.step is None else f"step {self.step}"
        return "/".join(part for part in (self.id, self.run, place, str(self.number or "")) if part)

    @property
    def transition(self) -> str:
        """The verdicts in order, such as `wrong→right` for a wrong answer that the second turn corrected.

        A turn that was never given is wrong; with one that has no verdict, or with none at all, it is "not graded".
        """
        verdicts = [False if turn is None else turn.correct for turn in self.turns]
        if not verdicts or None in verdicts:
            return NOT_GRADED
        return "→".join("right" if correct else "wrong" for correct in verdicts)

    @property
    def is_right(self) -> bool | None:
        """The verdict on the last answer; `None` without one."""
        return None if self.transition == NOT_GRADED else self.transition.endswith("right")
