"""Spread calls over the servers of one model; one that is down is left out for the rest of the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .chat_completions import CONNECT_SECONDS, ServerError, import_openai, keep_final, post, public_address, silence
from .served_placeholders import ask_placeholders

logger = logging.getLogger(__name__)

_LOWEST_BIAS = -100  # the lowest bias of OpenAI's API
_START = (
    "Start the server, or correct the address, which usually ends in /v1; HTTP_PROXY and NO_PROXY of the environment "
    "are followed."
)


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
                http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [keep_final]}),
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
        whys = await asyncio.gather(*(silence(client, server.shown) for server, client in self._clients.items()))
        if all(whys):
            raise ServerError(f"{'; '.join(whys)}. {_START}")

    async def find_placeholders(self, model: str) -> None:
        """Ask each server that was not asked before which tokens of the model stand for pictures."""
        new = [server for server in self._clients if server.suppressed_ids is None]
        found = await asyncio.gather(*(ask_placeholders(self._clients[one], model, one.shown) for one in new))
        for server, (ids, warning) in zip(new, found, strict=True):
            server.suppressed_ids, server.warning = ids, warning

    async def post(self, fields: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the reply to a chat completion, and the address that answered.

        Raises:
            RequestFailed: this call has no reply.
            ServerError: no call would have one.
        """
        while True:
            server = await self._slots.get()
            if server.is_down:
                continue
            bias = {str(token_id): _LOWEST_BIAS for token_id in server.suppressed_ids or ()}
            body = {**({"logit_bias": bias} if bias else {}), **fields}
            try:
                reply = await post(self._clients[server], body, server.shown)
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
