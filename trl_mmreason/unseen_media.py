"""Media in a row that its model would not see: video, audio, and pictures in a column that nobody reads.

Values decide, and names where values say little: text that mentions a file, and the number of a video, are no media.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import PIL.Image
from datasets import Audio, Dataset, LargeList, List, Video

from .messages import PLACEHOLDER
from .pictures import DECODING_ERRORS, PICTURE_COLUMNS, stored_pictures

_PICTURE_FILE = re.compile(r"\S+\.(png|jpe?g|webp|bmp|gif|tiff?)(\?\S*)?", re.IGNORECASE)
_MEDIA_FILE = re.compile(r"\S+\.(mp4|avi|mov|mkv|webm|m4v|mpe?g|wav|mp3|flac|ogg|opus|m4a|aac)(\?\S*)?", re.IGNORECASE)
_PARTS = r"(_?(path|file|file_?name|url|uri|byte|data|list)s?)?"
_MEDIA_COLUMN = re.compile(rf"(input_)?(video|audio)s?{_PARTS}", re.IGNORECASE)
_PICTURE_COLUMN = re.compile(
    r"(.*_)?(image|img|picture|pic|photo|photograph|figure|screenshot|diagram)s?(_.*)?", re.IGNORECASE
)
_ENCODED = re.compile(r"data:image/|(/9j/|iVBORw0KGgo|R0lGOD|UklGR)[A-Za-z0-9+/\s]{60}")  # JPEG, PNG, GIF, WebP
_MARK = re.compile(r"<(video|audio)>|<\|(video|audio)(_pad)?\|>", re.IGNORECASE)
_MEDIA_STARTS = (b"ID3", b"fLaC", b"OggS", b"\x1aE\xdf\xa3")  # MP3, FLAC, Ogg, Matroska
_READ = ("prompt", "completion", "answer", "choices", "id", "category", "hint", "caption")
_ROWS_LOOKED_AT, _ROWS_AT_ONCE = 20, 1000

NO_MEDIA = "models here see text and pictures only"
_FRAMES = (
    "put frames of it into `images`, or remove the column to train on the rest; if only a reward function reads it, "
    "give it another name"
)


class Unseen(NamedTuple):
    """A column of a row that holds what the model will not see.

    Attributes:
        column: its name.
        reason: a short phrase to count by.
        message: what came, and the fix.
    """

    column: str
    reason: str
    message: str


def unseen_media(
    unread: Mapping[str, Any], *, has_pictures: bool, image_root: Path | None = None, fix: Callable[[str], str]
) -> Unseen | None:
    """Find media in the columns of a row that nobody reads.

    Args:
        unread: column → value, pictures as they are stored.
        has_pictures: whether the model sees pictures of this row. Then another column may hold further ones.
        image_root: the folder that relative paths start from.
        fix: how the column of this name is read as that of pictures.
    """
    for column, value in unread.items():
        named = is_media_column(column)
        if any(_is_media(one, named, not has_pictures, image_root) for one in _values(value)):
            return Unseen(column, "video or audio", f"it holds video or audio, and {NO_MEDIA}; {_FRAMES}")
    for column, value in {} if has_pictures else unread.items():
        named = _PICTURE_COLUMN.fullmatch(column) is not None
        if column == "pixel_values" and _values(value):
            message = "it holds processed pictures, which nobody reads; put the pictures themselves into `images`"
            return Unseen(column, "picture in another column", message)
        if any(_is_picture(one, named, image_root) for one in _values(value)):
            message = f"it holds a picture that nobody reads, and the row has no other; {fix(column)}"
            return Unseen(column, "picture in another column", message)
    return None


def is_media_column(column: str) -> bool:
    """Whether a column's name says that it holds video or audio."""
    return _MEDIA_COLUMN.fullmatch(column) is not None


def media_mark(text: str) -> str | None:
    """The first mark of video or audio in a text, such as `<video>`."""
    mark = _MARK.search(text)
    return None if mark is None else mark[0]


def refuse_unseen_media(name: str, dataset: Dataset) -> None:
    """Refuse a data set in whose rows the model would not see what belongs to them.

    Args:
        name: what the data set is and whose, for the error.
        dataset: rows with `prompt`, and `images` or `image` if the model sees any.

    Raises:
        ValueError: names the row, and says what it holds.
    """
    if dataset.format["type"] == "custom":
        return  # what its transform makes of the columns is not known
    others = [column for column in dataset.column_names if column not in (*_READ, *PICTURE_COLUMNS)]
    for column in others:
        if _declares_media(dataset.features[column]):
            raise ValueError(f"{name}: the column {column!r} holds video or audio, and {NO_MEDIA}. Fix: {_FRAMES}.")
    suspects = [column for column in others if is_media_column(column)]
    first = dataset.select(range(min(_ROWS_LOOKED_AT, len(dataset))))
    pictures = [column for column in PICTURE_COLUMNS if column in dataset.column_names]
    for rows, columns in ((dataset, suspects), (first, [*others, *pictures])):
        for number, row in _stored_rows(rows, columns):
            unread = {column: row[column] for column in columns if column in others}
            # of the suspects alone nothing but video and audio is looked for
            seen = rows is dataset or bool(stored_pictures(row))
            unseen = unseen_media(unread, has_pictures=seen, fix=lambda column: _RENAME.format(column))
            if unseen is not None:
                raise ValueError(f"{name}: row {number}, column {unseen.column!r}: {unseen.message}.")
    _refuse_marks(name, dataset, pictures)


_RENAME = "name that column `images` (dataset.rename_column({!r}, 'images')), or remove it"


def _refuse_marks(name: str, dataset: Dataset, columns: list[str]) -> None:
    """Refuse prompts with parts or marks that no picture stands for."""
    for number, row in _stored_rows(dataset, ["prompt"]):
        prompt = row["prompt"]
        contents = [prompt] if isinstance(prompt, str) else [message.get("content") for message in prompt or ()]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        strange = sorted({str(part["type"]) for part in parts if part.get("type")} - {"text", "image"})
        texts = [content for content in contents if isinstance(content, str)]
        texts += [part["text"] for part in parts if isinstance(part.get("text"), str)]
        mark = next(filter(None, map(media_mark, texts)), None)
        if strange or mark:
            what = f"a part of type {strange[0]!r}" if strange else f"the mark {mark}"
            raise ValueError(
                f"{name}: the prompt of row {number} has {what}, and {NO_MEDIA}. Fix: put pictures, or frames of a "
                "video, into `images`, and leave it out."
            )
        marks = sum(text.count(PLACEHOLDER) for text in texts)
        if not marks:
            continue
        stored = dict(next(_stored_rows(dataset.select([number]), columns))[1]) if columns else {}
        count = len(stored_pictures(stored)) + sum(part.get("image") is not None for part in parts)
        if marks > count:
            raise ValueError(
                f"{name}: the prompt of row {number} has {marks} {PLACEHOLDER} and the row {count} picture(s). Fix: "
                f"put its pictures into `images`, or leave {PLACEHOLDER} out."
            )


def _stored_rows(dataset: Dataset, columns: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Number and columns of each row, as they are stored: no picture is decoded."""
    if not columns:
        return
    number = 0
    for table in dataset.select_columns(columns).with_format("arrow").iter(_ROWS_AT_ONCE):
        for row in table.to_pylist():
            yield number, row
            number += 1


def _declares_media(feature: Any) -> bool:
    if isinstance(feature, List | LargeList):
        return _declares_media(feature.feature)
    if isinstance(feature, dict):
        return any(map(_declares_media, feature.values()))
    return isinstance(feature, Audio | Video)


def _values(value: Any) -> list[Any]:
    """What a value holds, of lists each element; nothing of what is empty."""
    if isinstance(value, list | tuple):
        return [one for inner in value for one in _values(inner)]
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path") or value.get("url")
    return [] if value is None or value == "" or value == b"" else [value]


def _is_media(value: Any, named: bool, lacks_pictures: bool, root: Path | None) -> bool:
    if isinstance(value, bytes):
        return named or value.startswith(_MEDIA_STARTS) or value[4:8] == b"ftyp" or value[8:12] in (b"AVI ", b"WAVE")
    if not isinstance(value, str):
        return named and not isinstance(value, bool | int | float)
    is_named_path = named and (len(value.split()) == 1 or _MEDIA_FILE.search(value) is not None)
    return is_named_path or (lacks_pictures and _MEDIA_FILE.fullmatch(value) is not None and _is_file(value, root))


def _is_picture(value: Any, named: bool, root: Path | None) -> bool:
    if isinstance(value, bytes):
        try:
            PIL.Image.open(io.BytesIO(value)).close()
        except DECODING_ERRORS:
            return False
        return True
    if not isinstance(value, str):
        return isinstance(value, PIL.Image.Image)
    if _ENCODED.match(value):
        return True
    is_link = named and value.startswith(("http://", "https://")) and not any(map(str.isspace, value))
    return is_link or (_PICTURE_FILE.fullmatch(value) is not None and (named or _is_file(value, root)))


def _is_file(path: str, root: Path | None) -> bool:
    return os.path.isfile(path if root is None else root / path)
