"""What every evaluation does: any policy answers every row of a data set, and its answers are graded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from ..grading import Grader
from ..grading.reward import grading_items
from ..sampling.generation import Prompt, encode, generate

Row = dict[str, Any]
Result = TypeVar("Result")


def for_all_rows(
    model: PreTrainedModel,
    processing_class: ProcessorMixin,
    dataset: Dataset,
    answer: Callable[[list[Row]], Sequence[Result | None]],
    *,
    stage: str,
    batch_size: int,
) -> list[Result]:
    """What `answer` makes of every row; under several processes each takes a share.

    Args:
        model: put into evaluation mode.
        processing_class: its processor.
        dataset: rows with prompt, images, answer, and optionally choices, id, category. A row without an id gets its
            number.
        answer: a batch of rows → one result each; a row with `None` is left out.
        stage: name of this evaluation, such as "before".
        batch_size: rows in one call of `answer`.

    Returns:
        The results in the order of the rows, the same on every process.

    Raises:
        TypeError: `processing_class` is no processor.
    """
    if not isinstance(processing_class, ProcessorMixin):
        raise TypeError(
            f"evaluation: processing_class is a {type(processing_class).__name__}, expected the processor of a "
            "vision-language model."
        )
    model.eval()
    state = PartialState()
    results: list[tuple[int, Result]] = []
    with state.split_between_processes(list(range(len(dataset)))) as share:
        batches = [share[start : start + batch_size] for start in range(0, len(share), batch_size)]
        quiet = not (state.is_main_process and sys.stderr.isatty())
        for indices in tqdm(batches, desc=f"evaluating {stage}", disable=quiet):
            rows = [dataset[index] for index in indices]
            rows = [{**row, "id": str(row.get("id") or index)} for row, index in zip(rows, indices, strict=True)]
            found = zip(indices, answer(rows), strict=True)
            results += [(index, result) for index, result in found if result is not None]
    gathered = gather_object(results) if state.num_processes > 1 else results
    return [result for _, result in sorted(gathered, key=lambda item: item[0])]


def encode_rows(processing_class: ProcessorMixin, rows: Sequence[Row], **template: Any) -> list[Prompt]:
    """The prompts of the rows as a model takes them; `template` goes to the chat template."""
    return [encode(processing_class, row["prompt"], row.get("images"), **template) for row in rows]


def decode(processing_class: ProcessorMixin, ids: Sequence[Sequence[int]]) -> list[str]:
    """Answers as text, without special tokens."""
    return processing_class.batch_decode(ids, skip_special_tokens=True)


def grading_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """What a grader wants to know about the rows, by the names that reward functions have for it."""
    names = {"answer": "answer", "prompts": "prompt", "choices": "choices", "id": "id"}
    return {name: [row.get(column) for row in rows] for name, column in names.items()}


def row_metadata(row: Row, stage: str) -> dict[str, Any]:
    """What a report says of a row and who answered it: fields of a `TwoTurnTrajectory`."""
    return {
        "id": row["id"],
        "category": row.get("category") or "",
        "question": row["prompt"][-1]["content"],
        "answer": row["answer"] if isinstance(row["answer"], str) else " or ".join(row["answer"]),
        "images": row.get("images") or [],
        "stage": stage,
    }


def accuracy(
    model: PreTrainedModel, processing_class: ProcessorMixin, dataset: Dataset, *, max_new_tokens: int, batch_size: int
) -> float:
    """Share of right answers, one greedy answer a row; NaN if no gold answer can be used."""
    grader = Grader()

    def answer(rows: list[Row]) -> list[bool | None]:
        ids = generate(model, processing_class, encode_rows(processing_class, rows), max_new_tokens=max_new_tokens)
        items = grading_items(decode(processing_class, ids), **grading_columns(rows))
        return [verdict.correct for verdict in grader.grade_batch(items)]

    correct = for_all_rows(model, processing_class, dataset, answer, stage="accuracy", batch_size=batch_size)
    return sum(correct) / len(correct) if correct else float("nan")
