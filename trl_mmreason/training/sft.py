"""Base of the supervised trainers on completions in a method's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from datasets import Dataset
from transformers import ProcessorMixin
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from ..compat.chat_template import tokenizer_of
from ..compat.model_parts import freeze_vision_encoder
from ..compat.precision import settle_on_cpu
from ..data.images import IMAGE_COLUMNS, with_images
from ..generation.image_fields import image_axes
from ..messages import completion_text
from .checkpoint import CheckpointRestoreMixin
from .config_values import refuse_impossible
from .construction import (
    NamedArguments,
    NamedEvaluations,
    check_rows,
    column_names,
    config_of,
    load_policy_processor,
    without_image_columns,
)
from .documented import documented
from .early_stopping import EarlyStoppingArguments
from .facts import RunFactsMixin
from .length_batching import Layout, LengthBatchingMixin
from .preparation import prepare_loading, prepare_models
from .processor_checks import check_template, warn_of_other_prompts


@documented
@dataclass
class CompletionSFTConfig(EarlyStoppingArguments, SFTConfig):
    """`SFTConfig` for whole rows: the loss covers the assistant's text and nothing else.

    Attributes:
        num_train_epochs: epochs, 1; TRL's own default is 3.
        max_length: must be `None`, as a cut row would lose its answer or, worse, part of an image.
        completion_only_loss: must be on: the loss is on the assistant's words only.
        freeze_vision_encoder: leave the vision encoder's weights as they are.
    """

    freezes_merger: ClassVar[bool] = True
    """Whether the Qwen-VL families' merger, their projector, is then frozen too."""

    num_train_epochs: float = 1.0
    max_length: int | None = None
    completion_only_loss: bool | None = True
    freeze_vision_encoder: bool = False

    def __post_init__(self) -> None:
        settle_on_cpu(self)
        refuse_impossible(type(self).__name__, vars(self))
        super().__post_init__()
        if self.max_length is not None:
            raise ValueError(
                f"{type(self).__name__}: max_length={self.max_length} would cut images or answers off long rows. "
                "Leave it None, and drop such rows from the data."
            )
        if not self.completion_only_loss:
            raise ValueError(
                f"{type(self).__name__}: completion_only_loss={self.completion_only_loss} would train on the questions "
                "too; leave it True."
            )


class CompletionSFTTrainer(
    NamedArguments, NamedEvaluations, RunFactsMixin, CheckpointRestoreMixin, LengthBatchingMixin, SFTTrainer
):
    """Trains a policy on completions in a format; a subclass says which.

    The rows of an optimizer step are sorted by length, so that less padding is computed. The update is the same.

    Args:
        model: path or id of a checkpoint, or a model.
        args: instance of the subclass's configuration.
        train_dataset, eval_dataset: rows with `prompt` (messages), `images` and `completion` (the structured text, or
            one message that holds it).
        **kwargs: whatever `trl.SFTTrainer` takes, by keyword.

    Raises:
        ValueError: a completion is not in the format; names the row and what is wrong with it.
    """

    _config: ClassVar[type[CompletionSFTConfig]] = CompletionSFTConfig
    _suffix: ClassVar[str] = "sft"
    """Of the output folder, if there are no `args`."""
    _format: ClassVar[str] = "text"
    """A completion in the format, for error messages and to try the chat template with."""
    _token_fields: ClassVar[Mapping[str, float]] = {"labels": -100}
    """What the collator gives for each token, beside the model's inputs, and its padding."""

    args: CompletionSFTConfig
    data_collator: Any

    def __init__(
        self,
        model: Any,
        *,
        args: CompletionSFTConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        name = type(self).__name__
        args = config_of(self, self._config, args, model, self._suffix)
        check_rows(name, train_dataset, eval_dataset, {"prompt", "completion"})
        if kwargs.get("formatting_func") is not None:  # TRL does not call it where there are images
            raise TypeError(
                f"{name}: rows have a prompt and a completion, which formatting_func would make one text. Fix: leave "
                "`formatting_func` out; `dataset.map` changes rows."
            )
        processing_class = processing_class or load_policy_processor(model, args)
        self.check_tokenizer(processing_class)
        check_template(name, processing_class, self._format)
        warn_of_other_prompts(name, processing_class, self._format)
        prepare = partial(self.prepare_rows, args=args, processing_class=processing_class)
        padding = prepare_loading(model, args)
        super().__init__(
            model,
            args=args,
            train_dataset=prepare_each(name, train_dataset, prepare),
            eval_dataset=prepare_each(name, eval_dataset, prepare),
            processing_class=processing_class,
            **kwargs,
        )
        # Some families say that their loss takes no count of tokens, although it does. Without it each micro-batch
        # would be averaged by itself, and gradient accumulation would change the update.
        self.model_accepts_loss_kwargs = True
        self._collates_as_trl = type(self.data_collator) is DataCollatorForVisionLanguageModeling
        self.data_collator = with_images(self.data_collator)
        if args.freeze_vision_encoder:
            freeze_vision_encoder(self.accelerator.unwrap_model(self.model), merger=args.freezes_merger)
        self.add_tokens(self.accelerator.unwrap_model(self.model))
        prepare_models(self, padding)

    @staticmethod
    def problem_of(completion: str) -> str | None:
        """Return the fault in a completion's format, or `None`."""
        raise NotImplementedError

    def check_tokenizer(self, processing_class: Any) -> None:
        """Refuse a processor that cannot express the format."""

    def add_tokens(self, policy: Any) -> None:
        """Add tokens of the format's own to the policy; its tokenizer has them from `check_tokenizer`."""

    def prepare_rows(self, rows: Any, args: CompletionSFTConfig, processing_class: Any) -> Any:
        """Check each completion and make it one message of the assistant; idempotent.

        A prompt that is a string is one message of the user. For a vision-language policy rows without images get an
        empty list of them, so that all go the same way; for a text-only policy no row has any.
        """
        rows = without_image_columns(rows, processing_class, type(self).__name__)
        columns = column_names(rows)
        imageless = isinstance(processing_class, ProcessorMixin) and not set(IMAGE_COLUMNS) & set(columns)
        rows = rows.remove_columns([name for name in columns if name in ("messages", args.dataset_text_field)])

        def convert(prompt: Any, completion: Any, row: int) -> dict[str, Any]:
            text = completion_text(completion, f"row {row}")
            if problem := self.problem_of(text):
                raise ValueError(
                    f"{type(self).__name__}: the completion of row {row} is not in the format: {problem}. Expected "
                    f"{self._format}; got {text[:200]!r}."
                )
            converted: dict[str, Any] = {"completion": [{"role": "assistant", "content": text}]}
            if isinstance(prompt, str):
                converted["prompt"] = [{"role": "user", "content": prompt}]
            return {**converted, "images": []} if imageless else converted

        return rows.map(convert, input_columns=["prompt", "completion"], with_indices=True)

    def batch_layout(self) -> Layout | None:
        """How TRL's collator pads; `None` for any other."""
        if not self._collates_as_trl:
            return None
        pad_token_id = tokenizer_of(self.processing_class).pad_token_id
        return Layout(pad_token_id, by_token=self._token_fields, axes=image_axes(self.processing_class))

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as `Trainer` does, with rows prepared as the constructor prepares its own."""
        return super().evaluate(self._all_prepared(eval_dataset), *args, **kwargs)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as `Trainer` does, with rows prepared as the constructor prepares its own."""
        return super().predict(self._all_prepared(test_dataset), *args, **kwargs)

    def _all_prepared(self, datasets: Any) -> Any:
        prepare = partial(self.prepare_rows, args=self.args, processing_class=self.processing_class)
        return prepare_each(type(self).__name__, datasets, prepare)


def prepare_each(name: str, dataset: Any, prepare: Callable[[Any], Any]) -> Any:
    """Prepare a data set or each of a mapping; `None` and names pass unchanged."""
    if isinstance(dataset, Mapping):
        return {role: prepare_each(name, rows, prepare) for role, rows in dataset.items()}
    if dataset is None or isinstance(dataset, str):
        return dataset
    if hasattr(dataset, "__len__") and not len(dataset):
        raise ValueError(f"{name}: a data set has no rows.")
    if isinstance(dataset, Dataset) and (form := dataset.format)["type"] == "custom":
        # `map` would hand its transform a part of the columns; it comes behind what is prepared
        prepared = prepare(dataset.with_format(None))
        return prepared.with_format("custom", **form["format_kwargs"])
    return prepare(dataset)
