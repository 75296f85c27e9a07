"""Whether a processor's fields, and the rows it meets, can be trained on; which rows are tried for that.

Each check returns one sentence, or `None` if all is well; `model_checks` runs them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jinja2
from datasets import Dataset
from PIL import Image
from torch import Tensor
from transformers import ProcessorMixin
from trl.data_utils import prepare_multimodal_messages

from ..compat.chat_template import tokenizer_of
from ..data.images import IMAGE_COLUMNS, images_of, stored_images
from ..generation.batch import Prompt, encode
from ..generation.model_loading import ENCODING_ERRORS
from ..messages import with_system_message

logger = logging.getLogger(__name__)

_TEXT = "What is 12 + 30? Let me think: 12 + 30 = 42, so the answer is 42."
IMAGES_NEED = "a checkpoint that comes with a processor, and a chat template that writes images"
NO_TEMPLATE = (
    "the policy has no chat template, which prompts of messages need. Fix: train an instruction-tuned checkpoint, or "
    "put a chat_template.jinja beside its weights."
)
TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")  # 0 for text, as every trainer says of an answer
_TRIED = 8  # rows that are encoded to find another length
_LOOKED_AT = 64  # rows at the beginning, and rows spread over the others, to find one with images and one without


def to_look_at(rows: Dataset, *columns: str) -> Dataset:
    """The rows with these columns alone, so that no other is decoded; with a transform, which may read any of them, the
    first `_LOOKED_AT` as they are."""
    if rows.format["type"] == "custom":
        return rows.select(range(min(len(rows), _LOOKED_AT)))
    return rows.select_columns([*columns])


def some_rows(processing_class: Any, rows: Any) -> list[Prompt]:
    """The prompts of the first row with images and of the first without, among `_LOOKED_AT` rows and a few others.

    The first comes again behind the second, as some families go wrong from a batch's second row with images on. Where
    all rows are of one kind, the second is one of another length, so that one of them is padded.
    Rows that cannot be encoded are left to those who refuse them.
    """
    if not isinstance(rows, Dataset) or "prompt" not in rows.column_names:
        return []
    found: dict[bool, Prompt] = {}
    padded: Prompt | None = None
    columns = [name for name in ("prompt", *IMAGE_COLUMNS) if name in rows.column_names]
    places = {*range(min(len(rows), _LOOKED_AT)), *range(0, len(rows), max(len(rows) // _LOOKED_AT, 1))}
    first = to_look_at(rows.select(sorted(places)), *columns)
    stored = (table.to_pylist()[0] for table in first.with_format("arrow"))  # undecoded
    for number, row in enumerate(stored):
        if (has_images := bool(stored_images(row))) in found and (padded or number >= _TRIED):
            continue
        try:
            row = first[number]
            messages = [{"role": "user", "content": row["prompt"]}] if isinstance(row["prompt"], str) else row["prompt"]
            prompt = encode(processing_class, messages, images_of(row))
        except ENCODING_ERRORS:
            continue
        if has_images not in found:
            found[has_images] = prompt
        elif len(prompt.ids) != len(found[has_images].ids):
            padded = prompt
    if len(found) == 1 and padded:
        (prompt,) = found.values()
        return [prompt, padded, prompt]
    return [found[has_images] for has_images in (True, False, True) if has_images in found]


def check_template(name: str, processing_class: Any, spoken: str) -> None:
    """Refuse a chat template that changes the assistant's text, such as one that drops thoughts.

    Raises:
        ValueError: there is no template, or it does not write that as it is.
    """
    if not processing_class.chat_template:
        raise ValueError(f"{name}: {NO_TEMPLATE}")
    written, _ = _written(processing_class, spoken)
    if spoken not in written:
        raise ValueError(
            f"{name}: the chat template changes the assistant's text: {spoken!r} became "
            f"{written!r}. Pass a processor whose template keeps it, such as <think>…</think> in the content."
        )


def warn_of_other_prompts(name: str, processing_class: Any, spoken: str) -> None:
    """Warn of a template by which answers that are learnt stand behind other words than a policy is asked with."""
    if problem := answer_prompt_problem(processing_class, spoken):
        logger.warning("%s: %s", name, problem)


def answer_prompt_problem(processing_class: Any, spoken: str) -> str | None:
    """What `warn_of_other_prompts` warns of, in a sentence."""
    written, asked = _written(processing_class, spoken)
    if written.startswith(asked):
        return None
    same = len(os.path.commonprefix([written, asked]))
    return (
        f"the chat template asks for an answer with {asked[max(same - 20, 0) :]!r}, which does not stand "
        f"before the answers that are learnt ({written[max(same - 20, 0) : same + 20]!r}). Fix: completions that begin "
        "as it does, or a processor whose template writes it before answers, too."
    )


def _written(processing_class: Any, spoken: str) -> tuple[str, str]:
    """A question and an answer as the chat template writes them, and the question up to the answer."""
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": spoken}]
    if isinstance(processing_class, ProcessorMixin):
        messages = prepare_multimodal_messages(messages)
    asked = processing_class.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    return processing_class.apply_chat_template(messages, tokenize=False), asked


@contextmanager
def needs_image_token(name: str) -> Iterator[None]:
    """Refuse a policy of images whose configuration does not name their token, as Kosmos-2's: TRL asks for it."""
    try:
        yield
    except AttributeError as error:
        if "image_token_id" not in str(error):
            raise
        raise ValueError(
            f"{name}: TRL asks the model's configuration for the token of images ({error}). Fix: another model, or a "
            "report to TRL."
        ) from error


def processor_problem(processing_class: Any) -> str | None:
    """Whether a tokenizer names the end of answers, and a processor reads images, and none of its fields has an entry
    for each token: answers would need that, too."""
    if tokenizer_of(processing_class).eos_token_id is None:
        return "the tokenizer has no eos_token, with which answers end. Fix: set it to the token that ends a turn."
    if not isinstance(processing_class, ProcessorMixin):
        return None
    try:
        short, long = (_fields(processing_class, text, image=True) for text in ("?", _TEXT))
    except ENCODING_ERRORS as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        name = type(processing_class).__name__
        return f"{name} cannot write a question with an image ({reason:.200}). Fix: {IMAGES_NEED}."
    by_token = (short["input_ids"], long["input_ids"])
    for name, shape in short.items():
        if shape != long.get(name) and (shape, long.get(name)) != by_token:
            return (
                f"{type(processing_class).__name__} returns {name} with an entry for each token of the prompt "
                f"({shape}), which trainers cannot continue over an answer. Fix: another model."
            )
    return None


def collated_problem(processing_class: Any) -> str | None:
    """Whether a processor returns token types that TRL's collators of completions leave out."""
    fields = _shapes(processing_class, _TEXT, image=True) or {}
    known = ("input_ids", "attention_mask", "labels", *TOKEN_TYPES)
    for name, shape in fields.items():
        if shape == fields["input_ids"] and name not in known:
            return (
                f"{type(processing_class).__name__} returns {name} with a value per token, which TRL's collators do "
                "not continue over a completion. Fix: a trainer that samples, or another model."
            )
    return None


def rows_problem(processing_class: Any, rows: Any, role: str) -> str | None:
    """Whether rows without images meet a processor that demands one."""
    if not isinstance(rows, Dataset) or _shapes(processing_class, "?", image=False) is not None:
        return None
    if _shapes(processing_class, "?", image=True) is None:
        return None  # it cannot write a plain question at all
    columns = [name for name in IMAGE_COLUMNS if name in rows.column_names]
    stored: Iterable[Mapping[str, Any]] = [{}]
    if columns:
        stored = (table.to_pylist()[0] for table in rows.select_columns(columns).with_format("arrow"))  # undecoded
    for number, row in enumerate(stored):
        if not stored_images(row):
            return (
                f"row {number} of {role} has no image, and {type(processing_class).__name__} takes no text without "
                "one. Fix: leave such rows out, or train another model."
            )
    return None


def roles_problem(
    processing_class: Any, rows: Any, role: str, system_prompt: str | None, **template: Any
) -> str | None:
    """Whether a chat template refuses the roles of a row's messages, such as a system message.

    Args:
        **template: what the trainer hands to the template, and a template of its own.
    """
    written = template.get("chat_template") or processing_class.chat_template
    if not isinstance(rows, Dataset) or "prompt" not in rows.column_names or not written:
        return None
    tried, may_refuse = set(), "raise_exception" in str(written)
    for number, row in enumerate(to_look_at(rows, "prompt")):
        if number and not may_refuse:
            break
        prompt = with_system_message(row["prompt"], system_prompt)
        roles = ("user",) if isinstance(prompt, str) else tuple(message["role"] for message in prompt)
        if roles in tried or "tool" in roles:
            continue
        tried.add(roles)
        messages = [{"role": role, "content": "?"} for role in roles]
        if isinstance(processing_class, ProcessorMixin):
            messages = prepare_multimodal_messages(messages)
        try:
            processing_class.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **template)
        except jinja2.TemplateError as error:
            return (
                f"row {number} of {role} has messages of {', '.join(roles)}, which the chat template refuses "
                f"({error}). Fix: a processor whose chat_template takes them"
                + (", or put the system message's text into the question." if "system" in roles else ".")
            )
    return None


def _shapes(processing_class: Any, text: str, *, image: bool) -> dict[str, tuple[int, ...]] | None:
    """As `_fields`; `None` if the processor does not take the question."""
    try:
        return _fields(processing_class, text, image=image)
    except ENCODING_ERRORS:
        return None


def _fields(processing_class: Any, text: str, *, image: bool) -> dict[str, tuple[int, ...]]:
    """The shape of each field of a question; empty of a tokenizer."""
    if not isinstance(processing_class, ProcessorMixin):
        return {}
    images = [Image.new("RGB", (64, 64))] if image else []
    conversation = prepare_multimodal_messages([{"role": "user", "content": text}], images=images)
    fields = processing_class.apply_chat_template(
        [conversation], tokenize=True, return_dict=True, add_generation_prompt=True, return_tensors="pt"
    )
    return {name: tuple(value.shape) for name, value in fields.items() if isinstance(value, Tensor)}
