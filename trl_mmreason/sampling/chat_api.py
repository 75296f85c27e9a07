"""The part of OpenAI's chat API that `mmreason serve` speaks: a body into a request, answers into a reply.

Beyond OpenAI's fields it knows vLLM's `top_k`, `continue_final_message` with `add_generation_prompt`,
`include_stop_str_in_output` and `return_token_ids`, all with vLLM's meaning.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import PIL.Image

from .engine import Decoding, Request, Sample
from .http import ApiError, json_object
from .pictures import picture_of

_MOST_ANSWERS = 1024  # to one request
_MOST_TOKENS = 2**31 - 1
_ROLES = ("system", "user", "assistant")
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


@dataclass(frozen=True)
class ChatRequest:
    """A body that was understood.

    Attributes:
        request, decoding: for the engine.
        cut: stop texts to cut off an answer's end.
        token_ids: whether the reply shows the answers' token ids.
    """

    request: Request
    decoding: Decoding
    cut: tuple[str, ...]
    token_ids: bool


# ----------------------------------------------------------------------------------------------------------- a body


class _Fields:
    """The fields of a body, taken out one by one, so that what is left over is what is not supported."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.left = {name: value for name, value in body.items() if value is not None and name not in _HARMLESS}

    def take(self, name: str, kind: type, default: Any) -> Any:
        value = self.left.pop(name, default)
        right = isinstance(value, (int, float) if kind is float else kind)
        if not right or (kind is not bool and isinstance(value, bool)):
            raise ApiError(f"{name} is {value!r:.80}; expected {kind.__name__}.", param=name)
        return value

    def take_int(self, name: str, default: int, *, least: int, most: int) -> int:
        value: int = self.take(name, int, default)
        if not least <= value <= most:
            raise ApiError(f"{name} is {value}; expected {least} to {most}.", param=name)
        return value

    def check_nothing_left(self) -> None:
        for name, value in self.left.items():
            if name not in _NEUTRAL:
                raise ApiError(f"{name} is not supported by this server; leave it out.", param=name)
            if value != _NEUTRAL[name]:
                raise ApiError(
                    f"{name} is {value!r:.80}; this server supports only {_NEUTRAL[name]!r}. Leave it out.", param=name
                )


def read_body(body: bytes, model: str) -> ChatRequest:
    """What a client asks of the one model that is served.

    Raises:
        ApiError: the body is not understood, or asks for what is not supported.
    """
    fields = _Fields(json_object(body, "model and messages"))
    asked = fields.take("model", str, "")
    if asked != model:
        raise ApiError(
            f"There is no model {asked!r}; this server has {model!r}.",
            status=404,
            param="model",
            code="model_not_found",
        )
    return _chat_request(fields)


def _chat_request(fields: _Fields) -> ChatRequest:
    stop = fields.left.pop("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise ApiError(f"stop is {stop!r:.80}; expected a text or a list of texts.", param="stop")
    older = fields.take_int("max_tokens", Decoding.max_new_tokens, least=1, most=_MOST_TOKENS)
    keep_stop = fields.take("include_stop_str_in_output", bool, False)
    try:
        decoding = Decoding(
            max_new_tokens=fields.take_int("max_completion_tokens", older, least=1, most=_MOST_TOKENS),
            temperature=fields.take("temperature", float, 1.0),
            top_p=fields.take("top_p", float, 1.0),
            top_k=max(fields.take_int("top_k", 0, least=-1, most=_MOST_TOKENS), 0),
            stop=tuple(stop),
            logps=fields.take("logprobs", bool, False),
        )
    except ValueError as error:
        raise ApiError(str(error)) from error
    messages, images, prefix = _conversation(fields)
    request = Request(
        messages,
        images,
        prefix,
        n=fields.take_int("n", 1, least=1, most=_MOST_ANSWERS),
        seed=fields.take("seed", int, secrets.randbits(31)),
    )
    token_ids = fields.take("return_token_ids", bool, False)
    fields.check_nothing_left()
    return ChatRequest(request, decoding, () if keep_stop else decoding.stop, token_ids)


def _conversation(fields: _Fields) -> tuple[list[dict[str, str]], list[PIL.Image.Image], str]:
    """Messages, pictures, and the beginning of the answer."""
    messages: list[dict[str, str]] = []
    images: list[PIL.Image.Image] = []
    for position, message in enumerate(fields.take("messages", list, [])):
        where = f"messages[{position}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ApiError(f"{where} is {message!r:.80}; expected a role of {_ROLES} and content.", param=where)
        first_of_user = message["role"] == "user" and all(earlier["role"] != "user" for earlier in messages)
        text, found = _content(message.get("content"), where)
        if found and not first_of_user:
            raise ApiError(f"{where} has pictures; this server takes them in the first user message.", param=where)
        messages.append({"role": message["role"], "content": text})
        images += found
    continues = fields.take("continue_final_message", bool, False)
    if fields.take("add_generation_prompt", bool, not continues) == continues:
        raise ApiError(
            "An answer is either begun (add_generation_prompt: true) or continued (continue_final_message: true); "
            "expected exactly one of them.",
            param="continue_final_message",
        )
    last = "assistant" if continues else "user"
    if not messages or messages[-1]["role"] != last:
        raise ApiError(
            f"The last message is {'missing' if not messages else 'of the ' + messages[-1]['role']}; expected one of "
            f"the {last}, with continue_final_message={continues}.",
            param="messages",
        )
    return messages[: len(messages) - continues], images, messages[-1]["content"] if continues else ""


def _content(content: Any, where: str) -> tuple[str, list[PIL.Image.Image]]:
    """Text and pictures of a message; its texts are joined, as chat templates do."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise ApiError(f"{where}.content is {content!r:.80}; expected a text or a list of parts.", param=where)
    texts: list[str] = []
    images: list[PIL.Image.Image] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "image_url" and isinstance(part.get("image_url"), dict):
            images.append(_picture(part["image_url"].get("url"), where))
        else:
            raise ApiError(f"{where} holds {part!r:.80}; expected a text or image_url part.", param=where)
    return "".join(texts), images


def _picture(url: Any, where: str) -> PIL.Image.Image:
    try:
        return picture_of(url)
    except ValueError as error:
        raise ApiError(f"{where} has {error}", param=where) from error


# ---------------------------------------------------------------------------------------------------------- a reply


def completion(
    chat: ChatRequest, samples: Sequence[Sample], model: str, *, prompt_tokens: int, token_text: Callable[[int], str]
) -> dict[str, Any]:
    """A chat completion as OpenAI's API has it."""
    answered = sum(len(sample.token_ids or ()) for sample in samples)
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_choice(index, sample, chat, token_text) for index, sample in enumerate(samples)],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": answered,
            "total_tokens": prompt_tokens + answered,
        },
    }


def _choice(index: int, sample: Sample, chat: ChatRequest, token_text: Callable[[int], str]) -> dict[str, Any]:
    text = sample.text
    stop = next((stop for stop in chat.cut if sample.finish_reason == "stop" and text.endswith(stop)), "")
    choice: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": text.removesuffix(stop)},
        "finish_reason": sample.finish_reason,
        "logprobs": None,
    }
    if sample.logps is not None:
        tokens = zip(sample.token_ids or (), sample.logps, strict=True)
        choice["logprobs"] = {
            "content": [
                {"token": token_text(token), "logprob": logp, "bytes": None, "top_logprobs": []}
                for token, logp in tokens
            ]
        }
    if chat.token_ids:
        choice["token_ids"] = sample.token_ids
    return choice
