"""`mmreason serve`: one engine behind OpenAI's chat API, for tests and for clients on other machines.

It runs wherever PyTorch does, with every model that transformers loads, and an answer follows from its request and seed
alone. Requests that arrive together are answered in one batch, which ends with its longest answer: vLLM is the server
for many answers (docs/serving.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from .chat_api import ChatRequest, completion
from .engine import Engine, Failure, Request, Sample, SamplingParams
from .http import KEEP_ALIVE_SECONDS, MAX_BODY_BYTES, ApiError, make_app, read_bytes, read_json, unless_gone

if TYPE_CHECKING:
    from .transformers_engine import TransformersEngine

GATHER_SECONDS = 0.02  # requests that come together are no further apart


class ServedSamples(NamedTuple):
    """The samples of one request, and the length of its prompt."""

    samples: list[Sample]
    prompt_tokens: int


@dataclass(eq=False)
class _Job:
    request: Request
    sampling_params: SamplingParams
    outcome: asyncio.Future[ServedSamples | Failure]


class BatchingQueue:
    """Batches waiting requests that have the same sampling parameters, for an engine that takes one call at a time.

    Args:
        engine: called in a thread of its own, never twice at once.
        batch_size: how many answers to ask of it in one call; a request for more goes alone.
        count_prompt: tokens of a request's prompt; called in the engine's thread.
    """

    def __init__(self, engine: Engine, batch_size: int, count_prompt: Callable[[Request], int]) -> None:
        self._engine = engine
        self._batch_size = batch_size
        self._count_prompt = count_prompt
        self._jobs: list[_Job] = []
        self._arrived = asyncio.Event()

    async def sample(self, request: Request, sampling_params: SamplingParams) -> ServedSamples | Failure:
        """Wait for a request's answers; cancelling removes it from the queue, unless the engine has it already."""
        job = _Job(request, sampling_params, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._arrived.set()
        return await job.outcome

    async def run(self) -> None:
        """Process the queue until cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            while True:
                await self._arrived.wait()
                await self._gather()
                jobs = self._take()
                if not jobs:
                    continue
                work = loop.run_in_executor(
                    thread, self._sample, [job.request for job in jobs], jobs[0].sampling_params
                )
                (outcomes,) = await asyncio.gather(work, return_exceptions=True)
                for position, job in enumerate(jobs):
                    if job.outcome.done():  # its client is gone
                        continue
                    if isinstance(outcomes, BaseException):
                        job.outcome.set_exception(outcomes)
                    else:
                        job.outcome.set_result(outcomes[position])

    async def _gather(self) -> None:
        """Wait for further requests until no more arrive or a batch is full."""
        seen = 0
        while seen < len(self._jobs) and sum(job.request.n for job in self._jobs) < self._batch_size:
            seen = len(self._jobs)
            await asyncio.sleep(GATHER_SECONDS)

    def _take(self) -> list[_Job]:
        """Take the first request and those that can share its batch."""
        batch: list[_Job] = []
        left: list[_Job] = []
        room = self._batch_size
        for job in self._jobs:
            if job.outcome.done():
                continue
            if not batch or (job.sampling_params == batch[0].sampling_params and job.request.n <= room):
                batch.append(job)
                room -= job.request.n
            else:
                left.append(job)
        self._jobs = left
        if not left:
            self._arrived.clear()
        return batch

    def _sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[ServedSamples | Failure]:
        outcomes = self._engine.sample(requests, sampling_params)
        return [
            outcome if isinstance(outcome, Failure) else ServedSamples(outcome, self._count_prompt(request))
            for request, outcome in zip(requests, outcomes, strict=True)
        ]


def create_app(
    engine: Engine,
    model: str,
    *,
    token_text: Callable[[int], str],
    count_prompt: Callable[[Request], int],
    batch_size: int = 32,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """Make the application: POST /v1/chat/completions, GET /v1/models, GET /health.

    Args:
        engine: answers.
        model: the name that clients ask for.
        token_text: text of a token id, shown beside log-probabilities.
        count_prompt: tokens of a request's prompt.
        batch_size: answers in one call of the engine.
        max_body_bytes: a longer body is refused.
    """
    queue = BatchingQueue(engine, batch_size, count_prompt)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(queue.run())
        yield
        worker.cancel()

    app = make_app("mmreason serve", "POST /v1/chat/completions, GET /v1/models", lifespan)

    @app.post("/v1/chat/completions")
    async def chat(http: HttpRequest) -> JSONResponse:
        body = await read_bytes(http, max_body_bytes)
        chat_request = await run_in_threadpool(read_json, ChatRequest, body, model=model)
        try:
            outcome = await unless_gone(http, queue.sample(chat_request.request, chat_request.sampling_params))
        except ValueError as error:  # sampling parameters that the engine does not support
            raise ApiError(str(error)) from error
        if isinstance(outcome, Failure):
            raise ApiError(outcome.reason)
        samples, prompt_tokens = outcome
        return JSONResponse(
            completion(chat_request, samples, model, prompt_tokens=prompt_tokens, token_text=token_text)
        )

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "trl-mmreason"}]}

    return app


def serve(
    model: str,
    *,
    adapter: str | None = None,
    dtype: str = "auto",
    host: str = "127.0.0.1",
    port: int = 8000,
    batch_size: int = 32,
) -> None:
    """Load a model and serve it until interrupted.

    Args:
        model: path or Hub id of a checkpoint, or of a LoRA adapter; also the name that clients ask for.
        adapter: LoRA adapter to put on it.
        dtype: dtype of the weights; "auto" as they are saved.
        host: address to listen on. There is no authentication.
        port: 0 takes a free one.
        batch_size: answers in one batch.
    """
    from .transformers_engine import TransformersEngine

    engine = TransformersEngine(model, adapter=adapter, dtype=dtype, batch_size=batch_size)
    uvicorn.run(engine_app(engine, model), host=host, port=port, timeout_keep_alive=KEEP_ALIVE_SECONDS)


def engine_app(engine: TransformersEngine, model: str) -> FastAPI:
    """Load a transformers model, and make its application by `create_app`."""
    from .generation import encode, tokenizer_of

    processor = engine.processing_class
    tokenizer = tokenizer_of(processor)

    def count_prompt(request: Request) -> int:
        prefix = tokenizer(request.prefix, add_special_tokens=False)["input_ids"]
        return len(encode(processor, request.messages, request.images).ids) + len(prefix)

    def token_text(token: int) -> str:
        return tokenizer.decode([token])

    return create_app(engine, model, token_text=token_text, count_prompt=count_prompt, batch_size=engine.batch_size)
