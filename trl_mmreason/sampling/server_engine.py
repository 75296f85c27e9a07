"""Sample from any OpenAI-compatible chat endpoint: vLLM, SGLang, `mmreason serve`, hosted APIs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import PIL.Image

from ..rows import DECODING_ERRORS
from .engine import Decoding, Failure, Request, Sample, seed_of
from .pictures import data_url

if TYPE_CHECKING:
    import openai

T = TypeVar("T")

CONNECT_SECONDS = 30.0
_SHOWN = 500  # characters of a server's own words in a reason


class ServerError(RuntimeError):
    """The server cannot be used at all: nothing answers, it refuses the key, or it has no such model."""


class _RequestFailed(Exception):
    """One request has no result; the text is the reason."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class ServerEngine:
    """Sends each request to a chat endpoint, many at a time.

    A call that is answered 408, 409, 429 or 5xx, times out or loses its connection is sent again up to `max_retries`
    times, after 0.5, 1, 2, 4, 8, 8 … seconds less a random quarter, or what the server's Retry-After says up to two
    minutes. What still fails is the request's `Failure`, and so is any other 4xx at once. 401, 403, 404, and a server
    that does not answer `GET /models` either, raise `ServerError`.

    The n answers are asked for in one call. A server that returns fewer, or refuses to return more than one, is asked
    for the rest one by one. At temperature 0 one answer is asked for and repeated.

    vLLM and SGLang fill what a request leaves out from the model's own generation settings, so top-k, min-p and the
    repetition penalty are always sent. Log-probabilities are as the server defines them; vLLM's are the model's own
    unless `--logprobs-mode` says otherwise. Token ids are there if the server is asked for them, as by
    `extra_body={"return_token_ids": True}` with vLLM and `mmreason serve`. How many tokens an answer has is known
    without, if it came alone: what servers count is all the answers of a call. What a reasoning parser takes out of an
    answer is not in its text: start the server without one.

    Args:
        model: the model's name at the server.
        base_url: address of the API, as `http://127.0.0.1:8000/v1`.
        api_key: by default the environment's OPENAI_API_KEY, or "EMPTY".
        concurrency: calls in flight, those waiting for a retry included.
        timeout_seconds: how long a call may go without any byte of an answer.
        max_retries: see above.
        extra_body: further fields of each call, stored with the settings. They replace this engine's own; `None`
            leaves a field out.
        openai_only: send only fields of OpenAI's API, for hosted APIs and `transformers serve`, which refuse others.
            Top-k, a prefix and stop texts, whose text such a server cuts off, are then refused.

    Raises:
        ImportError: the `openai` package is missing.
        ValueError: an argument cannot be meant.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        api_key: str | None = None,
        concurrency: int = 32,
        timeout_seconds: float = 600.0,
        max_retries: int = 6,
        extra_body: Mapping[str, Any] | None = None,
        openai_only: bool = False,
    ) -> None:
        address = urlsplit(base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(
                f"ServerEngine: base_url has scheme {address.scheme!r} and host {address.hostname!r}; expected an "
                "address such as http://127.0.0.1:8000/v1."
            )
        if concurrency < 1 or timeout_seconds <= 0 or max_retries < 0:
            raise ValueError(
                f"ServerEngine: got concurrency={concurrency}, timeout_seconds={timeout_seconds}, "
                f"max_retries={max_retries}; expected concurrency ≥ 1, timeout_seconds > 0 and max_retries ≥ 0."
            )
        fixed = sorted({"messages", "n", "stream"} & set(extra_body or {}))
        if fixed:
            raise ValueError(f"ServerEngine: extra_body holds {fixed}, which follow from each request; leave them out.")
        _openai()
        self.model = model
        self.host = address.netloc.rpartition("@")[2]
        self.concurrency = concurrency
        self.openai_only = openai_only
        self._shown_url = f"{address.scheme}://{self.host}{address.path}"
        self._base_url = base_url
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY") or "EMPTY"
        self._timeout_seconds = timeout_seconds
        self._max_retries = max_retries
        self._extra_body = dict(extra_body or {})
        self._one_by_one = False

    def __repr__(self) -> str:
        return f"ServerEngine(model={self.model!r}, host={self.host!r}, concurrency={self.concurrency})"

    @property
    def settings(self) -> dict[str, Any]:
        """Kind, model and further fields: a job may go on against another address, and no key is ever in it."""
        return {
            "kind": "server",
            "model": self.model,
            "openai_only": self.openai_only,
            "extra_body": self._extra_body,
        }

    def sample(self, requests: Sequence[Request], decoding: Decoding) -> list[list[Sample] | Failure]:
        """n answers to each request, in order.

        Raises:
            ServerError: the server cannot be used.
            ValueError: the server is `openai_only`, and top-k, stop texts or a prefix are asked for.
        """
        if self.openai_only and (decoding.top_k or decoding.stop or any(request.prefix for request in requests)):
            raise ValueError(
                f"ServerEngine: openai_only=True, and got top_k={decoding.top_k}, stop={decoding.stop} or a prefix, "
                "which OpenAI's API does not have or would cut off. Leave them out, or use a server such as vLLM "
                "without openai_only."
            )
        from anyio.from_thread import start_blocking_portal

        # A loop in a thread of its own: the caller's thread may already run one, as in a notebook. An interrupt in the
        # caller's thread cancels all calls.
        with start_blocking_portal() as portal:
            return portal.call(self._sample, requests, decoding)

    async def _sample(self, requests: Sequence[Request], decoding: Decoding) -> list[list[Sample] | Failure]:
        openai = _openai()
        async with openai.AsyncOpenAI(
            api_key=self._api_key,
            base_url=self._base_url,
            timeout=openai.Timeout(self._timeout_seconds, connect=min(self._timeout_seconds, CONNECT_SECONDS)),
            max_retries=self._max_retries,
        ) as client:
            # A request holds its encoded pictures while its calls wait for theirs, never the other way round.
            calls = _Calls(client, asyncio.Semaphore(self.concurrency), decoding, self._shown_url, self._api_key)
            encoded = asyncio.Semaphore(self.concurrency)

            async def answer(request: Request) -> list[Sample] | Failure:
                async with encoded:
                    try:
                        return await self._answer(request, calls)
                    except _RequestFailed as failed:
                        return Failure(str(failed))

            return await _all(answer(request) for request in requests)

    async def _answer(self, request: Request, calls: _Calls) -> list[Sample]:
        body = {
            "messages": await asyncio.to_thread(chat_messages, request),
            **self._fields(request, calls.decoding),
            **self._extra_body,
        }
        # Of 31 bits, as some servers take no more.
        seeds = [seed_of(request.seed, index) >> 32 for index in range(request.n)]
        if calls.decoding.temperature == 0:
            return (await calls.ask(body, seeds[0]))[:1] * request.n
        samples: list[Sample] = []
        if request.n > 1 and not self._one_by_one:
            try:
                samples = await calls.ask({"n": request.n, **body}, seeds[0])
            except _RequestFailed as failed:
                if failed.status not in (400, 422):
                    raise
                samples = await calls.ask(body, seeds[0])  # the request may be at fault, and not that it asks for n
            self._one_by_one |= len(samples) < request.n
        rest = await _all(calls.ask(body, seed) for seed in seeds[len(samples) :])
        return [*samples[: request.n], *(one for one, *_ in rest)]

    def _fields(self, request: Request, decoding: Decoding) -> dict[str, Any]:
        """All of a call but messages, number and seed."""
        length = "max_completion_tokens" if self.openai_only else "max_tokens"
        fields: dict[str, Any] = {
            "model": self.model,
            length: decoding.max_new_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
        }
        if not self.openai_only:
            fields |= {"top_k": decoding.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0}
        if decoding.logps:
            fields["logprobs"] = True
        if decoding.stop:
            fields |= {"stop": list(decoding.stop), "include_stop_str_in_output": True}
        if request.prefix:
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        return fields


@dataclass(frozen=True)
class _Calls:
    """Single calls to the endpoint, a bounded number at a time."""

    client: openai.AsyncOpenAI
    gate: asyncio.Semaphore
    decoding: Decoding
    url: str
    secret: str

    async def ask(self, body: Mapping[str, Any], seed: int) -> list[Sample]:
        """The answers of one call.

        Raises:
            _RequestFailed: this call has no usable answer.
            ServerError: no call would have one.
        """
        fields = {name: value for name, value in {"seed": seed, **body}.items() if value is not None}
        async with self.gate:
            reply = await self._post(fields)
        try:
            return read_reply(reply, self.decoding)
        except (AttributeError, KeyError, TypeError) as error:
            raise _RequestFailed(
                f"{self.url} answered {self._shown(repr(reply))}; expected a chat completion. Does base_url end in /v1?"
            ) from error
        except ValueError as error:
            raise _RequestFailed(f"{self.url}: {error}. It answered {self._shown(repr(reply))}") from error

    async def _post(self, fields: Mapping[str, Any]) -> Any:
        openai = _openai()
        try:
            return await self.client.post("/chat/completions", body=fields, cast_to=object)
        except openai.APIStatusError as error:
            said = f"HTTP {error.status_code} from {self.url}: {self._shown(_message(error))}"
            if error.status_code in _MENDS:
                raise ServerError(f"{said}. {_MENDS[error.status_code].format(model=fields['model'])}") from None
            raise _RequestFailed(said, error.status_code) from None
        except openai.APIConnectionError as error:
            await self._check_alive()
            raise _RequestFailed(f"no answer from {self.url}: {error} ({type(error.__cause__).__name__})") from None
        except ValueError as error:
            raise _RequestFailed(f"{self.url} answered with broken JSON: {error}") from error

    async def _check_alive(self) -> None:
        """Whether the server still speaks HTTP: then a lost connection was that one call's."""
        openai = _openai()
        try:
            await self.client.with_options(timeout=CONNECT_SECONDS, max_retries=2).get("/models", cast_to=object)
        except (openai.APIStatusError, ValueError):
            return
        except openai.APIConnectionError as error:
            raise ServerError(
                f"Nothing answers at {self.url} ({type(error.__cause__).__name__}). Start the server, or mend "
                "base_url, which usually ends in /v1; HTTP_PROXY and NO_PROXY of the environment are followed."
            ) from None

    def _shown(self, text: str) -> str:
        """The beginning of what a server said, without the key, which some repeat."""
        return (text.replace(self.secret, "<key>") if self.secret != "EMPTY" else text)[:_SHOWN]


_MENDS = {
    401: "Pass the right api_key, or set OPENAI_API_KEY.",
    403: "The key is not allowed this; pass another api_key, or ask for a model that it is allowed.",
    404: "There is no model {model!r}, or no API, at this address: mend model (`GET …/models` lists them) or base_url, "
    "which usually ends in /v1.",
}


def chat_messages(request: Request) -> list[dict[str, Any]]:
    """The messages of a request as a chat endpoint takes them, pictures before the first text of the user.

    Pictures travel as PNG, in RGB as local processors see them, without what else their files held.

    Raises:
        _RequestFailed: a picture cannot be read, or there is no user message to put pictures into.
    """
    messages: list[dict[str, Any]] = [dict(message) for message in request.messages]
    if request.images:
        first = next((message for message in messages if message["role"] == "user"), None)
        if first is None:
            raise _RequestFailed(f"{len(request.images)} pictures came without a user message to put them into")
        try:
            urls = [data_url(_plain(image)) for image in request.images]
        except DECODING_ERRORS as error:
            raise _RequestFailed(f"a picture cannot be read: {error}") from error
        pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        first["content"] = [*pictures, {"type": "text", "text": first["content"]}]
    if request.prefix:
        messages.append({"role": "assistant", "content": request.prefix})
    return messages


def _plain(image: PIL.Image.Image) -> PIL.Image.Image:
    plain = image.convert("RGB")
    plain.info = {}
    return plain


def read_reply(reply: Any, decoding: Decoding) -> list[Sample]:
    """The answers in a chat completion, in the order of their indices.

    Raises:
        AttributeError, KeyError, TypeError: it is no chat completion.
        ValueError: an answer is missing, unfinished or without the log-probabilities that were asked for.
    """
    choices = sorted(reply["choices"], key=lambda choice: choice.get("index", 0))
    if not choices:
        raise ValueError("it holds no answer; expected at least one in choices")
    counted = _counted_tokens(reply) if len(choices) == 1 else None
    return [_sample(choice, decoding, counted) for choice in choices]


def _counted_tokens(reply: Mapping[str, Any]) -> int | None:
    """The tokens of the only answer; `None` if the server does not count them, or counts thoughts that it hides."""
    usage = reply.get("usage") or {}
    hidden = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return None if hidden else usage.get("completion_tokens") or None  # some say 0 for "not known"


def _sample(choice: Mapping[str, Any], decoding: Decoding, counted_tokens: int | None) -> Sample:
    reason, message = choice["finish_reason"], choice["message"]
    text = message.get("content")
    if reason not in ("stop", "length") or message.get("refusal"):
        raise ValueError(f"the answer ended with {message.get('refusal') or reason!r}; expected stop or length")
    if text is None and (message.get("reasoning_content") or message.get("reasoning")):
        raise ValueError("the answer is all reasoning that the server took out; start it without a reasoning parser")
    text = text or ""
    stopped_by = choice.get("stop_reason") or choice.get("matched_stop")  # vLLM's and SGLang's names
    if stopped_by in decoding.stop and not text.endswith(stopped_by):
        text += stopped_by
    return Sample(text, reason, choice.get("token_ids"), _logps(choice) if decoding.logps else None, counted_tokens)


def _logps(choice: Mapping[str, Any]) -> list[float]:
    content = (choice.get("logprobs") or {}).get("content")
    if content is None:
        raise ValueError("log-probabilities were asked for and did not come; sample with logps=False here")
    return [token["logprob"] for token in content]


def _message(error: openai.APIStatusError) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    return str(message or body or error.response.reason_phrase)


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results in order; when one raises, the others are stopped."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise ImportError(
            'ServerEngine needs the package openai: pip install "trl-mmreason[server]".', name="openai"
        ) from error
    return openai
