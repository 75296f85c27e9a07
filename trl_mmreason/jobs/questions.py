"""Remember a store's questions by digests of their words and images, so that answers to others are never reused."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import PIL.Image

from ..data.images import IMAGE_COLUMNS, image_digest, stored_images
from .run import Payload, unique_ids
from .source_rows import ROWS_A_BATCH, JoinedRows
from .store import Record, SettingsChanged, Store

CHANGES_LISTED = 5
QUESTIONS_A_PAGE = 250
_WORDS = ("prompt", "answer", "choices")


def remember_questions(
    store: Store,
    stage: str,
    rows: Any,
    question_of: Callable[[Any], Any] = lambda prompt: prompt,
    *,
    with_images: Any = None,
) -> None:
    """Store a digest of each id's question, images and gold answer, so that a changed question is noticed.

    Rows may be added later, and changed while the stage is empty, as after a first try that failed.

    Args:
        store: store of the results.
        stage: stage of the results; the questions are in one beside it.
        rows: a data set, or something with its `select_columns`, with a unique string `id`, and `prompt`, `answer` and
            `choices` if there are any.
        question_of: the part of a prompt that is asked; all of it by default.
        with_images: these rows with their images, if `rows` has none.

    Raises:
        SettingsChanged: an id had another prompt, answer, choices or images before, and the stage has units.
        FileNotFoundError: an image is the path of a file that does not exist.
    """
    ids, beside = unique_ids(rows), f"{stage}-questions"
    words = rows.select_columns(["id", *(name for name in _WORDS if name in rows.column_names)]).with_format(None)
    images = image_digests(rows if with_images is None else with_images)
    store.open_stage(beside, {})

    def pages() -> Iterator[tuple[dict[str, Payload], dict[str, Payload]]]:
        """Yield pages of digests: of the questions now, and of those in the store."""
        questions = zip(ids, words, images, strict=True)
        while page := list(islice(questions, QUESTIONS_A_PAGE)):
            now = {id_: _digests(row, image, question_of) for id_, row, image in page}
            then = {record.id: record.payload for record in store.find(beside, ((id_, 0) for id_ in now))}
            yield now, then

    changed, new = {}, 0
    for now, then in pages():
        new += len(now) - len(then)
        for id_, digests in then.items():
            if names := [name for name in now[id_] | digests if digests.get(name) != now[id_].get(name)]:
                changed[id_] = names
    if changed:
        replaced = (Record(id_, 0, "done", now[id_]) for now, _ in pages() for id_ in now if id_ in changed)
        if store.overwrite(beside, replaced, results=stage):
            changed = {}
    if changed:
        listed = [f"  {' and '.join(names)} of {id_!r}" for id_, names in islice(changed.items(), CHANGES_LISTED)]
        listed += ["  …"] * (len(changed) > CHANGES_LISTED)
        raise SettingsChanged(
            f"{store.path}: {len(changed)} rows of stage {stage!r} changed under the same id, and results must not "
            "mix:\n"
            + "\n".join(listed)
            + "\nFix: take the questions back, give those that changed other ids, or give another file."
        )
    if new:
        for now, then in pages():
            store.save(beside, [Record(id_, 0, "done", digests) for id_, digests in now.items() if id_ not in then])


def image_digests(rows: Any) -> Sequence[int]:
    """A number of 64 bits for the images of each row, 0 without any; files are read, but nothing is decoded."""
    if isinstance(rows, JoinedRows):
        distinct = sorted(set(rows.positions))
        digests = dict(zip(distinct, image_digests(rows.rows.select(distinct)), strict=True))
        return array("Q", (digests[position] for position in rows.positions))
    columns = [name for name in IMAGE_COLUMNS if name in rows.column_names]
    if not columns:
        return array("Q", bytes(8 * len(rows)))
    tables = rows.select_columns(columns).with_format("arrow").iter(ROWS_A_BATCH)  # in which no image is decoded
    return array("Q", (_image_digest(row) for table in tables for row in table.to_pylist()))


def _image_digest(row: Mapping[str, Any]) -> int:
    images = stored_images(row)
    digest = hashlib.sha256(b"".join(map(image_digest, images))).digest()
    return int.from_bytes(digest[:8], "big") if images else 0


def _digests(row: Mapping[str, Any], image: int, question_of: Callable[[Any], Any]) -> dict[str, str]:
    answer = row.get("answer")
    golds = answer if isinstance(answer, list) else [answer]  # lists in all rows if there is one in any
    words = {"prompt": question_of(row.get("prompt")), "answer": golds, "choices": row.get("choices")}
    digests = {name: hashlib.sha256(repr(_bare(value)).encode()).hexdigest()[:16] for name, value in words.items()}
    return {**digests, "images": f"{image:016x}"} if image else digests


def _bare(value: Any) -> Any:
    """Remove the keys that Arrow adds to a row because other rows have them."""
    if isinstance(value, Mapping):
        return sorted((key, _bare(one)) for key, one in value.items() if one is not None)
    if isinstance(value, PIL.Image.Image):  # among the parts of a message
        return image_digest(value).hex()
    return [_bare(one) for one in value] if isinstance(value, list) else value
