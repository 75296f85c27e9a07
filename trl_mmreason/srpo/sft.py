"""The cold start of SRPO (section 3.1.2): supervised training on a solution, a reflection on it, and a better one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import ProcessorMixin
from trl import SFTTrainer
from trl.data_utils import prepare_multimodal_messages

from ..checkpoint import FaithfulCheckpoints
from ..construction import (
    check_rows,
    completion_text,
    freeze_vision_encoder,
    load_processor,
    pictures_of,
)
from .config import ReflectionSFTConfig
from .paper import PAPER
from .response import parse_reflection_response
from .rewards import check_tags_survive


class ReflectionSFTTrainer(FaithfulCheckpoints, SFTTrainer):
    """Trains a policy on completions in SRPO's format; the loss is on all tokens of the completion.

    The second solution may do without its `<think>`, as in the paper's template.

    Args:
        model: path or id of a checkpoint, or a model.
        args: a `ReflectionSFTConfig`.
        train_dataset, eval_dataset: rows with `prompt` (messages), `images` and `completion` (the structured text, or
            one message that holds it); `mmreason reflect` makes them.
        **kwargs: whatever `trl.SFTTrainer` takes, by keyword.

    Raises:
        ValueError: a completion is not in SRPO's format; names the row and what is wrong with it.
    """

    _tag_names = ["trl", "trl-mmreason", "srpo", "sft"]
    _name = "SRPO cold start"
    _paper = PAPER

    args: ReflectionSFTConfig
    data_collator: Any

    def __init__(
        self,
        model: Any,
        *,
        args: ReflectionSFTConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        if args is None:
            args = ReflectionSFTConfig(f"{str(getattr(model, 'name_or_path', model)).split('/')[-1]}-reflection")
        if not isinstance(args, ReflectionSFTConfig):
            raise TypeError(f"ReflectionSFTTrainer: args is a {type(args).__name__}, expected a ReflectionSFTConfig.")
        check_rows("ReflectionSFTTrainer", train_dataset, eval_dataset, {"prompt", "completion"})
        processing_class = processing_class or load_processor(model, args)
        check_tags_survive(processing_class)
        super().__init__(
            model,
            args=args,
            train_dataset=train_dataset and _as_messages(train_dataset),
            eval_dataset={name: _as_messages(rows) for name, rows in eval_dataset.items()}
            if isinstance(eval_dataset, dict)
            else eval_dataset and _as_messages(eval_dataset),
            processing_class=processing_class,
            **kwargs,
        )
        # Some families say that their loss takes no count of tokens, although it does. Without it each micro-batch
        # would be averaged by itself, and gradient accumulation would change the update.
        self.model_accepts_loss_kwargs = True
        self._check_template()
        self.data_collator = _with_pictures(self.data_collator)
        if args.freeze_vision_encoder:
            freeze_vision_encoder(self.accelerator.unwrap_model(self.model))

    def _check_template(self) -> None:
        """Refuse a chat template that drops what it takes for thoughts: there would be no reflection left to learn."""
        spoken = "<think>a</think> <answer>b</answer> <reflection>c</reflection> <think>d</think> <answer>e</answer>"
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": spoken}]
        if isinstance(self.processing_class, ProcessorMixin):
            messages = prepare_multimodal_messages(messages)
        written = self.processing_class.apply_chat_template(messages, tokenize=False)
        if spoken not in written:
            raise ValueError(
                f"ReflectionSFTTrainer: the chat template does not write what the assistant says as it is: {spoken!r} "
                f"became {written!r}. Pass a processor whose template keeps <think>…</think> in the content."
            )


def _as_messages(rows: Any) -> Any:
    """The rows with each completion checked, and as one message of the assistant."""

    def convert(completion: Any, row: int) -> dict[str, Any]:
        text = completion_text(completion, f"row {row}")
        if problem := problem_of(text):
            raise ValueError(
                f"ReflectionSFTTrainer: the completion of row {row} is not in SRPO's format: {problem}. Expected "
                "<think>…</think> <answer>…</answer> <reflection>…</reflection> <think>…</think> <answer>…</answer>, "
                f"the second <think> as you like; got {text[:200]!r}."
            )
        return {"completion": [{"role": "assistant", "content": text}]}

    return rows.map(convert, input_columns=["completion"], with_indices=True)


def problem_of(completion: str) -> str | None:
    """What is wrong with a completion; the second solution may do without its `<think>`, as in the paper's template."""
    response = parse_reflection_response(completion)
    if response.second_think is None and response.second_answer is not None and response.reflection_span is not None:
        behind = response.reflection_span[1]
        response = parse_reflection_response(f"{completion[:behind]}<think>…</think>{completion[behind:]}")
    return response.problem


def _with_pictures(collate: Callable[[list[dict[str, Any]]], Any]) -> Callable[[list[dict[str, Any]]], Any]:
    """TRL's collator for rows of which some have no picture."""

    def collate_rows(rows: list[dict[str, Any]]) -> Any:
        if rows[0].keys() & {"image", "images"}:
            texts = ({name: value for name, value in row.items() if name != "image"} for row in rows)
            rows = [{**text, "images": pictures_of(row)} for text, row in zip(texts, rows, strict=True)]
        return collate(rows)

    return collate_rows
