"""Let any policy answer, check its answer and answer again, on held-out questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from PIL import Image
from transformers import PreTrainedModel, ProcessorMixin

from ..grading import Grader
from ..grading.reward import grading_items
from ..sampling.generation import end_of_turn_ids, generate
from ..turns import next_turn_ids
from .answers import Row, decode, encode_rows, for_all_rows, grading_columns, row_metadata
from .metrics import Change, compare
from .trajectory import Piece, Trajectory, Turn


@dataclass(frozen=True, kw_only=True)
class TwoTurnTrajectory:
    """One question answered twice by one model.

    Attributes:
        id: the question's id.
        category: kind of question; "" for none.
        question, answer: what was asked, and the gold answer.
        images: the question's pictures.
        first, second: the two answers' text; `second` is None when there is none, as when the first answer never
            ended.
        first_correct, second_correct: the verdicts; a second answer that is missing is not correct.
        stage: which model answered, such as "before" or "after".
        problem: what is wrong with the form of the text, if the method wants one; None when nothing is.
    """

    id: str
    category: str
    question: str
    answer: str
    images: Sequence[Image.Image]
    first: str
    second: str | None
    first_correct: bool
    second_correct: bool
    stage: str
    problem: str | None = None

    def __post_init__(self) -> None:
        if self.second is None and self.second_correct:
            raise ValueError(f"trajectory {self.id!r} ({self.stage}): second_correct is True but second is None")

    @property
    def transition(self) -> str:
        """The type i→j, such as `0→1` for a wrong answer that the second turn made right."""
        return self.shown().transition

    def shown(self) -> Trajectory:
        """As the report shows it."""
        first = Turn(pieces=[Piece(self.first)], correct=self.first_correct, label="First answer")
        second = None
        if self.second is not None:
            second = Turn(pieces=[Piece(self.second)], correct=self.second_correct, label="Second answer")
        return Trajectory(
            id=self.id,
            category=self.category,
            question=self.question,
            answer=self.answer,
            images=self.images,
            stage=self.stage,
            turns=[first, second],
            problem=self.problem,
        )


def evaluate_two_turns(
    model: PreTrainedModel,
    processing_class: ProcessorMixin,
    dataset: Dataset,
    followup: str,
    *,
    stage: str,
    max_new_tokens: int,
    batch_size: int = 64,
    grader: Grader | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    **generation: Any,
) -> list[TwoTurnTrajectory]:
    """Sample both answers to every row and grade them; under several processes each takes a share.

    Args:
        model: a policy that `generate` works on.
        processing_class: its processor.
        dataset: rows with prompt, images, answer, and optionally choices, id, category.
        followup: what the user says after the first answer.
        stage: name of this evaluation, such as "before".
        max_new_tokens: bound of each answer; a first answer that reaches it gets no second turn.
        batch_size: questions in one call of `generate`.
        grader: `Grader()` by default.
        chat_template_kwargs: handed to the chat template.
        **generation: for `generate`; greedy decoding without penalties by default, whatever the checkpoint's own
            generation settings say.

    Returns:
        One trajectory a row, in the order of the rows, the same on every process. Rows whose gold answer cannot be
        used are left out.
    """
    judge = grader or Grader()

    def answer(rows: list[Row]) -> list[TwoTurnTrajectory | None]:
        texts = answer_in_two_turns(
            model,
            processing_class,
            rows,
            followup,
            max_new_tokens=max_new_tokens,
            chat_template_kwargs=chat_template_kwargs,
            **generation,
        )
        return _graded(judge, rows, texts, stage)

    return for_all_rows(model, processing_class, dataset, answer, stage=stage, batch_size=batch_size)


def compare_two_turns(before: Sequence[TwoTurnTrajectory], after: Sequence[TwoTurnTrajectory]) -> dict[str, Change]:
    """`metrics.compare` of the verdicts on the same questions before and after training."""
    old, new = ([[t.first_correct for t in stage], [t.second_correct for t in stage]] for stage in (before, after))
    return compare(old, new)


def _graded(
    grader: Grader, rows: list[Row], texts: list[tuple[str, str | None]], stage: str
) -> list[TwoTurnTrajectory | None]:
    """The trajectories; `None` where the gold answer cannot be used."""
    columns = grading_columns(rows)
    items = [item for turn in (0, 1) for item in grading_items([text[turn] or "" for text in texts], **columns)]
    verdicts = [verdict.correct for verdict in grader.grade_batch(items)]
    return [
        None
        if first is None or second is None
        else TwoTurnTrajectory(
            **row_metadata(row, stage),
            first=answers[0],
            second=answers[1],
            first_correct=first,
            second_correct=second and answers[1] is not None,
        )
        for row, answers, first, second in zip(rows, texts, verdicts[: len(rows)], verdicts[len(rows) :], strict=True)
    ]


def answer_in_two_turns(
    model: PreTrainedModel,
    processing_class: ProcessorMixin,
    rows: Sequence[Row],
    followup: str,
    *,
    max_new_tokens: int,
    chat_template_kwargs: dict[str, Any] | None = None,
    **generation: Any,
) -> list[tuple[str, str | None]]:
    """Both answers to each row as text; the second is `None` where the first hit the length limit."""
    template = chat_template_kwargs or {}
    settings = {"max_new_tokens": max_new_tokens, **generation}
    eos_ids = end_of_turn_ids(model, processing_class)

    prompts = encode_rows(processing_class, rows, **template)
    first_ids = generate(model, processing_class, prompts, **settings)
    ended = [row for row, ids in enumerate(first_ids) if ids[-1] in eos_ids]
    second: list[str | None] = [None] * len(rows)
    if ended:
        suffix = next_turn_ids(processing_class, followup, eos_token_ids=eos_ids, **template)
        longer = [prompts[row].extended([*first_ids[row], *suffix]) for row in ended]
        second_ids = generate(model, processing_class, longer, **settings)
        for row, text in zip(ended, decode(processing_class, second_ids), strict=True):
            second[row] = text
    return list(zip(decode(processing_class, first_ids), second, strict=True))
