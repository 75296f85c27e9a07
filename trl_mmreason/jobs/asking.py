"""Ask a teacher, a judge or a scorer until its reply can be parsed, and store the result.

asking = ReplyCollector(store, SamplingParams(), attempts=3, seed=0, running={"batch_size": 8})
replies = asking.ask("ratings", scorer, rows, lambda row: Request(…), lambda row, reply: {"score": …}, settings={…})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from datasets import Dataset

from ..data.rows import Row
from ..generation.engine import Engine, Failure, Request, Sample, SamplingParams, derive_seed
from ..generation.patience import wait_for_all
from ..grading.replies import ReplyCount
from .run import run
from .store import Record, Store

_MALFORMED = "malformed reply"

Read = Callable[[str], dict[str, Any]]


class MalformedReply(ValueError):
    """A reply in the wrong format; the message is a short phrase to count by."""


def without_fence(reply: str) -> str:
    """A reply without the white space and the code fence around it."""
    text = reply.strip()
    if len(text) >= 6 and text.startswith("```") and text.endswith("```"):
        text = text[3:-3].removeprefix("json").strip()
    return text


@dataclass(frozen=True)
class ReplyCollector:
    """Asks a teacher, judge or scorer, and stores its parsed replies.

    Attributes:
        store: keeps what was read.
        sampling_params: sampling parameters of the replies. At temperature 0 a malformed one comes again.
        attempts: number of tries, each time with another seed, before a reply that is malformed or failed is given up.
        seed: other seeds give other replies.
        running: for `run`, such as `batch_size`; `retries` is left out, as it would ask with the same seed.

    Raises:
        ValueError: there is no attempt.
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
        """Ask about each unit without a stored reply.

        Under several processes each takes its share; call it on all of them, and every process gets all.

        Args:
            stage: stage of the store.
            units: each with a unique string `id`.
            request: what to ask about a unit; its seed is set here.
            read: the payload that a reply about a unit holds; raises `MalformedReply`.
            settings: what else determines the replies, as JSON: the prompt.

        Returns:
            Unit id → its payload or `Failure`, for these units and those of earlier runs.

        Raises:
            SettingsChanged: the store holds replies that were drawn in another way.
        """

        expected = "a reply in the form that the prompt asks for"
        count = ReplyCount(f"{stage}: the model", expected, "Rows without such a reply are dropped and counted.")

        def work(batch: Sequence[tuple[Row, int]]) -> list[dict[str, Any] | Failure]:
            requests = [replace(request(unit), seed=derive_seed(self.seed, stage, unit["id"])) for unit, _ in batch]
            reads = [partial(read, unit) for unit, _ in batch]
            return ask_until_read(engine, self.sampling_params, requests, reads, self.attempts, count)

        stage_settings = {
            "engine": engine.settings,
            "sampling_params": asdict(self.sampling_params),
            "seed": self.seed,
            **settings,
        }
        # `run` would try again with the same seed, and get the same reply.
        run(self.store, stage, units, work, settings=stage_settings, **{**self.running, "retries": 0})
        wait_for_all()
        return {record.id: record for record in self.store.records(stage)}


def ask_until_read(
    engine: Engine,
    sampling_params: SamplingParams,
    requests: Sequence[Request],
    reads: Sequence[Read],
    attempts: int,
    count: ReplyCount,
) -> list[dict[str, Any] | Failure]:
    """Return the first well-formed reply to each request, parsed; the last `Failure` if there is none.

    Args:
        reads: how the reply to each request is read; raises `MalformedReply`.
        attempts: number of tries, each time with another seed.
        count: counts the last reply to each request, or that there is none.

    Raises:
        UnsuitableEngine: none of many replies in a row can be read.
    """
    replies: dict[int, str | Failure] = {}
    results: dict[int, dict[str, Any] | Failure] = {}
    for attempt in range(attempts):
        waiting = [k for k in range(len(requests)) if not isinstance(results.get(k), dict)]
        if not waiting:
            break
        batch = [replace(requests[k], seed=derive_seed(requests[k].seed, attempt)) for k in waiting]
        for k, samples in zip(waiting, engine.sample(batch, sampling_params), strict=True):
            results[k] = samples if isinstance(samples, Failure) else _read(samples[0], reads[k])
            if isinstance(samples, Failure):
                replies.setdefault(k, samples)  # an earlier reply stays
            else:
                replies[k] = samples[0].text
    count.note_call(list(replies.values()))
    for k, reply in replies.items():
        count.note(reply, readable=isinstance(results[k], dict))
    return [results[k] for k in range(len(requests))]


def parsed_positions(
    ids: Sequence[str], replies: Mapping[str, Record], dropped: Counter[str], *, prefix: str = ""
) -> list[int]:
    """Positions of the units with a parsed reply, and counts of the others by reason.

    Args:
        ids: ids of the units.
        replies: result of `ReplyCollector.ask`.
        dropped: reason → number of units; grows.
        prefix: prefix of the reasons.
    """
    positions = []
    for position, id_ in enumerate(ids):
        record = replies[id_]
        if record.status == "done":
            positions.append(position)
        else:
            reason = record.reason if record.reason.startswith(_MALFORMED) else "sampling failed"
            dropped[f"{prefix}{reason}"] += 1
    return positions


def reference_answer(answer: Any) -> str:
    """The gold answer given to a teacher or judge: the first of several, "" without any."""
    first = next(iter(answer), None) if isinstance(answer, list | tuple) else answer
    return "" if first is None else str(first).strip()


def _read(sample: Sample, read: Read) -> dict[str, Any] | Failure:
    if sample.finish_reason == "length":
        return Failure(f"{_MALFORMED}: cut by the length limit")
    try:
        return read(sample.text)
    except MalformedReply as error:
        return Failure(f"{_MALFORMED}: {error}")
