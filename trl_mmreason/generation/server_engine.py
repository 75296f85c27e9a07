"""Sample from OpenAI-compatible chat endpoints: vLLM, SGLang, `transformers serve`, hosted APIs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from ..data.images import DECODING_ERRORS, data_url
from ..messages import with_image_parts
from .engine import Failure, Request, Sample, SamplingParams, derive_seed
from .servers import RequestFailed, Server, ServerError, Servers, import_openai, without_key

__all__ = ["ServerEngine", "ServerError"]

T = TypeVar("T")
logger = logging.getLogger(__name__)

_REFUSED_FIELDS = "Unexpected fields in the request"  # the message of `transformers serve`


class ServerEngine:
    """Sends requests concurrently to one or several chat endpoints.

    A call that is answered 408, 409, 429 or 5xx, times out or loses its connection is sent again up to `max_retries`
    times, after 0.5, 1, 2, 4, 8, 8 … seconds less a random quarter, or what the server's Retry-After says up to two
    minutes. What still fails is the request's `Failure`, and so is any other 4xx at once. 401, 403, 404, 405, 501, and
    a server that does not answer `GET /models` either, raise `ServerError`.

    Several addresses share the calls: each goes to the first server with less than `concurrency` in flight. A server
    that is down is left out from then on with a warning, and the others are asked what it had in flight. `ServerError`
    comes when none is left.

    Calls carry a `logit_bias` against the checkpoint's image placeholders, which cannot be trained on, if the server
    names its checkpoint, this can be read here, and the server's tokens are its tokens; else a warning says why not.

    The n answers are asked for in one call. A server that returns fewer, or refuses to return more than one, is asked
    for the rest one by one. At temperature 0 one answer is asked for and repeated.

    vLLM and SGLang fill what a request leaves out from the model's own generation settings, so top-k, min-p and the
    repetition penalty are always sent. `transformers serve` refuses these fields and gets them as `generation_config`.
    What it cannot do raises `ServerError`: continue a prefix, end at stop strings, return log-probabilities, or leave
    thoughts in the answers of some families.

    Log-probabilities are as the server defines them; vLLM's are the model's own unless `--logprobs-mode` says
    otherwise. vLLM returns token ids with `extra_body={"return_token_ids": True}`; the number of tokens is also known
    of an answer that came alone. Start servers without a reasoning parser, which takes text out of answers.

    Args:
        model: the model's name at the server.
        base_url: address of the API, as `http://127.0.0.1:8000/v1`; or several of servers of the same model.
        api_key: key of the servers; by default the environment's OPENAI_API_KEY, or "EMPTY".
        concurrency: calls in flight at each address, those waiting for a retry included.
        timeout_seconds: how long a call may go without any byte of an answer.
        max_retries: see above.
        extra_body: further fields of each call, stored with the settings. They replace this engine's own; `None`
            leaves a field out.
        openai_only: send only fields of OpenAI's API, for hosted APIs, which refuse others. Top-k, a prefix and stop
            strings, whose text such a server cuts off, are then refused, and placeholders are not looked for.
        suppressed_ids: tokens that the model must not write, in the place of the placeholders; () for none.

    Raises:
        ImportError: the `openai` package is missing.
        ValueError: an argument cannot be meant.
    """

    works_elsewhere = True

    def __init__(
        self,
        model: str,
        base_url: str | Sequence[str],
        *,
        api_key: str | None = None,
        concurrency: int = 32,
        timeout_seconds: float = 600.0,
        max_retries: int = 6,
        extra_body: Mapping[str, Any] | None = None,
        openai_only: bool = False,
        suppressed_ids: Sequence[int] | None = None,
    ) -> None:
        ids = None if suppressed_ids is None else tuple(suppressed_ids)
        urls = [base_url] if isinstance(base_url, str) else list(base_url)
        if not urls or len(set(urls)) < len(urls):
            raise ValueError(f"ServerEngine: got the addresses {urls}; expected one, or several different ones.")
        self._servers = [Server(url, suppressed_ids=ids) for url in urls]
        if concurrency < 1 or timeout_seconds <= 0 or max_retries < 0:
            raise ValueError(
                f"ServerEngine: got concurrency={concurrency}, timeout_seconds={timeout_seconds}, "
                f"max_retries={max_retries}; expected concurrency ≥ 1, timeout_seconds > 0 and max_retries ≥ 0."
            )
        # One seed would make all answers to a question alike; None leaves it out, for a server that takes none.
        given = {name for name, value in (extra_body or {}).items() if (name, value) != ("seed", None)}
        if fixed := sorted({"messages", "n", "seed", "stream"} & given):
            raise ValueError(f"ServerEngine: extra_body holds {fixed}, which follow from each request; leave them out.")
        import_openai()
        self.model = model
        self.openai_only = openai_only
        self._extra_body = dict(extra_body or {})
        self._concurrency = concurrency
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY") or "EMPTY"
        self._connect = partial(Servers, self._servers, self._api_key, concurrency, timeout_seconds, max_retries)
        self._finds_placeholders = not openai_only and "logit_bias" not in self._extra_body
        self._one_by_one = False
        self._takes_generation_config = False  # as `transformers serve` does, once it has refused other fields
        self._warned_of: set[str] = set()

    def __repr__(self) -> str:
        hosts = [server.host for server in self._servers]
        shown = f"host={hosts[0]!r}" if len(hosts) == 1 else f"hosts={hosts}"
        return f"ServerEngine(model={self.model!r}, {shown}, concurrency={self._concurrency})"

    @property
    def settings(self) -> dict[str, Any]:
        """Kind, model and further fields, without addresses, so that a job may resume with others, and without keys."""
        return {"kind": "server", "model": self.model, "openai_only": self.openai_only, "extra_body": self._extra_body}

    def check(self) -> None:
        """Refuse addresses of which none answers by a `ServerError`, before work that a run without one would lose."""

        async def check() -> None:
            async with aclosing(self._connect()) as servers:
                await servers.check()

        self._run(check)

    def _run(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Run in a loop in a thread of its own: the caller's thread may already run one, as in a notebook. An interrupt
        in the caller's thread cancels all calls."""
        from anyio.from_thread import start_blocking_portal

        with start_blocking_portal() as portal:
            return portal.call(function, *arguments)

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Sample n answers to each request, in order; see `Engine`.

        Raises:
            ServerError: the server cannot be used.
            ValueError: the server is `openai_only`, and top-k, stop strings or a prefix are asked for.
        """
        if self.openai_only and (
            sampling_params.top_k or sampling_params.stop or any(request.prefix for request in requests)
        ):
            raise ValueError(
                f"ServerEngine: openai_only=True, and got top_k={sampling_params.top_k}, "
                f"stop={sampling_params.stop} or a prefix, which OpenAI's API does not have or would cut off. Leave "
                "them out, or use a server such as vLLM without openai_only."
            )
        return self._run(self._sample, requests, sampling_params)

    async def _sample(
        self, requests: Sequence[Request], sampling_params: SamplingParams
    ) -> list[list[Sample] | Failure]:
        async with aclosing(self._connect()) as servers:
            if self._finds_placeholders:
                await servers.find_placeholders(self.model)
            # A request holds its encoded images while its calls wait for theirs, never the other way round.
            encoded = asyncio.Semaphore(servers.most_calls)

            async def answer(request: Request) -> list[Sample] | Failure:
                async with encoded:
                    try:
                        return await self._answer(request, sampling_params, servers)
                    except RequestFailed as failed:
                        return Failure(str(failed), failed.of_server)

            return await _all(answer(request) for request in requests)

    async def _answer(self, request: Request, sampling_params: SamplingParams, servers: Servers) -> list[Sample]:
        takes_generation_config = self._takes_generation_config
        try:
            return await self._ask(request, sampling_params, servers)
        except RequestFailed as failed:
            if takes_generation_config or self.openai_only or _REFUSED_FIELDS not in str(failed):
                raise
        self._takes_generation_config = True
        for server in self._servers:
            server.warning = ""  # its answers have no special tokens, so no placeholders
        return await self._ask(request, sampling_params, servers)

    async def _ask(self, request: Request, sampling_params: SamplingParams, servers: Servers) -> list[Sample]:
        messages = await asyncio.to_thread(chat_messages, request)
        body = {"messages": messages, **self._fields(request, sampling_params), **self._extra_body}
        call = partial(self._call, servers, sampling_params)
        # Of 31 bits, as some servers take no more.
        seeds = [derive_seed(request.seed, index) >> 32 for index in range(request.n)]
        if sampling_params.temperature == 0:
            return (await call(body, seeds[0]))[:1] * request.n
        samples: list[Sample] = []
        if request.n > 1 and not self._one_by_one:
            try:
                samples = await call({"n": request.n, **body}, seeds[0])
            except RequestFailed as failed:
                if failed.status not in (400, 422):
                    raise
                samples = await call(body, seeds[0])  # the request may be at fault, and not that it asks for n
            self._one_by_one |= len(samples) < request.n
        rest = await _all(call(body, seed) for seed in seeds[len(samples) :])
        return [*samples[: request.n], *(one for one, *_ in rest)]

    async def _call(
        self, servers: Servers, sampling_params: SamplingParams, body: Mapping[str, Any], seed: int
    ) -> list[Sample]:
        """Make one call, and return its answers; raises as `Servers.post`."""
        fields = {name: value for name, value in {"seed": seed, **body}.items() if value is not None}
        reply, url = await servers.post(fields)
        try:
            if "generation_config" in fields and any(_hidden_thoughts(one["message"]) for one in reply["choices"]):
                raise ServerError(
                    f"{url} is `transformers serve`, which takes what stands between <think> and </think> out of the "
                    "answers of this model. Fix: `vllm serve`, or the model in this process."
                )
            samples = _read_reply(reply, sampling_params)
            self._warn_of_other_model(reply, url)
            self._warn_of_hidden_thoughts(reply, url)
            return samples
        except (AttributeError, KeyError, TypeError) as error:
            raise RequestFailed(
                f"{url} answered {self._shown(reply)}; expected a chat completion. Does the address end in /v1?",
                of_server=True,
            ) from error
        except ValueError as error:
            raise RequestFailed(f"{url}: {error}. It answered {self._shown(reply)}") from error

    def _shown(self, reply: Any) -> str:
        return without_key(repr(reply), self._api_key)

    def _warn_of_other_model(self, reply: Any, url: str) -> None:
        """Warn once of a model of another name; hosted APIs add a date to the name, or leave its owner out."""
        answered = reply.get("model")
        if not isinstance(answered, str) or answered in self._warned_of:
            return
        if self.model.lower() not in answered.lower() and answered.lower() not in self.model.lower():
            self._warned_of.add(answered)
            logger.warning("%s was asked for the model %r, and %r answered", url, self.model, answered)

    def _warn_of_hidden_thoughts(self, reply: Any, url: str) -> None:
        """Warn once of a server that takes thoughts out of answers: a policy would never learn them."""
        if url not in self._warned_of and any(_hidden_thoughts(choice["message"]) for choice in reply["choices"]):
            self._warned_of.add(url)
            logger.warning(
                "%s puts the thoughts of an answer beside it, where they are not read: rows that are made of such "
                "answers have none. Fix: start it without a reasoning parser",
                url,
            )

    def _fields(self, request: Request, sampling_params: SamplingParams) -> dict[str, Any]:
        """A call's fields except messages, number and seed."""
        length = "max_completion_tokens" if self.openai_only else "max_tokens"
        fields: dict[str, Any] = {
            "model": self.model,
            length: sampling_params.max_new_tokens,
            "temperature": sampling_params.temperature,
            "top_p": sampling_params.top_p,
        }
        if self._takes_generation_config:
            return self._with_generation_config(fields, request, sampling_params)
        # Fields of OpenAI's API; vLLM takes them from the checkpoint's generation_config.json if they are left out.
        fields |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
        if not self.openai_only:
            fields |= {"top_k": sampling_params.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0}
        if sampling_params.logprobs:
            fields["logprobs"] = True
        if sampling_params.stop:
            fields |= {"stop": list(sampling_params.stop), "include_stop_str_in_output": True}
        if request.prefix:
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        return fields

    def _with_generation_config(
        self, fields: dict[str, Any], request: Request, sampling_params: SamplingParams
    ) -> dict[str, Any]:
        """The fields for `transformers serve`, which takes all else from the checkpoint's generation settings."""
        if request.prefix or sampling_params.stop or sampling_params.logprobs:
            raise ServerError(
                f"The server of {self.model!r} is `transformers serve`, which can neither continue an answer, nor end "
                "it at a stop string, nor return log-probabilities. Fix: `vllm serve`, or the model in this process."
            )
        temperature = sampling_params.temperature
        config = {"do_sample": temperature > 0, "top_k": sampling_params.top_k, "min_p": 0.0, "repetition_penalty": 1.0}
        return {**fields, "generation_config": json.dumps({**config, "temperature": temperature or 1.0})}


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all results in order; when one raises, cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def chat_messages(request: Request) -> list[dict[str, Any]]:
    """Convert a request to a chat endpoint's messages, with each image at its place.

    Images travel as PNG, as engines in this process see them, without what else their files held.

    Raises:
        RequestFailed: an image cannot be read, or has no place.
    """
    messages = [dict(message) for message in with_image_parts(request.messages, len(request.images))]
    if request.images:
        first = next((message for message in messages if message["role"] == "user"), None)
        if first is None:
            raise RequestFailed(f"{len(request.images)} images came without a user message to put them into")
        if isinstance(first["content"], str):
            places = [{"type": "image"} for _ in request.images]
            first["content"] = [*places, {"type": "text", "text": first["content"]}]
    contents = [message["content"] for message in messages if not isinstance(message["content"], str)]
    places = [part for content in contents for part in content if part["type"] == "image" and part.get("image") is None]
    if len(places) != len(request.images):
        raise RequestFailed(f"{len(request.images)} images came, and the messages have {len(places)} places for them")
    images = iter(request.images)
    for message in messages:
        if not isinstance(message["content"], str):
            message["content"] = [_with_url(part, images) for part in message["content"]]
    if request.prefix:
        messages.append({"role": "assistant", "content": request.prefix})
    return messages


def _with_url(part: Mapping[str, Any], images: Iterator[Any]) -> Mapping[str, Any]:
    """A part; one of an image as a URL: the part's own, or the next of `images`."""
    if part["type"] != "image":
        return part
    image = next(images) if part.get("image") is None else part["image"]
    try:
        return {"type": "image_url", "image_url": {"url": data_url(image)}}
    except DECODING_ERRORS as error:
        raise RequestFailed(f"an image cannot be read: {error}") from error


def _read_reply(reply: Any, sampling_params: SamplingParams) -> list[Sample]:
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
    if text is None and _hidden_thoughts(message):
        raise ValueError("the server put the whole answer into its reasoning; start it without a reasoning parser")
    stopped_by = choice.get("stop_reason") or choice.get("matched_stop")  # vLLM's and SGLang's names
    text = text or ""
    if stopped_by in sampling_params.stop and not text.endswith(stopped_by):
        text += stopped_by
    logprobs = _logprobs(choice) if sampling_params.logprobs else None
    return Sample(text, reason, choice.get("token_ids"), logprobs, counted_tokens)


def _hidden_thoughts(message: Mapping[str, Any]) -> str | None:
    """The thoughts that a reasoning parser has taken out of an answer, under vLLM's older or newer name."""
    return message.get("reasoning_content") or message.get("reasoning")


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
