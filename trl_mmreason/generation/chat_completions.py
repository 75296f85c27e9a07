"""Ask a chat endpoint: a request as its messages, errors with their fixes, a chat completion as samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from ..data.images import DECODING_ERRORS
from .engine import Request, Sample, SamplingParams, UnsuitableEngine
from .image_urls import data_url

if TYPE_CHECKING:
    import openai

CONNECT_SECONDS = 30.0
_SHOWN = 500  # characters of a server's own words in a reason
_RETRIED = (408, 409, 429)  # statuses that OpenAI's client also retries, besides 5xx
_NO_API = (
    "What answers there is no OpenAI-compatible server; correct the address, its port included. It usually ends in /v1."
)
_FIXES = {
    401: "Give the right key (OPENAI_API_KEY; in Python also api_key).",
    403: "The key is not allowed this; give another key (OPENAI_API_KEY), or ask for a model that it is allowed.",
    404: "There is no model {model!r}, or no API, at this address: correct the model's name (`GET …/models` lists "
    "them) or the address, which usually ends in /v1.",
    405: _NO_API,
    501: _NO_API,
}


class ServerError(UnsuitableEngine):
    """The server is unusable: nothing answers, it refuses the key, or it lacks the model."""


class RequestFailed(Exception):
    """One request failed; the text is the reason.

    Attributes:
        status: HTTP status.
        of_server: see `Failure`.
    """

    def __init__(self, reason: str, status: int | None = None, *, of_server: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.of_server = of_server


def public_address(name: str, url: str, example: str) -> SplitResult:
    """Parse a server's address; leave out user, password and query, which must not be shown.

    Raises:
        ValueError: it is not one of http; begins with `name`, and ends with `example`.
    """
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ValueError(
            f"{name} has scheme {address.scheme!r} and host {address.hostname!r}; expected an address such as "
            f"{example}."
        )
    return address._replace(netloc=address.netloc.rpartition("@")[2], query="", fragment="")


async def post(client: openai.AsyncOpenAI, body: Mapping[str, Any], url: str) -> Any:
    """Return the reply to a chat completion.

    Args:
        client: connected to the server.
        body: the call's fields.
        url: the server's address as it may be shown.

    Raises:
        RequestFailed: this call has no reply.
        ServerError: no call would have one, as the server refuses them.
        ConnectionError: nothing answers at the address.
    """
    openai = import_openai()
    try:
        return await client.post("/chat/completions", body=body, cast_to=object)
    except openai.APIStatusError as error:
        status = error.status_code
        message = f"HTTP {status} from {url}: {without_key(error_message(error), client.api_key)}"
        if after := error.response.headers.get("retry-after"):
            message = f"{message.rstrip('.')} (it asks to wait: Retry-After {after})"
        if status in _FIXES:
            raise ServerError(f"{message.rstrip('.')}. {_FIXES[status].format(model=body['model'])}") from None
        raise RequestFailed(message, status, of_server=status in _RETRIED or status >= 500) from None
    except openai.APIConnectionError as error:
        if why := await silence(client, url):
            raise ConnectionError(why) from None
        reason = f"no answer from {url}: {error} ({type(error.__cause__).__name__})"
        raise RequestFailed(reason, of_server=True) from None
    except ValueError as error:
        raise RequestFailed(f"{url} answered with broken JSON: {error}", of_server=True) from error


async def silence(client: openai.AsyncOpenAI, url: str) -> str:
    """Why a server counts as down; "" if it still answers HTTP, so that only one call lost its connection."""
    openai = import_openai()
    try:
        await client.with_options(timeout=CONNECT_SECONDS, max_retries=2).get("/models", cast_to=object)
    except (openai.APIStatusError, ValueError):
        return ""
    except openai.APIConnectionError as error:
        return f"Nothing answers at {url} ({type(error.__cause__).__name__})"
    return ""


async def keep_final(response: Any) -> None:
    """Let the client of OpenAI, which repeats every 5xx, take what no call can change as final.

    Whether a server lists its models says nothing about that: some hosted APIs do not.
    """
    if response.status_code in _FIXES:
        response.headers["x-should-retry"] = "false"


def error_message(error: openai.APIStatusError) -> str:
    """The server's own words."""
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    if isinstance(body, str) and body.startswith("<"):  # an HTML page
        message = error.response.reason_phrase
    return str(message or body or error.response.reason_phrase)


def without_key(text: str, key: str) -> str:
    """The beginning of a server's message, without the API key, which some repeat."""
    return (text.replace(key, "<key>") if key != "EMPTY" else text)[:_SHOWN]


def import_openai() -> Any:
    """Import `openai`, or raise an error that says how to install it."""
    try:
        import openai
    except ImportError as error:
        raise ImportError(
            'ServerEngine needs the package openai: pip install "trl-mmreason[server]".', name="openai"
        ) from error
    return openai


def chat_messages(request: Request) -> list[dict[str, Any]]:
    """Convert a request to a chat endpoint's messages, with pictures before the user's first text.

    Pictures travel as PNG, as engines in this process see them, without what else their files held.

    Raises:
        RequestFailed: a picture cannot be read, or there is no user message to put pictures into.
    """
    messages = [_with_urls(message) for message in request.messages]
    if request.images:
        first = next((message for message in messages if message["role"] == "user"), None)
        if first is None:
            raise RequestFailed(f"{len(request.images)} pictures came without a user message to put them into")
        pictures = [_url_part(image) for image in request.images]
        first["content"] = [*pictures, {"type": "text", "text": first["content"]}]
    if request.prefix:
        messages.append({"role": "assistant", "content": request.prefix})
    return messages


def _with_urls(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with each picture among its parts as a URL."""
    if isinstance(message["content"], str):
        return dict(message)
    parts = [_url_part(part["image"]) if part["type"] == "image" else part for part in message["content"]]
    return {**message, "content": parts}


def _url_part(image: Any) -> dict[str, Any]:
    try:
        return {"type": "image_url", "image_url": {"url": data_url(image)}}
    except DECODING_ERRORS as error:
        raise RequestFailed(f"a picture cannot be read: {error}") from error


def read_reply(reply: Any, sampling_params: SamplingParams) -> list[Sample]:
    """Parse the answers in a chat completion, ordered by index.

    Raises:
        AttributeError, KeyError, TypeError: it is no chat completion.
        ValueError: an answer is missing, unfinished or without the log-probabilities that were asked for.
    """
    choices = sorted(reply["choices"], key=lambda choice: choice.get("index", 0))
    if not choices:
        raise ValueError("it holds no answer; expected at least one in choices")
    counted = _counted_tokens(reply) if len(choices) == 1 else None
    return [_sample(choice, sampling_params, counted) for choice in choices]


def _counted_tokens(reply: Mapping[str, Any]) -> int | None:
    """The server's token count of a single answer; `None` without one, or if it includes hidden thoughts."""
    usage = reply.get("usage") or {}
    hidden = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return None if hidden else usage.get("completion_tokens") or None  # some say 0 for "not known"


def _sample(choice: Mapping[str, Any], sampling_params: SamplingParams, counted_tokens: int | None) -> Sample:
    reason, message = choice["finish_reason"], choice["message"]
    text = _text_of(message.get("content"))
    if reason not in ("stop", "length") or message.get("refusal"):
        raise ValueError(f"the answer ended with {message.get('refusal') or reason!r}; expected stop or length")
    if text is None and (message.get("reasoning_content") or message.get("reasoning")):
        raise ValueError("the server put the whole answer into its reasoning; start it without a reasoning parser")
    text = text or ""
    stopped_by = choice.get("stop_reason") or choice.get("matched_stop")  # vLLM's and SGLang's names
    if stopped_by in sampling_params.stop and not text.endswith(stopped_by):
        text += stopped_by
    return Sample(
        text, reason, choice.get("token_ids"), _logprobs(choice) if sampling_params.logprobs else None, counted_tokens
    )


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
