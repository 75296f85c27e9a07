"""The program of one worker process: `python -m trl_mmreason.grading.worker MEMORY_BYTES DEADLINE_SECONDS`.

It reads one job a line from standard input and writes one reply a line to standard output, both as JSON, until its
input ends. The parent kills it when a job takes too long. Once the parent is gone only the kernel can, by a timer whose
default action ends the process: during arithmetic on huge numbers the interpreter never looks up.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from .notation import NeedsAlgebra, Refused, Unreadable

# The parser's descent takes some twenty Python calls a nesting level of the answer.
_RECURSION_LIMIT = 4000
_SPARE_SECONDS = 1.0
_DETAIL_CHARACTERS = 300


def serve(load: Callable[[], Callable[..., bool]]) -> None:
    """Answer jobs until standard input ends.

    Args:
        load: imports and returns what decides a job, which is called with the job's fields by name. What it prints goes
            to standard error, and from the first job on nothing is printed anywhere.
    """
    memory_bytes, deadline_seconds = int(sys.argv[1]), float(sys.argv[2])
    replies = os.dup(1)
    os.dup2(2, 1)
    decide = load()
    _limit(memory_bytes)
    _send(replies, {"ready": True})
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        number = job.pop("number")
        signal.setitimer(signal.ITIMER_REAL, deadline_seconds + _SPARE_SECONDS)
        reply = _decide(decide, job)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(replies, {"number": number, **reply})


def _limit(memory_bytes: int) -> None:
    """Bound the address space (Linux only: macOS does not support it), allow no core dumps, and let the timer kill."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        size = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    sys.setrecursionlimit(_RECURSION_LIMIT)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])


def _decide(decide: Callable[..., bool], job: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"status": "decided", "correct": bool(decide(**job))}
    except (Refused, RecursionError) as error:
        return _undecided("size", error)
    except (Unreadable, NeedsAlgebra) as error:
        return _undecided("unreadable", error)
    except MemoryError as error:
        return _undecided("memory", error)
    except Exception as error:  # noqa: BLE001 - hostile text makes libraries raise anything; it costs that answer only
        return _undecided("error", error)


def _undecided(status: str, error: Exception) -> dict[str, Any]:
    return {"status": status, "detail": f"{type(error).__name__}: {error}"[:_DETAIL_CHARACTERS]}


def _send(replies: int, reply: dict[str, Any]) -> None:
    os.write(replies, json.dumps(reply).encode() + b"\n")


def _rules() -> Callable[..., bool]:
    # Imported once the reply pipe is out of reach of whatever these modules print.
    from . import algebra, decide

    return functools.partial(decide.decide, algebra=algebra)


if __name__ == "__main__":
    serve(_rules)
