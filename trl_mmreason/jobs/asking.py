"""Ask a teacher, a judge or a scorer until its reply can be parsed, and store the result.

asking = ReplyCollector(store, SamplingParams(), attempts=3, seed=0, running={"batch_size": 8})
replies = asking.ask("ratings", scorer, rows, lambda row: Request(…), lambda row, reply: {"score": …}, settings={…})
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from datasets import Dataset

from ..data.rows import Row
from ..generation.engine import Engine, Failure, Request, Sample, SamplingParams, derive_seed
from ..generation.patience import wait_for_all
from ..replies import ReplyCount
from .run import run
from .store import Record, Store

_MALFORMED = "malformed reply"


class MalformedReply(ValueError):
    """A reply in the wrong format; the message is a short phrase to count by."""


def without_fence(reply: str) -> str:
    """A reply without the white space and the code fence around it."""
    text = reply.strip()
    if len(text) >= 6 and text.startswith("```") and text.endswith("```"):
        text = text[3:-3].removeprefix("json").strip()
    return text


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object in a reply.

    Raises:
        MalformedReply: it is anything else.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, a number of too many digits, or too deep
        raise MalformedReply("no JSON") from None
    if not isinstance(value, dict):
        raise MalformedReply("no JSON object")
    return value


@dataclass(frozen=True)
class ReplyCollector:
    """Asks a teacher, judge or scorer, and stores its parsed replies.

    Attributes:
        store: store of the parsed replies.
        sampling_params: sampling parameters of the replies. At temperature 0 a malformed one comes again.
        attempts: number of tries, each with another seed, before a malformed or failed reply is given up.
        seed: seed of the replies.
        running: arguments of `run`, such as `batch_size`; `retries` is ignored, as it would ask with the same seed.
    """

    store: Store
    sampling_params: SamplingParams
    attempts: int
    seed: int
    running: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"ReplyCollector: attempts is {self.attempts}, expected at least 1.")

    def ask(
        self,
        stage: str,
        engine: Engine,
        units: Dataset | Sequence[Row],
        request: Callable[[Row], Request],
        read: Callable[[Row, str], dict[str, Any]],
        *,
        settings: Mapping[str, Any],
    ) -> dict[str, Record]:
        """Ask about each unit without a stored reply, in all processes together.

        Args:
            units: rows, each with a unique string `id`.
            request: what to ask about a unit; its seed is set here.
            read: parses a reply about a unit to a payload; raises `MalformedReply`.
            settings: what else determines the replies, as JSON: the prompt.

        Returns:
            Unit id → its record, for these units and those of earlier runs, in every process.

        Raises:
            SettingsChanged: the store holds replies that were drawn in another way.
        """
        expected = "a reply in the form that the prompt asks for"
        count = ReplyCount(f"{stage}: the model", expected, "Rows without such a reply are dropped and counted.")

        def work(batch: Sequence[tuple[Row, int]]) -> list[dict[str, Any] | Failure]:
            requests = [replace(request(unit), seed=derive_seed(self.seed, stage, unit["id"])) for unit, _ in batch]
            reads = [partial(read, unit) for unit, _ in batch]
            return ask_until_read(engine, self.sampling_params, requests, reads, self.attempts, count)

        drawn = {"engine": engine.settings, "sampling_params": asdict(self.sampling_params), "seed": self.seed}
        run(self.store, stage, units, work, settings={**drawn, **settings}, **{**self.running, "retries": 0})
        wait_for_all()
        return {record.id: record for record in self.store.records(stage)}


def ask_until_read(
    engine: Engine,
    sampling_params: SamplingParams,
    requests: Sequence[Request],
    reads: Sequence[Callable[[str], dict[str, Any]]],
    attempts: int,
    count: ReplyCount,
) -> list[dict[str, Any] | Failure]:
    """Return the first well-formed reply to each request, parsed; the last `Failure` if there is none.

    Args:
        reads: parser of the reply to each request; raises `MalformedReply`.
        attempts: number of tries, each with another seed.
        count: counts the last reply to each request, or that there is none; raises `UnsuitableEngine` where none of
            many in a row can be read.
    """
    replies: dict[int, str | Failure] = {}
    results: dict[int, dict[str, Any] | Failure] = {}
    for attempt in range(attempts):
        waiting = [k for k in range(len(requests)) if not isinstance(results.get(k), dict)]
        if not waiting:
            break
        batch = [replace(requests[k], seed=derive_seed(requests[k].seed, attempt)) for k in waiting]
        for k, samples in zip(waiting, engine.sample(batch, sampling_params), strict=True):
            if isinstance(samples, Failure):
                results[k] = samples
                replies.setdefault(k, samples)  # an earlier reply stays
            else:
                results[k], replies[k] = _read(samples[0], reads[k]), samples[0].text
    count.note_call(list(replies.values()))
    for k, reply in replies.items():
        count.note(reply, readable=isinstance(results[k], dict))
    return [results[k] for k in range(len(requests))]


def parsed_positions(
    ids: Sequence[str], replies: Mapping[str, Record], dropped: Counter[str], *, prefix: str = ""
) -> list[int]:
    """Positions of the units with a parsed reply among `ReplyCollector.ask`'s; counts the others by reason in
    `dropped`, with `prefix`."""
    for id_ in ids:
        if replies[id_].status == "failed":
            malformed = replies[id_].reason.startswith(_MALFORMED)
            dropped[f"{prefix}{replies[id_].reason if malformed else 'sampling failed'}"] += 1
    return [position for position, id_ in enumerate(ids) if replies[id_].status == "done"]


def reference_answer(answer: Any) -> str:
    """The gold answer given to a teacher or judge: the first of several, "" without any."""
    first = next(iter(answer), None) if isinstance(answer, list | tuple) else answer
    return "" if first is None else str(first).strip()


def _read(sample: Sample, read: Callable[[str], dict[str, Any]]) -> dict[str, Any] | Failure:
    if sample.finish_reason == "length":
        return Failure(f"{_MALFORMED}: cut by the length limit")
    try:
        return read(sample.text)
    except MalformedReply as error:
        return Failure(f"{_MALFORMED}: {error}")
