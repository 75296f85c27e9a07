"""Code of the reward server: JSON errors, bounded and validated bodies, disconnecting clients."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
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

from ..data.images import DECODING_ERRORS, refuse_frames

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)

MAX_BODY_BYTES = 64 << 20
KEEP_ALIVE_SECONDS = 75  # a connection closed just as its client sends costs a retry
_LOOK_SECONDS = 1.0  # how often to look whether a client is still there
_MOST_PROBLEMS = 100  # listed per body: a million unknown fields would take seconds and gigabytes
# Of all pictures of one prompt: 33 million, a large photograph. A file of a few kilobytes can hold any number of them,
# and a processor takes about 10 bytes and 0.2 µs for each.
_MOST_PIXELS = 1 << 25
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_one_at_a_time = threading.Lock()  # requests are parsed in many threads, and a decoded picture is large


def _begin_prompt(value: Any, info: ValidationInfo[dict[str, Any]]) -> Any:
    info.context["pixels"] = _MOST_PIXELS
    return value


def _read_picture(url: Any, info: ValidationInfo[dict[str, Any]]) -> PIL.Image.Image:
    picture = picture_of(url, info.context["pixels"])
    info.context["pixels"] -= picture.width * picture.height
    return picture


def picture_of(url: Any, most_pixels: int = _MOST_PIXELS) -> PIL.Image.Image:
    """Read the picture in a data URL, or raise a `ValueError`; it is checked by decoding, but keeps no pixels while it
    waits. `most_pixels` are those that earlier pictures of the prompt have left."""
    # Fetching an address for a client would let it reach what only this machine can reach.
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        raise ValueError("Input should be the picture itself, as data:image/png;base64,…; this server fetches nothing")
    try:
        content = base64.b64decode(data, validate=True)
        with _one_at_a_time:
            _opened(content, most_pixels).load()
        return _opened(content, most_pixels)
    except DECODING_ERRORS as error:
        raise ValueError(f"Input should be a picture that can be read: {error}") from error


def _opened(content: bytes, most_pixels: int) -> PIL.Image.Image:
    image = PIL.Image.open(io.BytesIO(content), formats=_FORMATS)
    if image.width * image.height > most_pixels:
        raise ValueError(
            f"it has {image.width} × {image.height} pixels, expected {most_pixels} at most; scale it down. All "
            f"pictures of a prompt together may have {_MOST_PIXELS}"
        )
    refuse_frames(image)
    return image


Picture = Annotated[PIL.Image.Image, PlainValidator(_read_picture)]
"""A data URL in JSON, and the picture in it here."""

HOLDS_ALL_PICTURES = BeforeValidator(_begin_prompt)
"""Of the field with all pictures of one prompt, which have `_MOST_PIXELS` together."""


class Fields(BaseModel):
    """Base of JSON objects with exactly these fields and types."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ApiError(Exception):
    """An error reply to a client: what came, what was expected, the fix; `param` is the field at fault."""

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
        self.status, self.headers = status, headers
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def make_app(title: str, paths: str, lifespan: Lifespan[FastAPI]) -> FastAPI:
    """Make an application that replies to every error with the body of an `ApiError`, and to `GET /health`.

    `paths` are those that it serves, for the error about another one.
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
    """Parse and validate a JSON body, or raise an `ApiError`; `context` is for validators, which may raise one too."""
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
