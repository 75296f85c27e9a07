"""Ask a judge again that has said nothing which can be read: without this its silence would stay in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .store import Record, Store


def is_unread(graded: Mapping[str, Any]) -> bool:
    """Whether a sample has an answer about which the judge did not reply, or not so that it can be read."""
    return any(turn["decided_by"] == "unreadable" for turn in graded["turns"])


def judge_is_silent(samples: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a judge was asked about some of these graded samples, and not one of its replies could be read.

    A wrong sample without an answer is one in which the judge found none. One question alone may itself be the reason
    for the silence, unless nothing else has a verdict either.
    """
    unread = read = 0
    for sample in samples:
        unread += is_unread(sample)
        turns = sample["turns"]
        if any(
            turn["decided_by"] == "judge" or (turn["correct"] is False and turn["answer"] is None) for turn in turns
        ):
            return False
        read += not is_unread(sample)
    return unread > 1 or bool(unread and not read)


def judge_again(
    store: Store,
    verdicts: str,
    names: Sequence[str],
    grade: Callable[[list[int]], Sequence[dict[str, Any]]],
    *,
    retry_failed: bool,
    batch_size: int,
) -> None:
    """Replace the verdicts of samples about which a silent judge said nothing.

    Args:
        store, verdicts: stage of the verdicts.
        names: ids of the samples' verdicts.
        grade: takes places in `names`, and grades these samples.
        retry_failed: also where the judge has replied to other questions.
        batch_size: samples graded at once.
    """
    unread = {record.id for record in store.records(verdicts) if record.payload and is_unread(record.payload)}
    if not unread:
        return
    if not retry_failed and not judge_is_silent(record.payload for record in store.records(verdicts) if record.payload):
        return
    places = [place for place, name in enumerate(names) if name in unread]
    for start in range(0, len(places), batch_size):
        batch = places[start : start + batch_size]
        graded = grade(batch)
        records = [Record(names[place], 0, "done", one) for place, one in zip(batch, graded, strict=True)]
        store.overwrite(verdicts, records, results="")
