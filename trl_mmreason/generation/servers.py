"""Call the servers of one model: one that is down is left out, and image placeholders are suppressed.

An answer that holds a placeholder of an image cannot be trained on: the model would look for an image there. vLLM and
SGLang do not suppress them by themselves. Token ids mean something else to another tokenizer, so ids are used only if
the server itself decodes them to the same text as the checkpoint that they were read from.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from .engine import UnsuitableEngine

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
_PROBE_SECONDS = 30.0
_SHOWN = 500  # characters of a server's own words in a reason
_LOWEST_BIAS = -100  # the lowest bias of OpenAI's API
_RETRIED = (408, 409, 429)  # statuses that OpenAI's client also retries, besides 5xx
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


class ServerError(UnsuitableEngine):
    """The server is unusable: nothing answers, it refuses the key, or it lacks the model."""


class RequestFailed(Exception):
    """One request failed; the text is the reason, `status` that of HTTP, and `of_server` as in `Failure`."""

    def __init__(self, reason: str, status: int | None = None, *, of_server: bool = False) -> None:
        super().__init__(reason)
        self.status, self.of_server = status, of_server


class _UnknownPlaceholders(Exception):
    """The tokens cannot be determined; the text says why."""


def import_openai() -> Any:
    """Import `openai`, or raise an error that says how to install it."""
    try:
        import openai
    except ImportError as error:
        raise ImportError(
            'ServerEngine needs the package openai: pip install "trl-mmreason[server]".', name="openai"
        ) from error
    return openai


def public_address(name: str, url: str, example: str) -> SplitResult:
    """Parse a server's address, and leave out user, password and query, which nobody should be shown; refuse one that
    is not of http by a `ValueError`, which begins with `name` and ends with `example`."""
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ValueError(
            f"{name} has scheme {address.scheme!r} and host {address.hostname!r}; expected an address such as "
            f"{example}."
        )
    return address._replace(netloc=address.netloc.rpartition("@")[2], query="", fragment="")


def without_key(text: str, key: str) -> str:
    """The beginning of a server's message, without the API key, which some repeat."""
    return (text.replace(key, "<key>") if key != "EMPTY" else text)[:_SHOWN]


@dataclass(eq=False)
class Server:
    """A server of the model, and what is known about it.

    Attributes:
        url: base URL of its API.
        suppressed_ids: tokens that the server is asked not to write; `None` until they are known.
        warning: why nothing is suppressed; "" once it was logged.
        is_down: nothing answered there, and it is left out.
    """

    url: str
    suppressed_ids: tuple[int, ...] | None = None
    warning: str = ""
    is_down: bool = False

    def __post_init__(self) -> None:
        address = public_address("ServerEngine: the address", self.url, "http://127.0.0.1:8000/v1")
        self.host, self.shown = address.netloc, address.geturl()


class Servers:
    """Connections of one event loop to all servers that are not down.

    Every server has `concurrency` slots in a queue. A call takes the first free one, so that a fast server gets more.
    """

    def __init__(
        self, servers: Sequence[Server], api_key: str, concurrency: int, timeout_seconds: float, max_retries: int
    ) -> None:
        openai = import_openai()
        self._clients = {
            server: openai.AsyncOpenAI(
                api_key=api_key,
                base_url=server.url,
                timeout=openai.Timeout(timeout_seconds, connect=min(timeout_seconds, CONNECT_SECONDS)),
                max_retries=max_retries,
                http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [_keep_final]}),
            )
            for server in servers
            if not server.is_down
        }
        self.most_calls = concurrency * len(self._clients)
        self._slots: asyncio.Queue[Server] = asyncio.Queue()
        for server in list(self._clients) * concurrency:
            self._slots.put_nowait(server)

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()

    async def check(self) -> None:
        """Raise `ServerError` if none of the servers answers."""
        whys = await asyncio.gather(*(_silence(client, server.shown) for server, client in self._clients.items()))
        if all(whys):
            raise ServerError(f"{'; '.join(whys)}. {_START}")

    async def find_placeholders(self, model: str) -> None:
        """Ask each server that was not asked before which tokens of the model stand for images."""
        new = [server for server in self._clients if server.suppressed_ids is None]
        await asyncio.gather(*(self._find_placeholders(server, model) for server in new))

    async def _find_placeholders(self, server: Server, model: str) -> None:
        client = self._clients[server]
        warning = f"Nothing keeps the model {model!r} at {server.shown} from writing placeholders of images: "
        try:
            server.suppressed_ids, server.warning = await _placeholders(client, model), ""
        except import_openai().APIConnectionError as error:  # if nothing answers, the call itself tells that
            why = f"it does not say in time ({type(error).__name__})"
            server.warning = f"{warning}{why}, and is asked again before the next requests."
        except _UnknownPlaceholders as unknown:
            server.suppressed_ids = ()
            server.warning = (
                f"{warning}{without_key(str(unknown), client.api_key)}. Fix: start the server from a folder or Hub id "
                "that can be read here (or, in Python, give ServerEngine suppressed_ids)."
            )

    async def post(self, fields: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the reply to a chat completion, and the address that answered.

        Raises `RequestFailed` if this call has no reply, and `ServerError` if no call would have one.
        """
        while True:
            server = await self._slots.get()
            if server.is_down:
                continue
            bias = {str(token_id): _LOWEST_BIAS for token_id in server.suppressed_ids or ()}
            body = {**({"logit_bias": bias} if bias else {}), **fields}
            try:
                reply = await _post(self._clients[server], body, server.shown)
            except ConnectionError as why:
                self._leave_out(server, str(why))
                continue
            finally:
                self._slots.put_nowait(server)
            if server.warning:  # logged now: beside a wrong name or address it would tell nothing
                logger.warning("%s", server.warning)
                server.warning = ""
            return reply, server.shown

    def _leave_out(self, server: Server, why: str) -> None:
        others = sum(not other.is_down for other in self._clients if other is not server)
        if not others:
            raise ServerError(f"{why}. {_START}")
        if not server.is_down:
            server.is_down = True
            logger.warning("%s: it is left out, and its calls go to the %d other server(s)", why, others)


async def _post(client: openai.AsyncOpenAI, body: Mapping[str, Any], url: str) -> Any:
    """Return the reply of one server; raises `ConnectionError` if nothing answers there, else as `Servers.post`."""
    openai = import_openai()
    try:
        return await client.post("/chat/completions", body=body, cast_to=object)
    except openai.APIStatusError as error:
        status = error.status_code
        message = f"HTTP {status} from {url}: {without_key(error_message(error), client.api_key)}"
        if after := error.response.headers.get("retry-after"):
            message = f"{message.rstrip('.')} (it asks to wait: Retry-After {after})"
        if status in _FIXES:
            raise ServerError(f"{message.rstrip('.')}. {_FIXES[status].format(model=body['model'])}") from None
        raise RequestFailed(message, status, of_server=status in _RETRIED or status >= 500) from None
    except openai.APIConnectionError as error:
        if why := await _silence(client, url):
            raise ConnectionError(why) from None
        reason = f"no answer from {url}: {error} ({type(error.__cause__).__name__})"
        raise RequestFailed(reason, of_server=True) from None
    except ValueError as error:
        raise RequestFailed(f"{url} answered with broken JSON: {error}", of_server=True) from error


async def _silence(client: openai.AsyncOpenAI, url: str) -> str:
    """Why a server counts as down; "" if it still answers HTTP, so that only one call lost its connection."""
    openai = import_openai()
    try:
        await client.with_options(timeout=CONNECT_SECONDS, max_retries=2).get("/models", cast_to=object)
    except (openai.APIStatusError, ValueError):
        return ""
    except openai.APIConnectionError as error:
        return f"Nothing answers at {url} ({type(error.__cause__).__name__})"
    return ""


async def _keep_final(response: Any) -> None:
    """Let the client of OpenAI, which repeats every 5xx, take what no call can change as final."""
    if response.status_code in _FIXES:
        response.headers["x-should-retry"] = "false"


def error_message(error: openai.APIStatusError) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    is_page = isinstance(body, str) and body.startswith("<")  # of HTML
    return str(message or (not is_page and body) or error.response.reason_phrase)


# -------------------------------------------------------------------------------------------------------- placeholders


async def _placeholders(client: openai.AsyncOpenAI, model: str) -> tuple[int, ...]:
    """Ids of the model's image placeholders, as its server decodes them; () for a text-only model."""
    openai = import_openai()
    quick = client.with_options(timeout=_PROBE_SECONDS, max_retries=1)
    try:
        checkpoint = _served_checkpoint(await quick.get("/models", cast_to=object), model)
        expected = await asyncio.to_thread(_read_placeholders, checkpoint)
        root = str(client.base_url).rstrip("/").removesuffix("/v1")  # vLLM's `/detokenize` lies beside `/v1`
        for token_id, text in expected.items():
            reply = await quick.post(f"{root}/detokenize", body={"model": model, "tokens": [token_id]}, cast_to=object)
            if not isinstance(reply, Mapping) or reply.get("prompt") != text:
                raise _UnknownPlaceholders(f"its token {token_id} is not {text!r} as in {checkpoint}")
    except (openai.APIStatusError, ValueError) as error:
        raise _UnknownPlaceholders(f"it does not say ({type(error).__name__}: {error})"[:200]) from error
    return tuple(expected)


def _served_checkpoint(listed: Any, model: str) -> str:
    """The path or Hub id of the model's checkpoint (for an adapter, of its base)."""
    data = listed.get("data") if isinstance(listed, Mapping) else None
    entries = {entry["id"]: entry for entry in data or () if isinstance(entry, Mapping) and "id" in entry}
    if model not in entries:
        raise _UnknownPlaceholders("it does not list the model")
    base = entries.get(entries[model].get("parent"), entries[model])
    checkpoint = base.get("root") or (model if os.path.isdir(model) else None)
    if not checkpoint:
        raise _UnknownPlaceholders("it does not say which checkpoint it serves")
    return str(checkpoint)


def _read_placeholders(checkpoint: str) -> dict[int, str]:
    """Placeholders of images and videos, token id → text; empty for a text-only model."""
    from transformers import AutoConfig, AutoTokenizer

    from ..compat.model_parts import placeholder_ids

    try:
        ids = placeholder_ids(AutoConfig.from_pretrained(checkpoint))
        if not ids:
            return {}
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        return {token_id: tokenizer.decode([token_id]) for token_id in ids}
    except (OSError, ValueError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise _UnknownPlaceholders(f"its checkpoint {checkpoint} cannot be read here ({first_line})") from error
