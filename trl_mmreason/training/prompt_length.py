"""Which rows a policy can read: count the tokens of prompts, images included, and drop rows with overlong ones."""

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
