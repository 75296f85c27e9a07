"""`mmreason serve`: one engine behind OpenAI's chat API, for trying things out and for clients on other machines.

Requests that arrive together are answered in one batch. A batch ends with its longest answer, and nothing is streamed:
vLLM is the server for heavy use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .chat_api import ApiError, completion, read_body
from .engine import Decoding, Engine, Failure, Request, Sample

if TYPE_CHECKING:
    import fastapi

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 20
GATHER_SECONDS = 0.01  # how long an idle engine waits for requests that come with the first
_LOOK_SECONDS = 1.0  # how often to look whether a client is still there

Outcome = list[Sample] | Failure


@dataclass
class _Job:
    request: Request
    decoding: Decoding
    outcome: asyncio.Future[Outcome]


class BatchingQueue:
    """Hands an engine, which serves one caller at a time, everything that waits for it with the same decoding.

    Args:
        engine: called in a thread of its own, never twice at once.
        batch_size: how many answers to ask of it in one call; a request with more goes alone.
    """

    def __init__(self, engine: Engine, batch_size: int) -> None:
        self._engine = engine
        self._batch_size = batch_size
        self._jobs: list[_Job] = []
        self._arrived = asyncio.Event()

    async def sample(self, request: Request, decoding: Decoding) -> Outcome:
        """Wait for one request's answers. Cancelling takes it out of the queue, if it is still there."""
        job = _Job(request, decoding, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._arrived.set()
        return await job.outcome

    async def run(self) -> None:
        """Work through the queue until cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            while True:
                await self._arrived.wait()
                await asyncio.sleep(GATHER_SECONDS)
                jobs = self._take()
                if not jobs:
                    continue
                work = loop.run_in_executor(thread, self._sample, [job.request for job in jobs], jobs[0].decoding)
                (outcomes,) = await asyncio.gather(work, return_exceptions=True)
                for position, job in enumerate(jobs):
                    if job.outcome.done():  # its client is gone
                        continue
                    if isinstance(outcomes, BaseException):
                        job.outcome.set_exception(outcomes)
                    else:
                        job.outcome.set_result(outcomes[position])

    def _take(self) -> list[_Job]:
        """The first in the queue, and those behind it that may go with it."""
        self._jobs = [job for job in self._jobs if not job.outcome.done()]
        taken: list[_Job] = []
        room = self._batch_size
        for job in self._jobs:
            if not taken or (job.decoding == taken[0].decoding and job.request.n <= room):
                taken.append(job)
                room -= job.request.n
        self._jobs = [job for job in self._jobs if job not in taken]
        if not self._jobs:
            self._arrived.clear()
        return taken

    def _sample(self, requests: Sequence[Request], decoding: Decoding) -> list[Outcome]:
        outcomes = self._engine.sample(requests, decoding)
        if len(outcomes) != len(requests):
            raise RuntimeError(f"The engine gave {len(outcomes)} results to {len(requests)} requests.")
        return outcomes


def create_app(
    engine: Engine,
    model: str,
    *,
    token_text: Callable[[int], str],
    batch_size: int = 32,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> fastapi.FastAPI:
    """The application: POST /v1/chat/completions, GET /v1/models, GET /health.

    Args:
        engine: answers.
        model: the name that clients ask for.
        token_text: text of a token id, shown beside log-probabilities.
        batch_size: answers in one call of the engine.
        max_body_bytes: a longer body is refused.
    """
    import fastapi
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

    queue = BatchingQueue(engine, batch_size)

    @asynccontextmanager
    async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(queue.run())
        yield
        worker.cancel()

    app = fastapi.FastAPI(title="mmreason serve", lifespan=lifespan)

    @app.exception_handler(ApiError)
    async def refuse(http: fastapi.Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body, error.status)

    @app.exception_handler(HTTPException)
    async def refuse_path(http: fastapi.Request, error: HTTPException) -> JSONResponse:
        message = f"{error.detail}: {http.method} {http.url.path}; there is POST /v1/chat/completions, GET /v1/models."
        return JSONResponse(ApiError(message, status=error.status_code).body, error.status_code)

    @app.post("/v1/chat/completions")
    async def chat(http: fastapi.Request) -> JSONResponse:
        body = await _read(http, max_body_bytes)
        asked = await run_in_threadpool(read_body, body, model)
        outcome = await _unless_gone(http, queue.sample(asked.request, asked.decoding))
        if isinstance(outcome, Failure):
            raise ApiError(outcome.reason)
        return JSONResponse(completion(asked, outcome, model, prompt_tokens=0, token_text=token_text))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "trl-mmreason"}]}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app
