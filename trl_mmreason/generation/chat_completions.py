"""A request as the messages of a chat endpoint, and a chat completion as samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..data.images import DECODING_ERRORS, data_url
from .engine import Request, Sample, SamplingParams
from .servers import RequestFailed


def chat_messages(request: Request) -> list[dict[str, Any]]:
    """Convert a request to a chat endpoint's messages, with pictures before the user's first text.

    Pictures travel as PNG, as engines in this process see them, without what else their files held.

    Raises:
        RequestFailed: a picture cannot be read, or there is no user message to put pictures into.
    """
    messages: list[dict[str, Any]] = [dict(message) for message in request.messages]
    if request.images:
        first = next((message for message in messages if message["role"] == "user"), None)
        if first is None:
            raise RequestFailed(f"{len(request.images)} pictures came without a user message to put them into")
        try:
            urls = [data_url(image) for image in request.images]
        except DECODING_ERRORS as error:
            raise RequestFailed(f"a picture cannot be read: {error}") from error
        pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        first["content"] = [*pictures, {"type": "text", "text": first["content"]}]
    if request.prefix:
        messages.append({"role": "assistant", "content": request.prefix})
    return messages


def read_reply(reply: Any, sampling_params: SamplingParams) -> list[Sample]:
    """Parse the answers in a chat completion, ordered by index.

    Raises:
        AttributeError, KeyError, TypeError: it is no chat completion.
        ValueError: an answer is missing, unfinished or without the log-probabilities that were asked for.
    """
    choices = sorted(reply["choices"], key=lambda choice: choice.get("index", 0))
    if not choices:
        raise ValueError("it holds no answer; expected at least one in choices")
    counted = _counted_tokens(reply.get("usage") or {}) if len(choices) == 1 else None
    return [_sample(choice, sampling_params, counted) for choice in choices]


def _counted_tokens(usage: Mapping[str, Any]) -> int | None:
    """The server's token count of a single answer; `None` without one, or if it includes hidden thoughts."""
    hidden = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return None if hidden else usage.get("completion_tokens") or None  # some say 0 for "not known"


def _sample(choice: Mapping[str, Any], sampling_params: SamplingParams, counted_tokens: int | None) -> Sample:
    reason, message = choice["finish_reason"], choice["message"]
    text = _text_of(message.get("content"))
    if reason not in ("stop", "length") or message.get("refusal"):
        raise ValueError(f"the answer ended with {message.get('refusal') or reason!r}; expected stop or length")
    if text is None and (message.get("reasoning_content") or message.get("reasoning")):
        raise ValueError("the server put the whole answer into its reasoning; start it without a reasoning parser")
    stopped_by = choice.get("stop_reason") or choice.get("matched_stop")  # vLLM's and SGLang's names
    text = text or ""
    if stopped_by in sampling_params.stop and not text.endswith(stopped_by):
        text += stopped_by
    logprobs = _logprobs(choice) if sampling_params.logprobs else None
    return Sample(text, reason, choice.get("token_ids"), logprobs, counted_tokens)


def _text_of(content: Any) -> str | None:
    """The text of an answer, which some servers send in parts."""
    if isinstance(content, list):
        are_text = all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content)
        content = "".join(part["text"] for part in content) if are_text else content
    if content is not None and not isinstance(content, str):
        raise ValueError("the answer is neither a string nor parts of text")
    return content


def _logprobs(choice: Mapping[str, Any]) -> list[float]:
    content = (choice.get("logprobs") or {}).get("content")
    if content is None:
        raise ValueError("the server returned no log-probabilities; sample with logprobs=False here")
    return [token["logprob"] for token in content]
