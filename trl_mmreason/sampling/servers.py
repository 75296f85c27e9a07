"""Share calls among several servers of one model; when one dies, its calls in flight go to the others."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from .chat_completions import RequestFailed
from .engine import UnsuitableEngine
from .served_placeholders import UnknownPlaceholders, find_placeholder_ids

if TYPE_CHECKING:
    import openai

T = TypeVar("T")
logger = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
LOOK_SECONDS = 5.0  # between two looks at a server that answers
SILENT_LOOK_SECONDS = 0.5  # between two looks at one that did not
SILENT_LOOKS = 3  # one after the other, and the server is taken for dead
_SHOWN = 500  # characters of a server's own words in a reason
_RETRIED = (408, 409, 429)  # as a 5xx is, by the client of OpenAI
_NEVER = -100  # the lowest bias of OpenAI's API


class ServerError(UnsuitableEngine):
    """The server is unusable: nothing answers, it refuses the key, or it lacks the model."""


class _Silent(ServerError):
    """Nothing answers at an address."""


class _Gone(Exception):
    """The server of a call in flight was found to be dead."""


def public_address(name: str, url: str, example: str) -> SplitResult:
    """Parse a server's address, and leave out user, password and query, which nobody should be shown.

    Raises:
        ValueError: it is not one of http; begins with `name`, and ends with `example`.
    """
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ValueError(
            f"{name} has scheme {address.scheme!r} and host {address.hostname!r}; expected an address such as "
            f"{example}."
        )
    return address._replace(netloc=address.netloc.rpartition("@")[2], query="", fragment="")


@dataclass
class Address:
    """One server's address and statistics.

    Attributes:
        base_url: base URL of its API.
        shown: the same without user and password.
        answered: calls.
        busy_seconds: time with a call in flight.
        is_gone: it was found to be dead, and has not answered since.
        suppressed_ids: tokens that it is told not to write; `None` until it was asked.
        warning: why nothing is suppressed; "" once it was logged.
    """

    base_url: str
    shown: str = field(init=False)
    host: str = field(init=False)
    answered: int = 0
    busy_seconds: float = 0.0
    is_gone: bool = False
    suppressed_ids: tuple[int, ...] | None = None
    warning: str = ""

    def __post_init__(self) -> None:
        address = public_address("ServerEngine: the address", self.base_url, "http://127.0.0.1:8000/v1")
        self.host, self.shown = address.netloc, address.geturl()


@dataclass(frozen=True)
class Connection:
    """Settings of connections to servers.

    Attributes:
        model: the model's name there.
        api_key: sent to each of them.
        concurrency: calls in flight at each of them.
        timeout_seconds: how long a call may go without any byte of an answer.
        max_retries: retries of a call.
        finds_placeholders: whether to ask a server which tokens to suppress.
    """

    model: str
    api_key: str = field(repr=False)
    concurrency: int
    timeout_seconds: float
    max_retries: int
    finds_placeholders: bool


class _Server:
    """An address and its calls in flight."""

    def __init__(self, address: Address, client: openai.AsyncOpenAI, connection: Connection) -> None:
        self.address = address
        self.client = client
        self.connection = connection
        self.calls = 0
        self.gone = asyncio.Event()
        if address.is_gone:
            self.gone.set()
        self._busy_since = 0.0
        self._suppressing = asyncio.Lock()

    def expected_seconds(self) -> float:
        """Estimated time to finish its calls and one more, at its measured rate.

        One call in one second is assumed to have come before all others.
        """
        busy = self.address.busy_seconds + (time.monotonic() - self._busy_since if self.calls else 0.0)
        return (self.calls + 1) * (busy + 1.0) / (self.address.answered + 1)

    def begin(self) -> None:
        """Count a sent call."""
        if not self.calls:
            self._busy_since = time.monotonic()
        self.calls += 1

    def end(self, *, answered: bool) -> None:
        """Count a finished call."""
        self.address.answered += answered
        self.calls -= 1
        if not self.calls:
            self.address.busy_seconds += time.monotonic() - self._busy_since

    async def post(self, fields: Mapping[str, Any]) -> Any:
        """The reply to a chat completion.

        Raises:
            RequestFailed: this call has none.
            ServerError: no call would have one.
        """
        openai = import_openai()
        url = self.address.shown
        try:
            reply = await self.client.post(
                "/chat/completions", body={**await self._suppression(), **fields}, cast_to=object
            )
        except openai.APIStatusError as error:
            message = f"HTTP {error.status_code} from {url}: {self._quoted(_message(error))}"
            if error.status_code in _FIXES:
                raise ServerError(
                    f"{message.rstrip('.')}. {_FIXES[error.status_code].format(model=fields['model'])}"
                ) from None
            of_server = error.status_code in _RETRIED or error.status_code >= 500
            raise RequestFailed(message, error.status_code, of_server=of_server) from None
        except openai.APIConnectionError as error:
            silent = await self.silence(CONNECT_SECONDS, retries=2)
            if silent:
                raise _Silent(silent) from None
            reason = f"no answer from {url}: {error} ({type(error.__cause__).__name__})"
            raise RequestFailed(reason, of_server=True) from None
        except ValueError as error:
            raise RequestFailed(f"{url} answered with broken JSON: {error}", of_server=True) from error
        if self.address.warning:
            logger.warning("%s", self.address.warning)
            self.address.warning = ""
        return reply

    async def _suppression(self) -> dict[str, Any]:
        """The request field that suppresses placeholders of pictures, where needed."""
        async with self._suppressing:
            if self.address.suppressed_ids is None and self.connection.finds_placeholders:
                await self._find_placeholders()
        bias = {str(token_id): _NEVER for token_id in self.address.suppressed_ids or ()}
        return {"logit_bias": bias} if bias else {}

    async def _find_placeholders(self) -> None:
        address, model = self.address, self.connection.model
        try:
            address.suppressed_ids = await find_placeholder_ids(self.client, address.base_url, model)
        except import_openai().APIConnectionError:
            return  # the call itself tells what is wrong
        except UnknownPlaceholders as why:
            address.suppressed_ids = ()
            # Said once a call is answered: of a wrong name or address it would tell nothing.
            address.warning = (
                f"Nothing keeps the model {model!r} at {address.shown} from writing placeholders of pictures: "
                f"{self._quoted(str(why))}. Fix: start the server from a folder or Hub id that can be read here (or, "
                "in Python, give ServerEngine suppressed_ids)."
            )

    async def silence(self, timeout: float, *, retries: int) -> str:
        """Why the server counts as dead; "" if it still answers HTTP, so that only one call lost its connection."""
        openai = import_openai()
        try:
            await self.client.with_options(timeout=timeout, max_retries=retries).get("/models", cast_to=object)
        except (openai.APIStatusError, ValueError):
            return ""
        except openai.APIConnectionError as error:
            return f"Nothing answers at {self.address.shown} ({type(error.__cause__).__name__})"
        return ""

    def _quoted(self, text: str) -> str:
        return without_key(text, self.connection.api_key)


class Servers:
    """The connected servers; see `connect`."""

    def __init__(self, servers: Sequence[_Server], concurrency: int) -> None:
        self._servers = servers
        self._concurrency = concurrency
        self._room = asyncio.Condition()
        self.most_calls = concurrency * len(servers)

    async def post(self, fields: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the reply to a chat completion, and the address that answered.

        What a server had in flight when it died is asked of the others.

        Raises:
            RequestFailed: this call has no reply.
            ServerError: no call would have one.
        """
        while True:
            async with self._room:
                await self._room.wait_for(self._with_room)
                server = min(self._with_room(), key=_Server.expected_seconds)
                server.begin()
            reply = None
            try:
                call = server.post(fields)
                reply = await (call if len(self._servers) == 1 else _unless_gone(server, call))
                return reply, server.address.shown
            except _Gone:
                continue
            except _Silent as error:
                if not self._lose(server, str(error)):
                    raise ServerError(f"{error}. {_START}") from None
            finally:
                server.end(answered=reply is not None)
                async with self._room:
                    self._room.notify()

    async def check(self) -> None:
        """Refuse servers of which none answers.

        Raises:
            ServerError: names them.
        """
        looks = [server.silence(CONNECT_SECONDS, retries=2) for server in self._servers]
        silences = await asyncio.gather(*looks)
        if all(silences):
            raise ServerError(f"{'; '.join(silences)}. {_START}")

    def _with_room(self) -> list[_Server]:
        return [server for server in self._alive() if server.calls < self._concurrency]

    def _alive(self) -> list[_Server]:
        return [server for server in self._servers if not server.gone.is_set()]

    async def watch(self, server: _Server) -> None:
        """Poll a server; the last live one is judged by its calls instead."""
        silent_looks = 0
        while True:
            silence = await server.silence(CONNECT_SECONDS, retries=0)
            silent_looks = silent_looks + 1 if silence else 0
            if silent_looks >= SILENT_LOOKS:
                self._lose(server, silence)
            elif not silence and server.gone.is_set():
                logger.warning("%s answers again", server.address.shown)
                server.address.is_gone = False
                server.gone.clear()
                async with self._room:
                    self._room.notify_all()
            await asyncio.sleep(SILENT_LOOK_SECONDS if 0 < silent_looks < SILENT_LOOKS else LOOK_SECONDS)

    def _lose(self, server: _Server, why: str) -> bool:
        """Mark a server as dead, unless it is the last one."""
        others = [other for other in self._alive() if other is not server]
        if others and not server.gone.is_set():
            server.address.is_gone = True
            logger.warning(
                "%s: its %d calls in flight go to the %d other server(s)",
                why,
                server.calls,
                len(others),
            )
            server.gone.set()
        return bool(others)


@asynccontextmanager
async def connect(addresses: Sequence[Address], connection: Connection) -> AsyncIterator[Servers]:
    """Connect to all servers within the block; earlier dead ones stay dead until they answer again."""
    openai = import_openai()
    if all(address.is_gone for address in addresses):
        for address in addresses:
            address.is_gone = False
    timeout = openai.Timeout(connection.timeout_seconds, connect=min(connection.timeout_seconds, CONNECT_SECONDS))
    clients = [
        openai.AsyncOpenAI(
            api_key=connection.api_key,
            base_url=address.base_url,
            timeout=timeout,
            max_retries=connection.max_retries,
            http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [_forbid_retry]}),
        )
        for address in addresses
    ]
    pairs = zip(addresses, clients, strict=True)
    servers = Servers([_Server(address, client, connection) for address, client in pairs], connection.concurrency)
    watches = [asyncio.create_task(servers.watch(server)) for server in servers._servers if len(addresses) > 1]
    try:
        yield servers
    finally:
        await stop(watches)
        for client in clients:
            await client.close()


_START = (
    "Start the server, or correct the address, which usually ends in /v1; HTTP_PROXY and NO_PROXY of the environment "
    "are followed."
)
_NO_API = (
    "What answers there is no OpenAI-compatible server; correct the address, its port included. It usually ends in /v1."
)
_FIXES = {
    401: "Give the right key (OPENAI_API_KEY; in Python also api_key).",
    403: "The key is not allowed this; give another key (OPENAI_API_KEY), or ask for a model that it is allowed.",
    404: "There is no model {model!r}, or no API, at this address: correct the model's name (`GET …/models` lists "
    "them) or the address, which usually ends in /v1.",
    405: _NO_API,
    501: _NO_API,
}


async def _forbid_retry(response: Any) -> None:
    """Let the client of OpenAI, which repeats every 5xx, take what no call can change as final.

    Whether a server lists its models says nothing about that: some hosted APIs do not.
    """
    if response.status_code in _FIXES:
        response.headers["x-should-retry"] = "false"


async def _unless_gone(server: _Server, work: Coroutine[Any, Any, T]) -> T:
    """Await a call; raise `_Gone` as soon as its server is found dead."""
    call, gone = asyncio.create_task(work), asyncio.create_task(server.gone.wait())
    try:
        await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            raise _Gone
        return call.result()
    finally:
        await stop([call, gone])


async def stop(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their end."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _message(error: openai.APIStatusError) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    if isinstance(body, str) and body.startswith("<"):  # a page of HTML
        message = error.response.reason_phrase
    return str(message or body or error.response.reason_phrase)


def without_key(text: str, key: str) -> str:
    """The beginning of a server's message, without the API key, which some repeat."""
    return (text.replace(key, "<key>") if key != "EMPTY" else text)[:_SHOWN]


def api_key_of(api_key: str | None) -> str:
    """The given API key, else the environment's, else a placeholder for servers without keys."""
    return api_key or os.environ.get("OPENAI_API_KEY") or "EMPTY"


def import_openai() -> Any:
    """Import `openai`, or raise an error that says how to install it."""
    try:
        import openai
    except ImportError as error:
        raise ImportError(
            'ServerEngine needs the package openai: pip install "trl-mmreason[server]".', name="openai"
        ) from error
    return openai
