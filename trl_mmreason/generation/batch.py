"""Batched generation with any transformers model, vision-language or text-only.

Conversations are encoded one by one, so that one which cannot be encoded harms no other, and rows are padded here: the
processor's padding side does not matter, and batches may mix rows with and without images.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import PIL.Image
import torch
from peft import PeftModel
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, ProcessorMixin

from ..compat.chat_template import (
    ProcessingClass,
    check_ended,
    declared_end_ids,
    end_of_answer,
    next_turn_ids,
    text_after_answer,
    tokenizer_of,
    warn_of_moved_images,
)
from ..compat.model_parts import placed, placeholder_ids, without_adapters
from ..data.images import plain_image
from ..messages import count_marks, with_image_parts
from .engine import Request
from .image_fields import as_tensor, image_axes, joined_fields
from .live_rows import UnknownCacheError, can_decode, can_share_prompts, decode_live_rows, step_aside

TOKEN_FIELDS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
"""Inputs of a model with a value for each token."""

_logger = logging.getLogger(__name__)

# of a generation_config.json: the caller sets these tokens and the length, or they are no setting
_NO_SAMPLER = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "max_length"}
_NO_SAMPLER |= {"transformers_version", "_from_model_config"}
_DEFAULTS = GenerationConfig._get_default_generation_params()
_IN_ROLLOUTS = (
    "rollouts leave this out, since updates assume that they are sampled from the policy itself. To sample with it, "
    "set generation_kwargs in the configuration."
)


@dataclass(frozen=True)
class Prompt:
    """One conversation as a model's input.

    Attributes:
        ids: token ids, without padding.
        token_fields: the family's further inputs per token; 0 means text.
        image_fields: the family's inputs of images; the first dimension counts images, tiles or patches.
        image_axes: those of which another dimension does, and which.
    """

    ids: list[int]
    token_fields: dict[str, list[int]]
    image_fields: dict[str, Tensor]
    image_axes: Mapping[str, int] = field(default_factory=dict)

    def extended(self, ids: Sequence[int]) -> Prompt:
        """The prompt with text appended."""
        token_fields = {name: [*values, *[0] * len(ids)] for name, values in self.token_fields.items()}
        return Prompt([*self.ids, *ids], token_fields, self.image_fields, self.image_axes)

    def followed_by(self, turn: Prompt) -> Prompt:
        """The prompt with the user's next turn appended, which may have images."""
        if not turn.image_fields:
            return self.extended(turn.ids)
        parts = (self, turn)
        names = dict.fromkeys((*self.token_fields, *turn.token_fields))
        token_fields = {
            name: [value for part in parts for value in part.token_fields.get(name, [0] * len(part.ids))]
            for name in names
        }
        return Prompt([*self.ids, *turn.ids], token_fields, joined_images(parts), turn.image_axes)


@dataclass(frozen=True)
class NextTurn:
    """What comes after an answer, as a policy reads it.

    Attributes:
        messages: the user's message, or those of the tools that the answer called; empty if only the tokens are known.
        prompt: from after the answer's end-of-turn token up to the generation prompt.
        unexpanded_ids: its ids with one placeholder for each image.
        images: its images.
    """

    messages: Sequence[Mapping[str, Any]]
    prompt: Prompt
    unexpanded_ids: list[int]
    images: list[PIL.Image.Image]


def next_turn(
    processing_class: ProcessingClass,
    messages: Sequence[Mapping[str, Any]],
    *,
    eos_token_ids: Sequence[int],
    **template: Any,
) -> NextTurn:
    """Tokenise what comes after an answer.

    Args:
        processing_class, eos_token_ids, **template: as for `next_turn_ids`.
        messages: one of the user, as `checked_message` returns it, or those of the tools that the answer called.

    Raises:
        ValueError: there are images, and only a tokenizer; or see `next_turn_ids`.
    """
    ids = next_turn_ids(processing_class, messages, eos_token_ids=eos_token_ids, **template)
    images = [plain_image(image) for message in messages for image in images_in(message)]
    if not images:
        return NextTurn(messages, Prompt(ids, {}, {}), ids, [])
    if not isinstance(processing_class, ProcessorMixin):
        raise ValueError(f"a message has {len(images)} image(s), which a text-only model cannot see")
    text = text_after_answer(processing_class, messages, eos_token_ids=eos_token_ids, **template)
    fields = dict(processing_class(text=[text], images=[images], add_special_tokens=False))
    all_ids = list(fields.pop("input_ids")[0])
    del fields["attention_mask"]
    whole = as_prompt(all_ids, fields, image_axes(processing_class))
    end = end_of_answer(tokenizer_of(processing_class), all_ids, eos_token_ids)
    token_fields = {name: values[end:] for name, values in whole.token_fields.items()}
    return NextTurn(messages, replace(whole, ids=all_ids[end:], token_fields=token_fields), ids, images)


def images_in(message: Mapping[str, Any]) -> list[PIL.Image.Image]:
    """The images among a message's parts."""
    parts = message["content"] if isinstance(message["content"], list) else []
    return [part["image"] for part in parts if part["type"] == "image"]


def conversation_of(
    processing_class: ProcessingClass, messages: Sequence[Mapping[str, Any]], images: Sequence[PIL.Image.Image]
) -> list[dict[str, Any]]:
    """Messages for the chat template: in parts with images for a processor, each at its place, as strings for a
    tokenizer, which refuses images by a `ValueError`."""
    if isinstance(processing_class, ProcessorMixin):
        from trl.data_utils import prepare_multimodal_messages  # imported late: TRL takes seconds to load

        if images and count_marks(messages):
            warn_of_moved_images(processing_class, [list(messages)])
        placed = [dict(message) for message in with_image_parts(messages, len(images))]
        return prepare_multimodal_messages(placed, images=[plain_image(image) for image in images])
    if images:
        raise ValueError(
            f"it has {len(images)} image(s), which a text-only model cannot see; leave them out, put what they show "
            "into words, or use a vision-language model with its processor"
        )
    return [dict(message) for message in messages]


def encode(
    processing_class: ProcessingClass,
    messages: Sequence[Mapping[str, Any]],
    images: Sequence[PIL.Image.Image] | None = None,
    **template: Any,
) -> Prompt:
    """Render a conversation up to the assistant's turn.

    Args:
        processing_class: the model's processor, or a text-only model's tokenizer, which refuses images.
        messages: messages with text contents, the last one not the assistant's.
        images: images, as those of a `Request`.
    """
    return encode_conversation(processing_class, conversation_of(processing_class, messages, images or []), **template)


def encode_conversation(
    processing_class: ProcessingClass, conversation: Sequence[Mapping[str, Any]], **template: Any
) -> Prompt:
    """Render a conversation, whose images stand among its parts, up to the assistant's turn."""
    fields = dict(
        processing_class.apply_chat_template(
            [conversation], tokenize=True, return_dict=True, add_generation_prompt=True, return_tensors="pt", **template
        )
    )
    ids = fields.pop("input_ids")[0].tolist()
    del fields["attention_mask"]
    # What some tokenizers say besides, such as token types, their models do not take.
    return as_prompt(ids, fields if isinstance(processing_class, ProcessorMixin) else {}, image_axes(processing_class))


def as_prompt(ids: list[int], fields: Mapping[str, Any], axes: Mapping[str, int]) -> Prompt:
    """Make a prompt of its ids and what a processor says of it besides, as a batch of one."""
    prompt = Prompt(ids, {}, {}, axes)
    for name, value in fields.items():
        value = as_tensor(value)
        if value.shape == (1, len(ids)) and not value.is_floating_point():
            prompt.token_fields[name] = value[0].tolist()
        else:
            prompt.image_fields[name] = value
    return prompt


def collate(prompts: Sequence[Prompt], pad_token_id: int) -> dict[str, Tensor]:
    """Left-pad the rows, and concatenate their images in order."""
    width = max(len(prompt.ids) for prompt in prompts)
    inputs = {
        "input_ids": _left_pad([prompt.ids for prompt in prompts], width, pad_token_id),
        "attention_mask": _left_pad([[1] * len(prompt.ids) for prompt in prompts], width, 0),
    }
    for name in dict.fromkeys(name for prompt in prompts for name in prompt.token_fields):
        # A row that says nothing of its tokens has only text.
        inputs[name] = _left_pad([prompt.token_fields.get(name, []) for prompt in prompts], width, 0)
    return inputs | joined_images(prompts)


def joined_images(prompts: Sequence[Prompt]) -> dict[str, Tensor]:
    """Concatenate what is known of the prompts' images, in order."""
    axes = {name: axis for prompt in prompts for name, axis in prompt.image_axes.items()}
    return joined_fields([prompt.image_fields for prompt in prompts], axes)


def _left_pad(rows: Sequence[list[int]], width: int, value: int) -> Tensor:
    return torch.tensor([[value] * (width - len(row)) + row for row in rows])


@torch.no_grad()
def generate(
    model: PreTrainedModel | PeftModel, processing_class: ProcessingClass, prompts: Sequence[Prompt], **settings: Any
) -> list[list[int]]:
    """Answer a batch of prompts.

    Args:
        model: policy in evaluation mode.
        processing_class: its processor or tokenizer.
        prompts: results of `encode`. One that is there several times is read once.
        **settings: arguments of `generate`; greedy decoding by default. The checkpoint's own settings do not count.

    Returns:
        The ids of each answer, up to and including its end-of-turn token if there is one.
    """
    eos_ids = end_of_turn_ids(model, processing_class)
    own_pad = tokenizer_of(processing_class).pad_token_id
    pad_token_id = eos_ids[0] if own_pad is None else own_pad
    rows, given = prompts, settings
    distinct = list({id(prompt): prompt for prompt in prompts}.values())
    fields = {name for prompt in distinct for name in (*prompt.token_fields, *prompt.image_fields)}
    decode: Any = decode_live_rows if can_decode(model) else None
    if decode and len(distinct) < len(prompts) and can_share_prompts(model, fields, GenerationConfig()):
        place = {id(prompt): number for number, prompt in enumerate(distinct)}
        shared = torch.tensor([place[id(prompt)] for prompt in prompts], device=model.device)
        decode, prompts = partial(decode_live_rows, prompt_of=shared), distinct
    inputs = placed(collate(prompts, pad_token_id), model)
    width = inputs["input_ids"].shape[1]
    settings = {
        "do_sample": False,
        "eos_token_id": eos_ids,
        "pad_token_id": pad_token_id,
        "suppress_tokens": placeholder_ids(model.config),
        # Under ZeRO-3 transformers would wait for every process at every token, though the weights are whole here and
        # the processes ask for different things.
        "synced_gpus": False,
        **({"custom_generate": decode} if decode else {}),
        **settings,
    }
    try:
        with own_settings_only(model):
            answers = model.generate(**inputs, **settings)[:, width:].tolist()
    except UnknownCacheError as error:
        step_aside(str(error))
        return generate(model, processing_class, [replace(prompt) for prompt in rows], **given)
    return [_cut_after_end(ids, eos_ids) for ids in answers]


@contextmanager
def own_settings_only(model: PreTrainedModel | PeftModel) -> Iterator[None]:
    """Clear the model's generation settings in the block, as `generate` would fill missing arguments from them.

    TRL's supervised training leaves `output_router_logits` in the configuration of a mixture of experts, for which the
    model computes an auxiliary loss at every token, and fails with a cache.
    """
    owner = without_adapters(model)
    saved, owner.generation_config = owner.generation_config, GenerationConfig()
    text = owner.config.get_text_config()
    returns_router_logits = getattr(text, "output_router_logits", False)
    if returns_router_logits:
        text.output_router_logits = False
    try:
        yield
    finally:
        owner.generation_config = saved
        if returns_router_logits:
            text.output_router_logits = True


def warn_of_ignored_settings(
    name: str, model: PreTrainedModel | PeftModel, own: GenerationConfig, effect: str = _IN_ROLLOUTS
) -> None:
    """Warn of the checkpoint's sampling settings that a party, which samples in `own_settings_only`, leaves out.

    Args:
        model: the model, with the settings of its checkpoint's `generation_config.json`.
    """
    checkpoint = without_adapters(model).generation_config.to_diff_dict()
    ignored = {
        setting: value
        for setting, value in checkpoint.items()
        if getattr(own, setting, None) is None and setting not in _NO_SAMPLER and value != _DEFAULTS.get(setting, False)
    }
    if ignored:
        _logger.warning(
            "%s: the checkpoint's generation_config.json sets %s; %s",
            name,
            ", ".join(f"{setting}={value!r}" for setting, value in ignored.items()),
            effect,
        )


def _cut_after_end(ids: list[int], eos_ids: list[int]) -> list[int]:
    end = next((position for position, token in enumerate(ids) if token in eos_ids), len(ids))
    return ids[: end + 1]


def continued(
    processing_class: ProcessingClass,
    prompt: Prompt,
    request: Request,
    eos_ids: Sequence[int],
    template: dict[str, Any],
) -> Prompt:
    """The prompt of a request's first messages, followed by its sampled answers and the user's turns between them."""
    for answer, message in zip(request.answer_ids, request.next_messages, strict=True):
        check_ended(answer, eos_ids)
        turn = next_turn(processing_class, [message], eos_token_ids=eos_ids, **template)
        prompt = prompt.extended(answer).followed_by(turn.prompt)
    return prompt


def end_of_turn_ids(model: PreTrainedModel | PeftModel, processing_class: ProcessingClass) -> list[int]:
    """All tokens that end an answer, as in TRL: the model's and the tokenizer's."""
    return declared_end_ids(model.generation_config, processing_class)
