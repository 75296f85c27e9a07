"""`mmreason serve-prm`: a process reward model behind HTTP, for trainers on other GPUs and machines (section 4.5).

    POST /score   {"rows": [{"prompt": [messages], "images": ["data:image/png;base64,…"], "completion": "…"}]}
                  → {"scores": [{"steps": [0.9, 0.7], "answer": 0.6}]}      in the order of the rows; answer may be null
    GET /info     {"model": …, "settings": …, "max_waiting": …}
    GET /health

One thread scores, one request at a time, as they came. Meanwhile bad requests are refused, and so are those that come
when too many rows wait already.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from math import ceil
from typing import Annotated, Any, Literal

import torch
import uvicorn
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import Field, ValidationInfo, field_validator, model_validator

from ..generation.http import (
    HOLDS_ALL_PICTURES,
    KEEP_ALIVE_SECONDS,
    MAX_BODY_BYTES,
    ApiError,
    Fields,
    Picture,
    make_app,
    read_bytes,
    read_json,
    unless_gone,
)
from .process_reward import ProcessRewardModel, Scores
from .scored_chain import UnscorableRow, read_completion

_LONGEST_RETRY_SECONDS = 60


class ScoringQueue:
    """Queue that scores the requests of many clients in one thread.

    Args:
        model: scores; called in that thread only.
        thread: an executor of one thread.
        batch_size: rows that go through the model at a time.
        max_waiting: rows that are scored or wait at a time.
    """

    def __init__(
        self, model: ProcessRewardModel, thread: ThreadPoolExecutor, batch_size: int, max_waiting: int
    ) -> None:
        self._model = model
        self._thread = thread
        self._batch_size = batch_size
        self._max_waiting = max_waiting
        self._rows = 0
        self._seconds_a_row = 0.0

    async def score(self, rows: Sequence[Mapping[str, Any]]) -> list[Scores]:
        """Wait for the scores of a request; cancelling removes it from the queue, or stops it after its batch.

        Raises:
            ApiError: too many rows wait.
        """
        if self._rows + len(rows) > self._max_waiting:
            seconds = min(max(ceil(self._rows * self._seconds_a_row), 1), _LONGEST_RETRY_SECONDS)
            raise ApiError(
                f"{self._rows} rows are waiting, and {len(rows)} more would exceed "
                f"{self._max_waiting}. Try again in {seconds} s, or start the server with a larger --max-waiting.",
                status=503,
                code="overloaded",
                headers={"Retry-After": str(seconds)},
            )
        self._rows += len(rows)
        gone = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._score, rows, gone)
        finally:
            gone.set()
            self._rows -= len(rows)

    def _score(self, rows: Sequence[Mapping[str, Any]], gone: threading.Event) -> list[Scores]:
        start = time.monotonic()
        scores: dict[int, Scores] = {}
        for batch in self._model.score_batches(rows, self._batch_size):
            scores |= batch
            if gone.is_set():
                return []
        self._seconds_a_row = (time.monotonic() - start) / max(len(rows), 1)
        return [scores[number] for number in range(len(rows))]


def create_app(
    model: ProcessRewardModel,
    name: str,
    *,
    batch_size: int = 8,
    max_waiting: int = 1024,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """Make the application that serves a process reward model.

    Args:
        model: scores.
        name: name of the model, for clients.
        batch_size: rows that go through the model at a time; halved when memory runs out.
        max_waiting: rows that are scored or wait at a time; a request with more is refused for good.
        max_body_bytes: a longer body is refused.

    Raises:
        ValueError: a number below 1.
    """
    if batch_size < 1 or max_waiting < 1:
        raise ValueError(f"serve-prm: got batch_size={batch_size}, max_waiting={max_waiting}; expected 1 or more.")
    settings = model.settings  # now, as the model belongs to the other thread later

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with ThreadPoolExecutor(1) as thread:
            app.state.queue = ScoringQueue(model, thread, batch_size, max_waiting)
            yield

    app = make_app("mmreason serve-prm", "POST /score, GET /info, GET /health", lifespan)

    @app.post("/score")
    async def score(http: HttpRequest) -> JSONResponse:
        body = await read_bytes(http, max_body_bytes)
        try:
            rows = await run_in_threadpool(rows_of, body, max_waiting)
            scores = await unless_gone(http, app.state.queue.score(rows))
        except UnscorableRow as error:
            raise ApiError(str(error), param="rows") from error
        except torch.OutOfMemoryError as error:  # another try would fare no better
            raise ApiError(str(error), status=413, param="rows", code="out_of_memory") from error
        return JSONResponse({"scores": [{"steps": steps.tolist(), "answer": answer} for steps, answer in scores]})

    @app.get("/info")
    async def info() -> dict[str, Any]:
        return {"model": name, "settings": settings, "max_waiting": max_waiting}

    return app


def rows_of(body: bytes, most: int) -> list[dict[str, Any]]:
    """Parse and check the rows in a request's body.

    Args:
        body: body of the request.
        most: rows.

    Raises:
        ApiError: it is not understood.
        UnscorableRow: a completion is a malformed chain.
    """
    rows = read_json(_Body, body, most=most).rows
    for number, row in enumerate(rows):
        read_completion(row.completion, f"row {number}")
    return [{**row.model_dump(), "images": row.images or []} for row in rows]


class _Message(Fields):
    role: Literal["system", "user", "assistant"]
    content: str


class _Row(Fields):
    prompt: list[_Message] = Field(fail_fast=True)
    completion: str
    images: Annotated[list[Picture] | None, Field(fail_fast=True), HOLDS_ALL_PICTURES] = None

    @model_validator(mode="after")
    def _can_be_asked(self) -> _Row:
        roles = [message.role for message in self.prompt]
        if not roles or roles[-1] == "assistant":
            raise ValueError("prompt should have messages, the last not the assistant's")
        if self.images and "user" not in roles:
            raise ValueError("prompt should have a message of the user to put the images before")
        return self


class _Body(Fields):
    rows: list[_Row] = Field(fail_fast=True)

    @field_validator("rows", mode="before")
    @classmethod
    def _are_not_too_many(cls, rows: Any, info: ValidationInfo[dict[str, Any]]) -> Any:
        most = info.context["most"]
        if isinstance(rows, list) and len(rows) > most:
            problem = f"The body has {len(rows)} rows; this server takes {most} at a time. Send them in several bodies."
            raise ApiError(problem, status=413, param="rows", code="request_too_large")
        return rows


def serve(
    model: str,
    *,
    adapter: str | None = None,
    dtype: str = "auto",
    host: str = "127.0.0.1",
    port: int = 8001,
    batch_size: int = 8,
    max_waiting: int = 1024,
) -> None:
    """Load a process reward model and serve it until interrupted.

    Args:
        model: path or Hub id of a checkpoint, or of a LoRA adapter.
        adapter: LoRA adapter to put on it.
        dtype: dtype of the weights; "auto" as they are saved.
        host: address to listen on. There is no authentication.
        port: 0 takes a free one.
        batch_size, max_waiting: see `create_app`.
    """
    loaded = ProcessRewardModel.from_pretrained(model, adapter=adapter, dtype=dtype)
    app = create_app(loaded, model, batch_size=batch_size, max_waiting=max_waiting)
    uvicorn.run(app, host=host, port=port, timeout_keep_alive=KEEP_ALIVE_SECONDS)
