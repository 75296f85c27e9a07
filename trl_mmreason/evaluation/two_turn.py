"""Let any policy answer, check its answer and answer again, on held-out questions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from ..grading import Grader
from ..grading.reward import grading_items
from ..sampling.generation import encode, end_of_turn_ids, generate
from ..turns import next_turn_ids
from .report import TwoTurnTrajectory


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
    if not isinstance(processing_class, ProcessorMixin):
        raise TypeError(
            f"evaluate_two_turns: processing_class is a {type(processing_class).__name__}, expected the processor of a "
            "vision-language model."
        )
    model.eval()
    grader = grader or Grader()
    state = PartialState()
    trajectories: list[tuple[int, TwoTurnTrajectory]] = []
    with state.split_between_processes(list(range(len(dataset)))) as share:
        batches = [share[start : start + batch_size] for start in range(0, len(share), batch_size)]
        quiet = not (state.is_main_process and sys.stderr.isatty())
        for indices in tqdm(batches, desc=f"evaluating {stage}", disable=quiet):
            rows = [dataset[index] for index in indices]
            texts = answer_in_two_turns(
                model,
                processing_class,
                rows,
                followup,
                max_new_tokens=max_new_tokens,
                chat_template_kwargs=chat_template_kwargs,
                **generation,
            )
            trajectories += _grade(grader, rows, texts, stage, indices)
    gathered = gather_object(trajectories) if state.num_processes > 1 else trajectories
    return [trajectory for _, trajectory in sorted(gathered, key=lambda item: item[0])]


def _grade(
    grader: Grader, rows: list[dict[str, Any]], texts: list[tuple[str, str | None]], stage: str, indices: list[int]
) -> list[tuple[int, TwoTurnTrajectory]]:
    """The trajectories with their indices, without those whose gold answer cannot be used."""
    columns = {"prompts": "prompt", "choices": "choices", "id": "id"}
    given = {name: [row.get(column) for row in rows] for name, column in columns.items()}
    golds = [row["answer"] for row in rows]
    items = [item for turn in (0, 1) for item in grading_items([text[turn] or "" for text in texts], golds, **given)]
    verdicts = [verdict.correct for verdict in grader.grade_batch(items)]
    graded = []
    for index, row, answers, first, second in zip(
        indices, rows, texts, verdicts[: len(rows)], verdicts[len(rows) :], strict=True
    ):
        if first is None or second is None:
            continue
        trajectory = TwoTurnTrajectory(
            id=str(row.get("id") or index),
            category=row.get("category") or "",
            question=row["prompt"][-1]["content"],
            answer=row["answer"] if isinstance(row["answer"], str) else " or ".join(row["answer"]),
            images=row.get("images") or [],
            first=answers[0],
            second=answers[1],
            first_correct=first,
            second_correct=second and answers[1] is not None,
            stage=stage,
        )
        graded.append((index, trajectory))
    return graded


def answer_in_two_turns(
    model: PreTrainedModel,
    processing_class: ProcessorMixin,
    rows: Sequence[dict[str, Any]],
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

    prompts = [encode(processing_class, row["prompt"], row.get("images"), **template) for row in rows]
    first_ids = generate(model, processing_class, prompts, **settings)
    ended = [row for row, ids in enumerate(first_ids) if ids[-1] in eos_ids]
    second: list[str | None] = [None] * len(rows)
    if ended:
        suffix = next_turn_ids(processing_class, followup, eos_token_ids=eos_ids, **template)
        longer = [prompts[row].extended([*first_ids[row], *suffix]) for row in ended]
        second_ids = generate(model, processing_class, longer, **settings)
        for row, text in zip(ended, _decode(processing_class, second_ids), strict=True):
            second[row] = text
    return list(zip(_decode(processing_class, first_ids), second, strict=True))


def _decode(processing_class: ProcessorMixin, ids: list[list[int]]) -> list[str]:
    return processing_class.batch_decode(ids, skip_special_tokens=True)
