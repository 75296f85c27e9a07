"""Replies of judges, teachers and scorers that cannot be read are counted, and a run in which none can be read ends."""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger(__name__)

MOST_UNREADABLE = 64
"""So many replies in a row that cannot be read end a run."""
_SHOWN = 200


class UnsuitableEngine(RuntimeError):
    """The engine cannot serve any request with these settings, or says nothing that can be read; the run ends."""


class ReplyCount:
    """Warns of the first reply that cannot be read, and ends the run after `MOST_UNREADABLE` of them in a row.

    Args:
        party: who replies, for messages.
        expected: what a reply should be.
        effect: what becomes of an answer or row without a reply that can be read, as a sentence.
    """

    def __init__(self, party: str, expected: str, effect: str) -> None:
        self._party, self._expected, self._effect = party, expected, effect
        self._in_a_row = 0
        self._has_warned = False
        self._lock = threading.Lock()  # graders and judges work in threads, too

    def note(self, reply: str, *, readable: bool) -> None:
        """Count a reply.

        Raises:
            UnsuitableEngine: it and those before it cannot be read.
        """
        with self._lock:
            self._in_a_row = 0 if readable else self._in_a_row + 1
            stops = self._in_a_row == MOST_UNREADABLE
            warns, self._has_warned = not (readable or self._has_warned), self._has_warned or not readable
        if warns:
            logger.warning(
                "%s replied %r, which cannot be read; expected %s. %s",
                self._party,
                _cut(reply),
                self._expected,
                self._effect,
            )
        if stops:
            raise UnsuitableEngine(
                f"{self._party}: {MOST_UNREADABLE} replies in a row could not be read, the last is {_cut(reply)!r}; "
                f"expected {self._expected}. Fix: name a model that follows the prompt, or raise the token limit of "
                "its replies if they are cut."
            )


def _cut(reply: str) -> str:
    """The end of a reply, where a judgement stands."""
    return reply if len(reply) <= _SHOWN else f"…{reply[-_SHOWN:]}"
