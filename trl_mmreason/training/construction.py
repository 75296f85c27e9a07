"""Checks and corrections of trainers' arguments, before and after TRL's constructors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

from datasets import ClassLabel, Dataset
from jinja2 import TemplateError
from peft import PeftModel
from transformers import AutoProcessor, PreTrainedTokenizerBase, ProcessorMixin, Trainer, TrainingArguments
from trl import GRPOConfig
from trl.data_utils import is_conversational

from ..compat import torchvision_free  # noqa: F401  processors load without torchvision from here on
from ..compat.adapters import new_adapters_leave_the_base
from ..compat.chat_template import tokenizer_of
from ..data.folders import adapter_base, check_model_folder, check_model_path
from ..data.images import IMAGE_COLUMNS, images_of
from ..data.unseen_media import refuse_unseen_media
from ..messages import with_system_message
from .processor_checks import NO_TEMPLATE, to_look_at

# A column that no data set has by itself → what makes rows with it; of several, the first counts.
_MADE_BY = {
    "step_labels": "`mmreason annotate` makes",
    "reward": "`mmreason trajectories` makes",
    "completion": "`mmreason reflect` (SRPO), `steps` (Chain-of-Step), `trajectories` (SOPHIA) or `revise` (STaR) "
    "makes",
}

Config = TypeVar("Config", bound=TrainingArguments)


class NamedArguments:
    """Mixin that rejects positional arguments which must be named, as TRL's trainers take more by position."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _checks_positions(cls.__init__))  # noqa: B010  mypy takes no assignment


class NamedEvaluations(Trainer):
    """Mixin that gives the metrics of several evaluation sets names of their own, as `Trainer` does with the loss.

    TRL's trainers log what they collect as `eval_…`, whichever set it is of (`metric_for_best_model` finds that since
    huggingface/trl#5811).
    """

    _set = ""  # of the evaluation at hand, with an underscore

    def evaluation_loop(self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Evaluate as `Trainer` does, and remember whose metrics are logged next."""
        self._set = f"{metric_key_prefix}_".removeprefix("eval_")
        self._metrics["eval"].clear()  # of a prediction, which logs nothing, or of an evaluation that did not end
        return super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, with the set's name between `eval_` and that of the metric."""
        if self._set and not self.model.training:
            collected: dict[str, Any] = self._metrics["eval"]  # TRL's, and it puts `eval_` before
            named = {f"{self._set}{name}": values for name, values in collected.items()}
            collected.clear()
            collected.update(named)
        super().log(logs, start_time)


def _checks_positions(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor to reject positional arguments that must be named, and to say what a chat template refuses."""
    parameters = list(inspect.signature(init).parameters.values())[1:]
    names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    takes_more = any(one.kind is one.VAR_POSITIONAL for one in parameters)

    @functools.wraps(init)
    def checked(self: Any, *positional: Any, **named: Any) -> None:
        misplaced = any(
            isinstance(value, kind) and name != place
            for place, value in zip(names, positional, strict=False)
            for name, kind in (("args", TrainingArguments), ("train_dataset", Dataset))
        )
        if misplaced or (len(positional) > len(names) and not takes_more):
            trainer, unnamed = type(self).__name__, ", ".join(name for name in names if name != "args")
            raise TypeError(
                f"{trainer}: got {', '.join(type(value).__name__ for value in positional)} without names, expected "
                f"{', '.join(names)}. Fix: {trainer}({unnamed}, args=…, train_dataset=…)."
            )
        model = named.get("model", positional[0] if positional else None)
        adapters = [*model.peft_config] if isinstance(model, PeftModel) else []
        active = model.active_adapters if isinstance(model, PeftModel) else ["default"]
        if active != ["default"] or "ref" in adapters:
            raise ValueError(
                f"{type(self).__name__}: of the policy's adapters {', '.join(adapters)} the active one is "
                f"{', '.join(active)}, expected default alone, which TRL trains, copies as ref and saves. Fix: "
                "PeftModel.from_pretrained(base, folder, is_trainable=True), without another adapter_name."
            )
        args = named.get("args", dict(zip(names, positional, strict=False)).get("args"))
        if getattr(model, "_hf_peft_config_loaded", False) and getattr(args, "beta", 0.0):
            raise ValueError(
                f"{type(self).__name__}: the policy has an adapter of transformers' own add_adapter, which has no "
                "reference without it. Fix: a model with PeftModel.from_pretrained or get_peft_model, or beta=0."
            )
        if "peft_config" in named:
            named["peft_config"] = _with_revision(named["peft_config"], model, args)
        try:
            with new_adapters_leave_the_base(model):
                init(self, *positional, **named)
        except TemplateError as error:
            raise ValueError(
                f"{type(self).__name__}: the chat template cannot write a conversation ({type(error).__name__}: "
                f"{error}). Fix: a processor whose chat_template takes the roles of the rows, and assistant."
            ) from error
        except ValueError as error:
            if "Target module" in str(error) and "is not supported" in str(error):  # PEFT's, with all of the module
                target = str(error).partition("(")[0].removeprefix("Target module ")
                raise ValueError(
                    f"{type(self).__name__}: the peft_config names layers of a kind that PEFT does not adapt "
                    f"({target}), as in a vision encoder whose layers are named as the language model's. Fix: "
                    'target_modules="all-linear", or a regular expression as '
                    'r".*language_model.*\\.(q_proj|v_proj)".'
                ) from error
            # PEFT's words, of biases and of AdaLoRA; the constructor that this one calls may have said it
            if "supports only 1" not in str(error) or "no copy of" in str(error):
                raise
            raise ValueError(
                f"{type(self).__name__}: no copy of the policy's adapter can be its reference ({error}). Fix: beta=0, "
                "or merge the adapter into its base model (merge_and_unload) and pass a peft_config."
            ) from error

    return checked


def _with_revision(adapter: Any, model: Any, args: Any) -> Any:
    """A new adapter's configuration with the revision of the policy: whoever loads it would take the main one for its
    base. It is a copy, as the next trainer that is given this one may train another revision."""
    revision = (getattr(args, "model_init_kwargs", None) or {}).get("revision")
    if isinstance(model, str) and revision not in (None, "main") and getattr(adapter, "revision", "") is None:
        adapter = copy(adapter)
        adapter.revision = revision
    return adapter


def config_of(trainer: Any, kind: type[Config], args: Any, model: Any, suffix: str) -> Config:
    """Return a trainer's configuration; the default has an output folder named after the model.

    Raises:
        TypeError: it is of another class.
    """
    if args is None:
        return kind(f"{str(getattr(model, 'name_or_path', model)).split('/')[-1]}-{suffix}")
    if not isinstance(args, kind):
        raise TypeError(f"{type(trainer).__name__}: args is of type {type(args).__name__}, expected {kind.__name__}.")
    return args


def check_rows(
    name: str,
    train_dataset: Any,
    eval_dataset: Any,
    columns: set[str],
    *,
    system_prompt: str | None = None,
    followup: str | None = None,
) -> None:
    """Refuse a data set that lacks columns, rows, or all the answers that are required, before slow work starts.

    So is one with media that the model would not see. Of the prompts the first alone is tried with the system prompt: a
    data set has most often one form.

    Args:
        train_dataset, eval_dataset: as the trainer was given them; the second may be a dict of several.
        system_prompt: what the trainer puts before every question.
        followup: what it says after the first answer.
    """
    named = {"train_dataset": train_dataset}
    if isinstance(eval_dataset, dict):
        named |= {f"eval_dataset[{key!r}]": dataset for key, dataset in eval_dataset.items()}
    else:
        named["eval_dataset"] = eval_dataset
    for role, dataset in named.items():
        if isinstance(dataset, tuple) and hasattr(dataset, "dataset"):
            raise TypeError(f"{name}: {role} is what load_rows returned; pass its `.dataset`.")
        if isinstance(dataset, Dataset) and not len(dataset):
            raise ValueError(f"{name}: {role} has no rows.")
        column_names = getattr(dataset, "column_names", None)
        if column_names is not None and not columns <= set(column_names):
            expected = " and ".join(f"`{column}`" for column in sorted(columns, reverse=True))
            raise ValueError(
                f"{name}: {role} has the columns {column_names}, expected {expected} among them. "
                f"Fix: {_source_of(columns)}"
            )
        if not isinstance(dataset, Dataset):
            continue  # no row of a stream can be looked at
        if prompt := to_look_at(dataset, "prompt")[0]["prompt"]:
            if followup is not None:
                refuse_plain_prompt(name, prompt)
            with_system_message(prompt, system_prompt)  # raises where a prompt cannot have it
        refuse_unseen_media(f"{name}: {role}", dataset)
        if "answer" in columns and dataset.format["type"] != "custom":
            if isinstance(dataset.features["answer"], ClassLabel):
                raise ValueError(
                    f"{name}: the answers of {role} are numbers of classes (ClassLabel), which no model says. Fix: "
                    "load_rows, which reads the names of the classes."
                )
            answers = dataset.select_columns("answer")["answer"]  # without decoding images
            if all(answer in (None, "") for answer in answers):
                raise ValueError(
                    f"{name}: no row of {role} has an answer, so that no reward can be computed. Fix: name the column "
                    "that holds the answers in `columns`, or train with SelfEvolutionTrainer, which needs none."
                )


def refuse_plain_prompt(name: str, prompt: Any) -> None:
    """Refuse a prompt that is no list of messages, which a second turn could follow."""
    if not is_conversational({"prompt": prompt}):
        raise ValueError(
            f"{name}: a second turn needs conversational prompts (a list of messages), got "
            f"{type(prompt).__name__}. Pass [{{'role': 'user', 'content': ...}}]."
        )


def _source_of(columns: set[str]) -> str:
    """How rows with these columns are made."""
    makers = (maker for column, maker in _MADE_BY.items() if column in columns)
    if maker := next(makers, None):
        return f"{maker} such rows; `dataset.rename_columns` helps where only the names differ."
    return "trl_mmreason.data.row_loading.load_rows(..., columns={'answer': ...}) brings other names into this form."


def all_rewards(name: str, own: Sequence[Callable[..., Any]], added: Any) -> list[Any]:
    """Join a method's reward functions, which come first, with those that were passed; TRL logs by name.

    Raises:
        ValueError: an added one has the name of one of the method's.
    """
    further = added if isinstance(added, list) else [added] if added else []
    duplicates = {function.__name__ for function in own} & {getattr(function, "__name__", "") for function in further}
    if duplicates:
        raise ValueError(
            f"{name}: added reward functions have the names of built-in rewards, {sorted(duplicates)}, so that their "
            "metrics would be mixed up. Rename them."
        )
    return [*own, *further]


def refuse_replaced(name: str, kwargs: dict[str, Any]) -> None:
    """Refuse arguments that would replace the loss, the metrics or the rows of a trainer that has its own."""
    for option in (
        *("data_collator", "formatting_func", "compute_loss_func", "compute_metrics"),
        "preprocess_logits_for_metrics",
    ):
        if kwargs.get(option) is not None:
            raise TypeError(f"{name}: it has its own {option}; leave `{option}` out.")


def check_turns(trainer: Any, followup: str | None, rollout_func: Any) -> None:
    """Refuse a number of turns in which something would never be said."""
    name, turns = type(trainer).__name__, trainer.max_turns
    if turns < 1:
        raise ValueError(f"{name}: got max_turns={turns}, expected 1 or more.")
    overridden = type(trainer).next_message.__qualname__ != "GroupGRPOTrainer.next_message"
    if turns == 1 and (followup is not None or overridden):
        raise ValueError(f"{name}: max_turns=1 leaves no turn after the first answer. Set it to 2 or more.")
    if turns > 1 and rollout_func is not None:
        raise ValueError(f"{name}: several turns are a rollout_func themselves. Leave it out, or train with one turn.")


def load_policy_processor(model: Any, args: GRPOConfig | None) -> Any:
    path = model if isinstance(model, str) else model.config._name_or_path
    check = check_model_folder if isinstance(model, str) else check_model_path
    check(path)
    if isinstance(model, str) and adapter_base(path) is not None:
        raise ValueError(
            f"{path} holds an adapter, expected a whole model. Pass PeftModel.from_pretrained(base, {path!r}, "
            "is_trainable=True) with its processor, or merge the adapter into its base and save that."
        )
    settings = dict((args and args.model_init_kwargs) or {})
    return AutoProcessor.from_pretrained(
        path,
        revision=settings.get("revision"),
        trust_remote_code=bool(args and args.trust_remote_code),
        padding_side="left",
        truncation_side="left",
    )


def refuse_missing_template(name: str, processing_class: Any, rows: Any) -> None:
    """Refuse messages for a policy without a chat template, which TRL would notice in the first step.

    Raises:
        TypeError: it is neither a processor nor a tokenizer.
    """
    if not isinstance(processing_class, ProcessorMixin | PreTrainedTokenizerBase):
        raise TypeError(
            f"{name}: processing_class is a {type(processing_class).__name__}, expected a processor or a tokenizer. "
            "Fix: AutoProcessor.from_pretrained(…)."
        )
    if any(getattr(each, "chat_template", None) for each in (processing_class, tokenizer_of(processing_class))):
        return
    if isinstance(rows, Dataset) and len(rows) and not isinstance(to_look_at(rows, "prompt")[0]["prompt"], str):
        raise ValueError(f"{name}: {NO_TEMPLATE}")


def pad_left(processing_class: Any) -> None:
    """Pad on the left: generation and token types need the prompt at the right end."""
    tokenizer_of(processing_class).padding_side = "left"


def without_image_columns(rows: Any, processing_class: Any, name: str) -> Any:
    """For a text-only policy remove the empty columns of images, by which TRL tells a data set of images.

    Args:
        rows: a `Dataset` or `IterableDataset`.
        processing_class: the policy's processor, which leaves rows as they are, or a text-only policy's tokenizer.

    Raises:
        ValueError: a row has an image; of a stream when the row comes.
    """
    columns = [column for column in IMAGE_COLUMNS if column in column_names(rows)]
    if isinstance(processing_class, ProcessorMixin) or not columns:
        return rows

    def check(*values: Any) -> dict[str, Any]:
        *images, number = values
        if images_of(dict(zip(columns, images, strict=True))):
            raise ValueError(
                f"{name}: row {number} has an image, which a text-only policy cannot see, nor its tokenizer prepare. "
                "Fix: for a vision-language model processing_class=AutoProcessor.from_pretrained(…), and else no image."
            )
        return {}

    return rows.map(check, input_columns=columns, with_indices=True).remove_columns(columns)


def column_names(rows: Any) -> list[str]:
    """Names of a data set's columns; a stream may not know them before its first row."""
    return rows.column_names or list(next(iter(rows), ()))
