"""Let any policy answer, check its answer and answer again, on held-out questions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin
from trl.data_utils import prepare_multimodal_messages

from ..grading import Grader
from ..grading.reward import grading_items
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


@torch.no_grad()
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
    prompts = [prepare_multimodal_messages(row["prompt"], images=row.get("images")) for row in rows]
    eos_ids = end_of_turn_ids(model, processing_class)
    settings = {
        "do_sample": False,
        "repetition_penalty": 1.0,
        "max_new_tokens": max_new_tokens,
        "eos_token_id": eos_ids,
        "pad_token_id": processing_class.tokenizer.pad_token_id,
        **generation,
    }

    prompt_ids, fields = _tokenize(processing_class, prompts, template)
    first_ids = _sample(model, processing_class, prompt_ids, fields, eos_ids, settings)
    ended = [row for row, ids in enumerate(first_ids) if ids[-1] in eos_ids]
    second: list[str | None] = [None] * len(rows)
    if ended:
        suffix = next_turn_ids(processing_class, followup, eos_token_ids=eos_ids, **template)
        _, fields = _tokenize(processing_class, [prompts[row] for row in ended], template)
        longer = [[*prompt_ids[row], *first_ids[row], *suffix] for row in ended]
        second_ids = _sample(model, processing_class, longer, fields, eos_ids, settings)
        for row, text in zip(ended, _decode(processing_class, second_ids), strict=True):
            second[row] = text
    return list(zip(_decode(processing_class, first_ids), second, strict=True))


def end_of_turn_ids(model: PreTrainedModel, processing_class: ProcessorMixin) -> list[int]:
    """Every token that ends an answer, as TRL has it: the model's, and the tokenizer's."""
    declared = model.generation_config.eos_token_id
    declared = [declared] if isinstance(declared, int) else list(declared or [])
    own = processing_class.tokenizer.eos_token_id
    return declared if own in declared else [own, *declared]


def _decode(processing_class: ProcessorMixin, ids: list[list[int]]) -> list[str]:
    return processing_class.batch_decode(ids, skip_special_tokens=True)


def _tokenize(
    processing_class: ProcessorMixin, prompts: list, template: dict[str, Any]
) -> tuple[list[list[int]], dict[str, Any]]:
    """Unpadded ids, and the picture fields."""
    inputs = dict(
        processing_class.apply_chat_template(
            prompts, tokenize=True, return_dict=True, add_generation_prompt=True, **template
        )
    )
    del inputs["attention_mask"]
    return inputs.pop("input_ids"), inputs


def _sample(
    model: PreTrainedModel,
    processing_class: ProcessorMixin,
    prompt_ids: list[list[int]],
    fields: dict[str, Any],
    eos_ids: list[int],
    settings: dict[str, Any],
) -> list[list[int]]:
    """Answers as ids, each up to and including its end-of-turn token if there is one."""
    width = max(map(len, prompt_ids))
    inputs = {
        "input_ids": _left_pad(prompt_ids, width, processing_class.tokenizer.pad_token_id),
        "attention_mask": _left_pad([[1] * len(ids) for ids in prompt_ids], width, 0),
    }
    for name, value in fields.items():
        if isinstance(value, list) and isinstance(value[0], list):  # one value a token; what was appended is text, 0
            longer = [[*row, *[0] * (len(ids) - len(row))] for row, ids in zip(value, prompt_ids, strict=True)]
            inputs[name] = _left_pad(longer, width, 0)
        else:
            inputs[name] = value if isinstance(value, Tensor) else torch.tensor(np.array(value))
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    # A picture's placeholder among the answer's tokens would stand for a picture that is not there.
    answers = model.generate(**inputs, **settings, suppress_tokens=[model.config.image_token_id])[:, width:].tolist()
    return [_cut_after_end(ids, eos_ids) for ids in answers]


def _left_pad(rows: list[list[int]], width: int, value: int) -> Tensor:
    return torch.tensor([[value] * (width - len(row)) + list(row) for row in rows])


def _cut_after_end(ids: list[int], eos_ids: list[int]) -> list[int]:
    end = next((position for position, token in enumerate(ids) if token in eos_ids), len(ids))
    return ids[: end + 1]
