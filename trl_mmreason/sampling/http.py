"""What this package's servers share: errors as JSON, bodies that are bounded, clients that hang up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any, NoReturn, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

T = TypeVar("T")

MAX_BODY_BYTES = 64 << 20
KEEP_ALIVE_SECONDS = 75  # a connection closed just as its client sends costs a retry
_LOOK_SECONDS = 1.0  # how often to look whether a client is still there


class ApiError(Exception):
    """What a client gets instead of an answer.

    Args:
        message: what came, what was expected, the mend.
        status: of HTTP.
        param: the field at fault.
        code: as OpenAI names some errors.
        headers: of HTTP.
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


def add_error_handlers(app: FastAPI, paths: str) -> None:
    """Answer every error with the body of an `ApiError`.

    Args:
        app: the application.
        paths: what it serves, for those who ask for something else.
    """

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


async def read_bytes(http: Request, most: int) -> bytes:
    """The body, of which no more than allowed is ever held."""
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


def json_object(body: bytes, fields: str) -> dict[str, Any]:
    """The JSON object in a body.

    Args:
        body: as it came.
        fields: what the object has to have, for the error.
    """
    try:
        content = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"The body is no JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ApiError(f"The body is a JSON {type(content).__name__}; expected an object with {fields}.")
    return content


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")


async def unless_gone(http: Request, answer: Coroutine[Any, Any, T]) -> T:
    """The answer; not computed any more for a client that hung up, as one does that sends the same again."""
    task = asyncio.create_task(answer)
    while not task.done():
        await asyncio.wait({task}, timeout=_LOOK_SECONDS)
        if not task.done() and await http.is_disconnected():
            task.cancel()
            raise _gone()
    return task.result()


def _gone() -> ApiError:
    return ApiError("The client closed the connection.", status=499)
