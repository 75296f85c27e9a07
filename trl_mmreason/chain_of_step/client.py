"""Client of `mmreason serve-prm`, with the interface of a process reward model in this process."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import torch
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from ..data.images import DECODING_ERRORS, data_url, pictures_of
from ..generation.servers import CONNECT_SECONDS, public_address
from ..messages import completion_text
from .paths import ProcessReward
from .process_reward import ProcessRewardModel, Scores
from .scored_chain import UnscorableRow

_BACKOFF = wait_exponential(multiplier=0.5, max=30)  # seconds
_LONGEST_RETRY_AFTER_SECONDS = 120.0
_FIRST_LOOK_RETRIES = 2
_MOST_BODY_BYTES = 32 << 20  # half of what the server takes; pictures fill it
_SHOWN = 500  # characters of a server's own words in an error


class ProcessRewardServerError(RuntimeError):
    """The server returns no scores: nothing answers, it is not `mmreason serve-prm`, or it fails."""


class _Passing(Exception):
    """A temporary failure, worth a retry: nothing answered (`silent`), or a status of 500 or above."""

    def __init__(self, problem: str, *, silent: bool = False, after: str | None = None) -> None:
        super().__init__(problem)
        self.silent, self.after = silent, after


class ProcessRewardClient:
    """Scores chains at a server, as `ProcessRewardModel` does in this process. Several threads may use one.

    A request that loses its connection, times out or is answered 5xx is sent again after 0.5, 1, 2, 4, … 30 seconds
    less a random quarter, or what the server's Retry-After says up to two minutes. Any 4xx raises at once. Where
    nothing has answered that long, later requests are sent once each until one is answered: a run that tries the rows
    of a batch one by one should not wait so long for each.

    Args:
        url: address of the server, as `http://127.0.0.1:8001`.
        timeout_seconds: how long a request may go without an answer, its wait for others' rows included.
        retries: number of retries of a request; 10 outlast nearly two minutes without a server.
        rows_a_request: rows sent at a time; fewer where pictures are large.

    Raises:
        ValueError: an argument cannot be meant.
    """

    works_elsewhere = True

    def __init__(
        self, url: str, *, timeout_seconds: float = 600.0, retries: int = 10, rows_a_request: int = 64
    ) -> None:
        shown = public_address("ProcessRewardClient: url", url, "http://127.0.0.1:8001").geturl()
        if timeout_seconds <= 0 or retries < 0 or rows_a_request < 1:
            raise ValueError(
                f"ProcessRewardClient: got timeout_seconds={timeout_seconds}, retries={retries}, "
                f"rows_a_request={rows_a_request}; expected timeout_seconds > 0, retries ≥ 0 and rows_a_request ≥ 1."
            )
        self._shown_url = shown.rstrip("/")
        self._retries = retries
        self._rows_a_request = rows_a_request
        self._silent = False
        timeout = httpx2.Timeout(timeout_seconds, connect=min(timeout_seconds, CONNECT_SECONDS))
        self._http = httpx2.Client(base_url=url, timeout=timeout)

    def __repr__(self) -> str:
        return f"ProcessRewardClient({self._shown_url!r})"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the served model, without the address: a job may resume with another server or none.

        Raises:
            ProcessRewardServerError: there is none.
        """
        reply = self._ask("GET", "/info", retries=min(self._retries, _FIRST_LOOK_RETRIES))
        settings = reply.get("settings") if isinstance(reply, dict) else None
        if not isinstance(settings, dict):
            raise self._unexpected(reply, "the settings of a process reward model")
        return settings

    def score(self, rows: Sequence[Mapping[str, Any]]) -> list[Scores]:
        """The scores of every row, in order; see `ProcessRewardModel.score`.

        Raises:
            UnscorableRow: a row cannot be scored.
            ProcessRewardServerError: the server has no scores.
        """
        scores: list[Scores] = []
        for encoded in self._requests(rows):
            body = b'{"rows": [' + b", ".join(encoded) + b"]}"
            reply = self._ask("POST", "/score", body, first_row=len(scores))
            try:
                batch_scores = [
                    Scores(torch.tensor(one["steps"], dtype=torch.float32), one["answer"]) for one in reply["scores"]
                ]
            except (KeyError, TypeError, ValueError):
                raise self._unexpected(reply, "scores") from None
            if len(batch_scores) != len(encoded):
                raise self._unexpected(reply, f"the scores of {len(encoded)} rows")
            scores += batch_scores
        return scores

    def _requests(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[list[bytes]]:
        """Split the rows, as JSON, into requests of permitted size."""
        together: list[bytes] = []
        size = 0
        for number, row in enumerate(rows):
            encoded = _encoded(row, f"row {number}")
            if len(together) == self._rows_a_request or (together and size + len(encoded) > _MOST_BODY_BYTES):
                yield together
                together, size = [], 0
            together.append(encoded)
            size += len(encoded)
        if together:
            yield together

    def _ask(
        self, method: str, path: str, body: bytes | None = None, *, first_row: int = 0, retries: int | None = None
    ) -> Any:
        retries = 0 if self._silent else self._retries if retries is None else retries
        stop = stop_after_attempt(retries + 1)
        attempts = Retrying(retry=retry_if_exception_type(_Passing), stop=stop, wait=_pause, reraise=True)
        try:
            return attempts(self._send, method, path, body, first_row)
        except _Passing as error:
            self._silent |= error.silent and retries == self._retries
            raise ProcessRewardServerError(
                f"ProcessRewardClient: {error}. It was asked {retries + 1} time(s)."
            ) from None

    def _send(self, method: str, path: str, body: bytes | None, first_row: int) -> Any:
        headers = {"Content-Type": "application/json"}
        try:
            response = self._http.request(method, path, content=body, headers=headers)
        except httpx2.TransportError as error:
            raise _Passing(
                f"no answer from {self._shown_url}{path}: {type(error).__name__} {error}. Start the server with "
                "`mmreason serve-prm`, or fix the address; HTTP_PROXY and NO_PROXY of the environment are used",
                silent=True,
            ) from None
        self._silent = False
        message = f"HTTP {response.status_code} from {self._shown_url}{path}: {_message(response)}"
        if response.status_code >= 500:
            raise _Passing(f"{message}. See the server's log", after=response.headers.get("Retry-After"))
        if response.status_code in (400, 413):
            of_call = f" Its row 0 is row {first_row} of this call." if first_row else ""
            raise UnscorableRow(f"ProcessRewardClient: {message}.{of_call}")
        if response.status_code != 200:
            raise ProcessRewardServerError(
                f"ProcessRewardClient: {message}. Fix the address: it is that of `mmreason serve-prm`, without a path."
            )
        try:
            return response.json()
        except ValueError:
            raise self._unexpected(response.text, "JSON") from None

    def _unexpected(self, reply: Any, expected: str) -> ProcessRewardServerError:
        shown = str(reply)[:_SHOWN]
        return ProcessRewardServerError(
            f"ProcessRewardClient: {self._shown_url} answered {shown!r}; expected {expected}. Fix the address: it is "
            "that of `mmreason serve-prm`."
        )


def process_reward_from(source: ProcessReward | str | Path) -> ProcessReward:
    """Load a process reward model, or connect to a served one.

    Args:
        source: a path or Hub id of a checkpoint, which is loaded here; the address of a server, http(s)://…; or what
            has `score` and `settings` already.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        return ProcessRewardClient(source)
    if isinstance(source, str | Path):
        return ProcessRewardModel.from_pretrained(source)
    if not hasattr(source, "score"):
        raise TypeError(
            f"process_reward_from: got a {type(source).__name__}, expected a ProcessRewardModel, the path of one, or "
            "the address of a server."
        )
    return source


def _encoded(row: Mapping[str, Any], where: str) -> bytes:
    try:
        images = [data_url(image) for image in pictures_of(row)]
    except (*DECODING_ERRORS, AttributeError) as error:
        raise UnscorableRow(
            f"{where} has a picture that cannot be read: {error}; expected pictures of Pillow."
        ) from error
    content = {"prompt": row["prompt"], "images": images, "completion": completion_text(row["completion"], where)}
    return json.dumps(content).encode()


def _pause(state: RetryCallState) -> float:
    after = state.outcome.exception().after  # type: ignore[union-attr]
    if after is not None and after.isdecimal():
        return min(float(after), _LONGEST_RETRY_AFTER_SECONDS)
    return _BACKOFF(state) * (1 - random.random() / 4)


def _message(response: httpx2.Response) -> str:
    """The error message of a reply; the whole body if it is not ours."""
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text
    return str(message)[:_SHOWN].rstrip(".")
