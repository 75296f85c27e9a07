"""Code of the reward server: JSON errors, bounded and validated bodies, disconnecting clients."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from itertools import groupby
from typing import Annotated, Any, TypeVar

import PIL.Image
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainValidator, ValidationError, ValidationInfo
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Lifespan

from .image_urls import MOST_PIXELS, picture_of

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)

MAX_BODY_BYTES = 64 << 20
KEEP_ALIVE_SECONDS = 75  # a connection closed just as its client sends costs a retry
_LOOK_SECONDS = 1.0  # how often to look whether a client is still there
_MOST_PROBLEMS = 100  # listed per body: a million unknown fields would take seconds and gigabytes


def _begin_prompt(value: Any, info: ValidationInfo[dict[str, Any]]) -> Any:
    info.context["pixels"] = MOST_PIXELS
    return value


def _read_picture(url: Any, info: ValidationInfo[dict[str, Any]]) -> PIL.Image.Image:
    picture = picture_of(url, info.context["pixels"])
    info.context["pixels"] -= picture.width * picture.height
    return picture


Picture = Annotated[PIL.Image.Image, PlainValidator(_read_picture)]
"""A data URL in JSON, and the picture in it here."""

HOLDS_ALL_PICTURES = BeforeValidator(_begin_prompt)
"""Of the field with all pictures of one prompt, which have `MOST_PIXELS` together."""


class Fields(BaseModel):
    """Base of JSON objects with exactly these fields and types."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ApiError(Exception):
    """An error reply to a client.

    Args:
        message: the value that was sent, what was expected, and the fix.
        status: HTTP status.
        param: the field at fault.
        code: error code, as OpenAI names some errors.
        headers: HTTP headers.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def make_app(title: str, paths: str, lifespan: Lifespan[FastAPI]) -> FastAPI:
    """Make an application that replies to every error with the body of an `ApiError`, and to `GET /health`.

    Args:
        title: title of the application.
        paths: what it serves, for those who ask for something else.
        lifespan: runs around its requests.
    """
    app = FastAPI(title=title, lifespan=lifespan)

    @app.exception_handler(ApiError)
    async def refuse(http: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body, error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def refuse_path(http: Request, error: HTTPException) -> JSONResponse:
        message = f"{error.detail}: {http.method} {http.url.path}; expected {paths}."
        return JSONResponse(ApiError(message).body, error.status_code, error.headers)

    @app.exception_handler(Exception)  # uvicorn logs it, and closes the connection: the client should know
    async def report(http: Request, error: Exception) -> JSONResponse:
        body = ApiError(f"{type(error).__name__}: {error}", status=500).body
        return JSONResponse(body, 500, {"Connection": "close"})

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


async def read_bytes(http: Request, most: int) -> bytes:
    """Read the body, never holding more than allowed."""
    body = bytearray()
    try:
        async for chunk in http.stream():
            body += chunk
            if len(body) > most:
                raise ApiError(
                    f"The body is longer than {most} bytes; send fewer or smaller pictures.",
                    status=413,
                    code="request_too_large",
                )
    except ClientDisconnect as error:
        raise _gone() from error
    return bytes(body)


def read_json(kind: type[Body], body: bytes, **context: Any) -> Body:
    """Parse and validate a body's JSON; `context` is for validators, which may raise an `ApiError` of another status.

    Raises:
        ApiError: the body is not JSON, or not of this kind.
    """
    try:
        return kind.model_validate(from_json(body, allow_inf_nan=False), context=context)
    except ValidationError as error:
        raise _refusal(error) from error
    except ValueError as error:
        raise ApiError(f"The body is no JSON: {error}.") from error


def _refusal(error: ValidationError) -> ApiError:
    """The first validation error of a body."""
    if error.error_count() > _MOST_PROBLEMS:
        return ApiError(f"The body has {error.error_count()} fields that are unknown or wrong; expected this API's")
    first = error.errors(include_url=False)[0]
    path = (part for part, _ in groupby(first["loc"]))  # a union's tag stands before the field that is named like it
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part:.40}" for part in path).removeprefix(".")
    came = f"{where or 'The body'} is {first['input']!r:.80}"
    messages = {
        "missing": f"{where} is missing; expected a value",
        "extra_forbidden": f"{came}, which this server does not support; leave it out",
        "model_type": f"{came}: Input should be an object",  # pydantic would name our class
    }
    expected = first["msg"].removeprefix("Value error, ")
    return ApiError(messages.get(first["type"], f"{came}: {expected}"), param=where or None)


async def unless_gone(http: Request, answer: Coroutine[Any, Any, T]) -> T:
    """Await the answer, and cancel it if the client disconnects, as before a retry."""
    task = asyncio.create_task(answer)
    while not task.done():
        await asyncio.wait({task}, timeout=_LOOK_SECONDS)
        if not task.done() and await http.is_disconnected():
            task.cancel()
            raise _gone()
    return task.result()


def _gone() -> ApiError:
    return ApiError("The client closed the connection.", status=499)
