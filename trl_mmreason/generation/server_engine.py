"""Sample from OpenAI-compatible chat endpoints: vLLM, SGLang, `transformers serve`, hosted APIs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from .chat_completions import RequestFailed, ServerError, chat_messages, import_openai, read_reply, without_key
from .engine import Failure, Request, Sample, SamplingParams, derive_seed
from .servers import Server, Servers

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
    that is down, as above, is left out from then on: a warning names it, and the others are asked what it had in
    flight. `ServerError` comes when none is left. A call is the same whichever server gets it.

    An answer with a placeholder of a picture cannot be trained on. A server is asked which checkpoint it serves; if the
    checkpoint can be read here and the server's tokens are its tokens, calls carry a `logit_bias` against its
    placeholders, and otherwise a warning says why they do not.

    The n answers are asked for in one call. A server that returns fewer, or refuses to return more than one, is asked
    for the rest one by one. At temperature 0 one answer is asked for and repeated.

    vLLM and SGLang fill what a request leaves out from the model's own generation settings, so top-k, min-p and the
    repetition penalty are always sent. `transformers serve` refuses these fields and gets them as `generation_config`;
    it removes special tokens from its answers. What it cannot do raises `ServerError`: continue a prefix, end at stop
    strings, return log-probabilities, or leave thoughts in the answers of some families.

    Log-probabilities are as the server defines them; vLLM's are the model's own unless `--logprobs-mode` says
    otherwise. Token ids are there if the server is asked for them, as by `extra_body={"return_token_ids": True}` with
    vLLM. How many tokens an answer has is known without, if it came alone: what servers count is all the answers of a
    call. What a reasoning parser takes out of an answer is not in its text: start the server without one.

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
        base_urls = [base_url] if isinstance(base_url, str) else list(base_url)
        if not base_urls or len(set(base_urls)) < len(base_urls):
            raise ValueError(f"ServerEngine: got the addresses {base_urls}; expected one, or several different ones.")
        self._servers = [Server(url, suppressed_ids=ids) for url in base_urls]
        if concurrency < 1 or timeout_seconds <= 0 or max_retries < 0:
            raise ValueError(
                f"ServerEngine: got concurrency={concurrency}, timeout_seconds={timeout_seconds}, "
                f"max_retries={max_retries}; expected concurrency ≥ 1, timeout_seconds > 0 and max_retries ≥ 0."
            )
        fixed = sorted({"messages", "n", "stream"} & set(extra_body or {}))
        if fixed:
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
        return {
            "kind": "server",
            "model": self.model,
            "openai_only": self.openai_only,
            "extra_body": self._extra_body,
        }

    def check(self) -> None:
        """Raise if no address answers, before work that a run without a server would lose.

        Raises:
            ServerError: names them.
        """
        from anyio.from_thread import start_blocking_portal

        with start_blocking_portal() as portal:
            portal.call(self._check)

    async def _check(self) -> None:
        async with aclosing(self._connect()) as servers:
            await servers.check()

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Sample n answers to each request, in order.

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
        from anyio.from_thread import start_blocking_portal

        # A loop in a thread of its own: the caller's thread may already run one, as in a notebook. An interrupt in the
        # caller's thread cancels all calls.
        with start_blocking_portal() as portal:
            return portal.call(self._sample, requests, sampling_params)

    async def _sample(
        self, requests: Sequence[Request], sampling_params: SamplingParams
    ) -> list[list[Sample] | Failure]:
        async with aclosing(self._connect()) as servers:
            if self._finds_placeholders:
                await servers.find_placeholders(self.model)
            calls = _Calls(servers, sampling_params, self._api_key, self._warned_of)
            # Bounds the requests that hold encoded pictures; taken before a call's slot, so that none waits forever.
            encoded = asyncio.Semaphore(servers.most_calls)

            async def answer(request: Request) -> list[Sample] | Failure:
                async with encoded:
                    try:
                        return await self._answer(request, calls)
                    except RequestFailed as failed:
                        return Failure(str(failed), failed.of_server)

            return await _all(answer(request) for request in requests)

    async def _answer(self, request: Request, calls: _Calls) -> list[Sample]:
        takes_generation_config = self._takes_generation_config
        try:
            return await self._ask(request, calls)
        except RequestFailed as failed:
            if takes_generation_config or self.openai_only or _REFUSED_FIELDS not in str(failed):
                raise
        self._takes_generation_config = True
        for server in self._servers:
            server.warning = ""  # its answers have no special tokens, so no placeholders
        return await self._ask(request, calls)

    async def _ask(self, request: Request, calls: _Calls) -> list[Sample]:
        body = {
            "messages": await asyncio.to_thread(chat_messages, request),
            **self._fields(request, calls.sampling_params),
            **self._extra_body,
        }
        # Of 31 bits, as some servers take no more.
        seeds = [derive_seed(request.seed, index) >> 32 for index in range(request.n)]
        if calls.sampling_params.temperature == 0:
            return (await calls.ask(body, seeds[0]))[:1] * request.n
        samples: list[Sample] = []
        if request.n > 1 and not self._one_by_one:
            try:
                samples = await calls.ask({"n": request.n, **body}, seeds[0])
            except RequestFailed as failed:
                if failed.status not in (400, 422):
                    raise
                samples = await calls.ask(body, seeds[0])  # the request may be at fault, and not that it asks for n
            self._one_by_one |= len(samples) < request.n
        rest = await _all(calls.ask(body, seed) for seed in seeds[len(samples) :])
        return [*samples[: request.n], *(one for one, *_ in rest)]

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


@dataclass(frozen=True)
class _Calls:
    """Single calls to the servers."""

    servers: Servers
    sampling_params: SamplingParams
    key: str
    warned_of: set[str]

    async def ask(self, body: Mapping[str, Any], seed: int) -> list[Sample]:
        """Make one call, and return its answers.

        Raises:
            RequestFailed: this call has no usable answer.
            ServerError: no call would have one.
        """
        fields = {name: value for name, value in {"seed": seed, **body}.items() if value is not None}
        reply, url = await self.servers.post(fields)
        try:
            if "generation_config" in fields and any(
                one["message"].get("reasoning_content") for one in reply["choices"]
            ):
                raise ServerError(
                    f"{url} is `transformers serve`, which takes what stands between <think> and </think> out of the "
                    "answers of this model. Fix: `vllm serve`, or the model in this process."
                )
            samples = read_reply(reply, self.sampling_params)
            self._warn_of_other_model(reply, fields["model"], url)
            return samples
        except (AttributeError, KeyError, TypeError) as error:
            raise RequestFailed(
                f"{url} answered {self._shown(reply)}; expected a chat completion. Does the address end in /v1?",
                of_server=True,
            ) from error
        except ValueError as error:
            raise RequestFailed(f"{url}: {error}. It answered {self._shown(reply)}") from error

    def _warn_of_other_model(self, reply: Any, asked: str, url: str) -> None:
        """Warn once of a model of another name; hosted APIs add a date to the name, or leave its owner out."""
        answered = reply.get("model")
        if not isinstance(answered, str) or answered in self.warned_of:
            return
        if asked.lower() not in answered.lower() and answered.lower() not in asked.lower():
            self.warned_of.add(answered)
            logger.warning("%s was asked for the model %r, and %r answered", url, asked, answered)

    def _shown(self, reply: Any) -> str:
        """The beginning of a reply, without the API key, which some servers repeat."""
        return without_key(repr(reply), self.key)


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all results in order; when one raises, cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
