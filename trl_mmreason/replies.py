"""Count replies of judges, teachers and scorers that are missing or cannot be read; a run without any other ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

logger = logging.getLogger(__name__)

MOST_UNREADABLE = 64
"""So many replies in a row that cannot be read end a run."""
_SHOWN = 200


class UnsuitableEngine(RuntimeError):
    """The engine cannot serve any request with these settings, or says nothing that can be read; the run ends."""


class Failure(NamedTuple):
    """The reason why a request, or a unit of work, has no result.

    Attributes:
        reason: in a sentence.
        of_server: the server failed, or is none, and says nothing about this request in particular.
    """

    reason: str
    of_server: bool = False


class ReplyCount:
    """Warns of the first reply that is missing or cannot be read, and ends the run after `MOST_UNREADABLE` in a row.

    A server that fails from the start ends it at once; one request alone may itself be the reason.

    Args:
        party: who replies, for messages.
        expected: what a reply should be.
        effect: what becomes of an answer or row without a reply that can be read, as a sentence.
    """

    def __init__(self, party: str, expected: str, effect: str) -> None:
        self._party, self._expected, self._effect = party, expected, effect
        self._in_a_row = 0
        self._has_warned = self._has_replied = False
        self._failed_first = 0
        self._lock = threading.Lock()  # graders and judges work in threads, too

    def note_call(self, replies: Sequence[str | Failure]) -> None:
        """Look at the replies to requests that were sent together; raises `UnsuitableEngine` if the server fails."""
        failed = [reply for reply in replies if isinstance(reply, Failure) and reply.of_server]
        with self._lock:
            self._has_replied |= len(failed) < len(replies)
            self._failed_first += 0 if self._has_replied else len(failed)
            count = len(failed) if len(failed) == len(replies) and self._has_replied else self._failed_first
        if count > 1 and len(failed) == len(replies):
            raise UnsuitableEngine(
                f"{self._party} has answered none of {count} requests, the last because: {failed[-1].reason}"
            )

    def note(self, reply: str | Failure, *, readable: bool) -> None:
        """Count a reply, or that there was none; raises `UnsuitableEngine` after many that cannot be read."""
        with self._lock:
            self._in_a_row = 0 if readable else self._in_a_row + 1
            stops = self._in_a_row >= MOST_UNREADABLE
            warns, self._has_warned = not (readable or self._has_warned), self._has_warned or not readable
        if isinstance(reply, Failure):
            said = f"did not reply: {reply.reason.rstrip('.')}"
            last = f"requests in a row have no reply that can be read, the last because: {reply.reason}"
        else:
            said = f"replied {_cut(reply)!r}, which cannot be read; expected {self._expected}"
            last = (
                f"replies in a row could not be read, the last is {_cut(reply)!r}; expected {self._expected}. Fix: "
                "name a model that follows the prompt, or raise the token limit of its replies if they are cut."
            )
        if warns:
            logger.warning("%s %s. %s", self._party, said, self._effect)
        if stops:
            raise UnsuitableEngine(f"{self._party}: {MOST_UNREADABLE} {last}")


def _cut(reply: str) -> str:
    """The end of a reply, where a judgement stands."""
    return reply if len(reply) <= _SHOWN else f"…{reply[-_SHOWN:]}"
