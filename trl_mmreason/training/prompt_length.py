"""Count the tokens of prompts, images included, drop rows with overlong ones, and compare them with the context.

The context is that of the policy, or of the vLLM that samples from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from transformers.utils import logging

from ..data.images import images_of
from ..generation.batch import encode
from ..messages import with_system_message
from .construction import without_image_columns

logger = logging.get_logger(__name__)

_NAMED = 5  # so many of the rows that are left out are named in the warning


def prompt_length(
    row: Mapping[str, Any], processing_class: Any, *, system_prompt: str | None = None, **template: Any
) -> int:
    """Count a prompt's tokens with the policy's processor.

    An image counts as the placeholder tokens that the processor widens it to.

    Args:
        row: with prompt, and optionally images (or image).
    """
    prompt = with_system_message(row["prompt"], system_prompt)
    if isinstance(prompt, str):  # TRL tokenizes a string as it is, and shows the policy no image
        return len(processing_class(text=[prompt])["input_ids"][0])
    return len(encode(processing_class, prompt, images_of(row), **template).ids)


def prompt_lengths(rows: Dataset, processing_class: Any, **prompting: Any) -> list[int]:
    """Count the tokens of all prompts; under several processes each measures a share of the rows."""
    state = PartialState()
    with state.split_between_processes(list(range(len(rows)))) as share:
        lengths = [prompt_length(rows[place], processing_class, **prompting) for place in share]
    return gather_object(lengths) if state.num_processes > 1 else lengths


def leave_out_unreadable(name: str, args: Any, kwargs: dict[str, Any], system_prompt: str | None) -> None:
    """Before a GRPO trainer's constructor: refuse images for a text-only policy, and leave out overlong prompts.

    Raises:
        ValueError: a text-only policy gets an image, or every prompt is too long.
    """
    processing_class = kwargs["processing_class"]
    for role in ("train_dataset", "eval_dataset"):
        rows = kwargs.get(role)
        if isinstance(rows, Dataset | IterableDataset):
            kwargs[role] = without_image_columns(rows, processing_class, name)
        elif isinstance(rows, dict):
            kwargs[role] = {key: without_image_columns(each, processing_class, name) for key, each in rows.items()}
    if (most := getattr(args, "max_prompt_length", None)) is not None:
        kwargs["train_dataset"] = without_overlong_prompts(
            kwargs.get("train_dataset"),
            processing_class,
            most,
            name=name,
            system_prompt=system_prompt,
            tools=kwargs.get("tools") or None,
            **(args.chat_template_kwargs or {}),
        )


def without_overlong_prompts(rows: Any, processing_class: Any, max_tokens: int, *, name: str, **prompting: Any) -> Any:
    """Return the rows whose prompt has at most `max_tokens` tokens, and warn about the others.

    Nothing is ever truncated: half an image would be lost, or the end of a question. The rows of a stream are measured
    as they come, so that nobody can count them.

    Args:
        rows: a `Dataset` or `IterableDataset` of rows as for `prompt_length`; rows without prompts, which environments
            bring, come back as they are, and so does anything else, for TRL to refuse.
        **prompting: arguments of `prompt_length`.

    Raises:
        ValueError: every prompt is too long.
    """
    if not isinstance(rows, Dataset | IterableDataset) or "prompt" not in (rows.column_names or ["prompt"]):
        return rows
    if isinstance(rows, IterableDataset):
        return rows.filter(lambda row: prompt_length(row, processing_class, **prompting) <= max_tokens)
    lengths = prompt_lengths(rows, processing_class, **prompting)
    overlong = [place for place, length in enumerate(lengths) if length > max_tokens]
    if not overlong:
        return rows
    ids = rows["id"] if "id" in rows.column_names else range(len(rows))
    message = (
        f"{name}: {len(overlong)} of {len(rows)} prompts have more than max_prompt_length={max_tokens} tokens, their "
        f"images' included; the longest has {max(lengths)}."
    )
    fix = "raise max_prompt_length, or let the processor scale images down"
    if len(overlong) == len(rows):
        raise ValueError(f"{message} No row is left. Fix: {fix}.")
    if PartialState().is_main_process:
        named = ", ".join(repr(ids[place]) for place in overlong[:_NAMED]) + (", …" if len(overlong) > _NAMED else "")
        logger.warning(f"{message} These rows were left out: {named}. To keep them, {fix}.")
    dropped = set(overlong)
    return rows.select([place for place in range(len(rows)) if place not in dropped])


def longest_prompt(trainer: Any) -> int | None:
    """The tokens of the longest prompt that can be answered; `None` where nothing is refused, as by transformers."""
    return trainer.vllm_generation.longest_prompt if trainer.use_vllm else None


def check_context(trainer: Any) -> None:
    """Before training, compare the limits of prompts and answers with the context, and prompts with what vLLM takes.

    Prompts are measured where that is not known: of an evaluation, and of training if `max_prompt_length` is too large.

    Raises:
        ValueError: vLLM would refuse a prompt that was measured.
    """
    name, args, longest = type(trainer).__name__, trainer.args, longest_prompt(trainer)
    most = getattr(args, "max_prompt_length", None)
    fix = ""
    if longest is not None:
        fix = f"raise {trainer.vllm_generation.context_setting}"
        if most is not None and most > longest:
            _check_prompts(trainer, "train_dataset", trainer.system_prompt, f"{fix}, or max_prompt_length={longest}.")
        if args.eval_strategy != "no":
            _check_prompts(trainer, "eval_dataset", trainer.eval_system_prompt, f"{fix}, or leave these rows out.")
    context = context_of(trainer)
    if most is None or context is None or not trainer.is_world_process_zero():
        return
    answers = trainer.max_turns
    followup = len(trainer._followup_ids) * (answers - 1) if answers > 1 else 0
    needed = most + answers * args.max_completion_length + followup
    if needed <= context:
        return
    if trainer.use_vllm:
        limit = f"vLLM's context holds {context} ({trainer.vllm_generation.context_setting}), which cuts answers off"
    else:
        limit = f"the policy was made for {context} (max_position_embeddings)"
    if trainer.use_vllm and followup:
        limit += "; a first answer that leaves no room gets no second one (no_room_t2)"
    logger.warning(
        f"{name}: a row may have {needed} tokens (max_prompt_length={most}, {answers} x max_completion_length="
        f"{args.max_completion_length}, {followup} between two answers), but {limit}. Fix: lower these limits"
        + (f", or {fix}." if trainer.use_vllm else ".")
    )


def context_of(trainer: Any) -> int | None:
    """The tokens that vLLM holds, or that the policy was made for; `None` if the latter is not known."""
    if trainer.use_vllm:
        return trainer.vllm_generation.context
    config = trainer.accelerator.unwrap_model(trainer.model).config.get_text_config()
    return getattr(config, "max_position_embeddings", None)


def _check_prompts(trainer: Any, role: str, system_prompt: str | None, fix: str) -> None:
    """Refuse prompts that would end the run. To leave them out is for the user to decide."""
    datasets, longest = getattr(trainer, role), trainer.vllm_generation.longest_prompt
    prompting = {"system_prompt": system_prompt, "tools": trainer.tools or None, **trainer.chat_template_kwargs}
    for key, rows in datasets.items() if isinstance(datasets, dict) else [("", datasets)]:
        if not isinstance(rows, Dataset):
            continue
        lengths = prompt_lengths(rows, trainer.processing_class, **prompting)
        if max(lengths) > longest:
            overlong = sum(length > longest for length in lengths)
            raise ValueError(
                f"{type(trainer).__name__}: {overlong} of {len(rows)} prompts of {role}{key and f'[{key!r}]'} have "
                f"more tokens, their images' included, than vLLM takes ({longest}); the longest has {max(lengths)}. "
                f"Fix: {fix}"
            )
