"""The subset of OpenAI's chat API in `mmreason serve`: parse a body into a request, format answers as a reply.

Beyond OpenAI's fields it knows vLLM's `top_k`, `continue_final_message` with `add_generation_prompt`,
`include_stop_str_in_output` and `return_token_ids`, all with vLLM's meaning.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import PIL.Image
from pydantic import AliasPath, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from .engine import Request, Sample, SamplingParams
from .http import HOLDS_ALL_PICTURES, ApiError, Fields, Picture

_MOST_ANSWERS = 1024  # to one request
_MOST_TOKENS = 2**31 - 1
# They say nothing about the answer.
_HARMLESS = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# Not supported, and accepted at the value that means nothing.
_NEUTRAL = {
    "stream": False,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "top_logprobs": 0,
    "logit_bias": {},
    "tools": [],
    "response_format": {"type": "text"},
}


# ----------------------------------------------------------------------------------------------------------- a body


def _or_string(of: str, as_item: Callable[[str], Any]) -> BeforeValidator:
    """Accept a string instead of a list of one item."""

    def listed(value: Any) -> list[Any]:
        if not isinstance(value, str | list):
            raise ValueError(f"Input should be a string or a list of {of}")
        return [as_item(value)] if isinstance(value, str) else value

    return BeforeValidator(listed)


class _TextPart(Fields, extra="ignore"):
    type: Literal["text"]
    text: str


class _PicturePart(Fields, extra="ignore"):
    type: Literal["image_url"]
    picture: Picture = Field(validation_alias=AliasPath("image_url", "url"))


_Part = Annotated[_TextPart | _PicturePart, Field(discriminator="type")]


class _Message(Fields, extra="ignore"):
    role: Literal["system", "user", "assistant"]
    content: Annotated[
        list[_Part], Field(fail_fast=True), _or_string("parts", lambda text: {"type": "text", "text": text})
    ]

    @property
    def text(self) -> str:
        """Join the message's text parts, as chat templates do."""
        return "".join(part.text for part in self.content if isinstance(part, _TextPart))

    @property
    def images(self) -> list[PIL.Image.Image]:
        return [part.picture for part in self.content if isinstance(part, _PicturePart)]


class ChatRequest(Fields):
    """The body of a request; `null` fields count as absent."""

    model: str = Field(default="", validate_default=True)  # first: its error is told before all others
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    messages: Annotated[list[_Message], Field(fail_fast=True), HOLDS_ALL_PICTURES] = Field(
        default=[], validate_default=True
    )
    max_tokens: int = Field(default=SamplingParams.max_new_tokens, ge=1, le=_MOST_TOKENS)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=_MOST_TOKENS)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, le=_MOST_TOKENS)
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True), _or_string("strings", str)] = []
    include_stop_str_in_output: bool = False
    logprobs: bool = False
    n: int = Field(default=1, ge=1, le=_MOST_ANSWERS)
    seed: int = Field(default_factory=lambda: secrets.randbits(31))
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_what_means_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        fields = {name: value for name, value in body.items() if value is not None and name not in _HARMLESS}
        return {name: value for name, value in fields.items() if name not in _NEUTRAL or value != _NEUTRAL[name]}

    @field_validator("model")
    @classmethod
    def _is_served(cls, model: str, info: ValidationInfo[dict[str, Any]]) -> str:
        if model != info.context["model"]:
            problem = f"There is no model {model!r}; this server has {info.context['model']!r}."
            raise ApiError(problem, status=404, param="model", code="model_not_found")
        return model

    @field_validator("add_generation_prompt")
    @classmethod
    def _begins_or_continues(cls, begins: bool, info: ValidationInfo[dict[str, Any]]) -> bool:
        if begins == info.data.get("continue_final_message"):
            raise ValueError(f"Input should be {not begins} where continue_final_message is {begins}")
        return begins

    @field_validator("messages")
    @classmethod
    def _ask_for_an_answer(cls, messages: list[_Message], info: ValidationInfo[dict[str, Any]]) -> list[_Message]:
        roles = [message.role for message in messages]
        for position, message in enumerate(messages):
            if message.images and (message.role != "user" or "user" in roles[:position]):
                raise ValueError(f"Only the first user message may have pictures, and messages[{position}] has some")
        continues = info.data.get("continue_final_message", False)
        last = "assistant" if continues else "user"
        if roles[-1:] != [last]:
            raise ValueError(f"Input should end with the {last}'s message where continue_final_message is {continues}")
        return messages

    @property
    def sampling_params(self) -> SamplingParams:
        return SamplingParams(
            max_new_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            stop=tuple(self.stop),
            logprobs=self.logprobs,
        )

    @property
    def request(self) -> Request:
        messages = [{"role": message.role, "content": message.text} for message in self.messages]
        prefix = messages.pop()["content"] if self.continue_final_message else ""
        images = [image for message in self.messages for image in message.images]
        return Request(messages, images, prefix, n=self.n, seed=self.seed)


# ---------------------------------------------------------------------------------------------------------- a reply


def completion(
    chat: ChatRequest, samples: Sequence[Sample], model: str, *, prompt_tokens: int, token_text: Callable[[int], str]
) -> dict[str, Any]:
    """Format a chat completion of OpenAI's API."""
    completion_tokens = sum(len(sample.token_ids or ()) for sample in samples)
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_choice(index, sample, chat, token_text) for index, sample in enumerate(samples)],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


def _choice(index: int, sample: Sample, chat: ChatRequest, token_text: Callable[[int], str]) -> dict[str, Any]:
    text = sample.text
    cut = () if chat.include_stop_str_in_output else chat.stop
    stop = next((stop for stop in cut if sample.finish_reason == "stop" and text.endswith(stop)), "")
    choice: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": text.removesuffix(stop)},
        "finish_reason": sample.finish_reason,
        "logprobs": None,
    }
    if sample.logprobs is not None:
        tokens = zip(sample.token_ids or (), sample.logprobs, strict=True)
        choice["logprobs"] = {
            "content": [
                {"token": token_text(token), "logprob": logp, "bytes": None, "top_logprobs": []}
                for token, logp in tokens
            ]
        }
    if chat.return_token_ids:
        choice["token_ids"] = sample.token_ids
    return choice
