"""What a report shows of one question answered by one model, whatever asked and graded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from PIL import Image

NOT_GRADED = "not graded"


class Piece(NamedTuple):
    """A stretch of a turn's text, such as a step.

    Attributes:
        text: as the model wrote it.
        score: what it got, in [0, 1]; `None` if it was not scored.
    """

    text: str
    score: float | None = None


def scored_pieces(
    text: str, ends: Sequence[int], scores: Sequence[float | None], last_score: float | None = None
) -> list[Piece]:
    """Cut `text` behind each step, and give the pieces their scores.

    Args:
        ends: for each step the position behind it, ascending.
        scores: of the steps.
        last_score: of what follows the last one, such as the answer.
    """
    edges = [0, *ends, len(text)]
    cut = [text[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    return [Piece(part, score) for part, score in zip(cut, [*scores, last_score], strict=True) if part]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One answer.

    Attributes:
        pieces: joined they are the answer; one without scores is one piece.
        correct: the verdict; `None` if there is none, as the gold answer cannot be used or nobody graded.
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
    """One question and what one model made of it.

    Attributes:
        id: the question's id; trajectories with the same id are shown side by side.
        category: kind of question, for the filter; "" for none.
        question, answer: what was asked, and the gold answer; "" where it is not known.
        images: the question's pictures.
        stage: which model answered, or when: "before", "after", "step 20", "sample 3".
        turns: in order; `None` for a turn that was never given.
        rewards: reward parts, advantage and other numbers by name; `None` where there is none.
        problem: what is wrong with the form of the text, if the method wants one; `None` when nothing is.
    """

    id: str
    category: str
    question: str
    answer: str
    images: Sequence[Image.Image]
    stage: str
    turns: Sequence[Turn | None]
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    problem: str | None = None

    @property
    def transition(self) -> str:
        """The type i→j, such as `0→1` for a wrong answer that the second turn made right; "right" or "wrong" for one.

        A turn that was never given is wrong; with one that has no verdict, or with none at all, it is "not graded".
        """
        verdicts = [False if turn is None else turn.correct for turn in self.turns]
        if not verdicts or None in verdicts:
            return NOT_GRADED
        if len(verdicts) == 1:
            return "right" if verdicts[0] else "wrong"
        return "→".join("1" if correct else "0" for correct in verdicts)
