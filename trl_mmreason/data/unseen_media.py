"""Media in a row that its model would not see: video, audio, and images in a column that is not read.

Values decide, and names where values say little: text that mentions a file, and the number of a video, are no media.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import PIL.Image
from datasets import Audio, Dataset, LargeList, List, Video

from ..messages import PLACEHOLDER, count_marks
from .images import (
    DECODING_ERRORS,
    ENCODED_IMAGE,
    IMAGE_COLUMNS,
    gap_problem,
    image_digest,
    present_images,
    record_problem,
    stored_images,
)

_IMAGE_FILE = re.compile(r".*\.(png|jpe?g|webp|bmp|gif|tiff?)(\?\S*)?", re.IGNORECASE)
_MEDIA_FILE = re.compile(r".*\.(mp4|avi|mov|mkv|webm|m4v|mpe?g|wav|mp3|flac|ogg|opus|m4a|aac)(\?\S*)?", re.IGNORECASE)
_PARTS = r"(_?(path|file|file_?name|url|uri|byte|data|list)s?)?"
_MEDIA_COLUMN = re.compile(rf"(input_)?(video|audio)s?{_PARTS}", re.IGNORECASE)
_IMAGE_NAMES = r"(.*_)?(image|img|picture|pic|photo|photograph|figure|screenshot|diagram)s?"
_IMAGE_COLUMN = re.compile(rf"{_IMAGE_NAMES}\d*(_.*)?", re.IGNORECASE)
_FURTHER_IMAGE = re.compile(rf"{_IMAGE_NAMES}(_?\d+|_[a-z])?", re.IGNORECASE)  # no path or link of one that is read
_ORIGIN = re.compile(r"(.*_)?(id|source|origin)s?", re.IGNORECASE)  # where a row comes from
_KINDS = ("image", "video", "audio")  # as {"kind": "image", "uri": …} and the like say what they hold
_SAYS_KIND = ("type", "kind", "modality", "media_type")
_LINKS = ("http://", "https://")
# Marks of models and data sets. A lone <img> is one at the two ends of the text, elsewhere it is HTML.
_MARK = re.compile(
    r"<\|[a-z_]*(image|img|video|audio|vision)[a-z_]*\d*\|>"
    r"|</?(image|video|audio)s?[ _-]?\d*\s*/?>"
    r"|<(start|end|begin)_of_(image|video|audio)>"
    r"|<(image|img|video|audio|vision)_?(pad|token|soft_token|context|placeholder|start|end|patch|here)>"
    r"|<fake_token_around_image>|<global-img>|<im_(start|end|patch)>|\[IMG(_BREAK|_END)?\]"
    r"|\A\s*<img>|<img>\s*\Z|<img>[^<]*</img>|!\[[^\]\n]*\]\([^)\s]+\)",
    re.IGNORECASE,
)
_MEDIA_STARTS = (b"ID3", b"fLaC", b"OggS", b"\x1aE\xdf\xa3")  # MP3, FLAC, Ogg, Matroska
_READ = ("prompt", "completion", "answer", "choices", "id", "category", "hint", "caption")
_ROWS_LOOKED_AT, _ROWS_AT_ONCE = 20, 1000

NO_MEDIA = "models here see text and images only"
_VIDEO_FRAMES = "load_rows(…, video_frames=8), or --video-frames 8,"
_FRAMES = (
    f"{_VIDEO_FRAMES} reads frames of a video in the column `video` or `videos`; or put frames of it into `images`, or "
    "remove the column to train on the rest; if only a reward function reads it, give it another name"
)
_AS_STORED = ((), ("bytes",), ("path",))  # keys below a column of images
TEXT_ALONE = """; or read the text alone: --columns '{"images": null}', or columns={"images": None} in Python"""
_IN_ONE = "put the images into one list column `images`"


class Unseen(NamedTuple):
    """A column of a row that holds what the model will not see.

    Attributes:
        column: name of the column.
        reason: a short phrase to count by.
        message: the value, and the fix.
    """

    column: str
    reason: str
    message: str


def unseen_media(
    unread: Mapping[str, Any], images: list[Any] | None, *, image_root: Path | None = None, fix: Callable[[str], str]
) -> Unseen | None:
    """Find media in the columns of a row that are not read.

    Args:
        unread: column → value, images as they are stored.
        images: the row's images that the model sees, as they are stored; `None` if they cannot be read. A row with
            images may name the video or the file that they come from, but not hold another image.
        image_root: folder that relative paths start from.
        fix: how a column of this name is read as that of images.
    """
    alone = images == []
    for column, value in unread.items():
        if any(_is_media(leaf, alone, image_root) for leaf in _leaves(value, (column,))):
            return Unseen(column, "video or audio", f"it holds video or audio, and {NO_MEDIA}; {_FRAMES}")
        if alone and column == "pixel_values" and value:
            message = "it holds processed images, which nobody reads; put the images themselves into `images`"
            return Unseen(column, "image in another column", message)
    found = []
    for column, value in {} if images is None else unread.items():
        if not alone and not _FURTHER_IMAGE.fullmatch(column):
            continue
        leaves = [leaf for leaf in _leaves(value, (column,)) if _is_image(leaf, image_root)]
        if alone and leaves:
            found.append((column, all(leaf.names[1:] in _AS_STORED for leaf in leaves)))
        elif any(_is_another(leaf.value, images or (), image_root) for leaf in leaves):
            only = f"or name the only column to read: {fix(column)}"
            message = f"it holds an image that nobody reads, beside one that is read; {_IN_ONE}; {only}"
            return Unseen(column, "second image", message)
    if not found:
        return None
    column, is_readable = found[0]
    if len(found) > 1:
        names = [name for name, _ in found]
        message = f"the columns {names} hold images that nobody reads; {_IN_ONE}; or name one of them: {fix(column)}"
    else:
        how = fix(column) if is_readable else f"{_IN_ONE}{TEXT_ALONE if image_root else ''}"
        message = f"it holds an image that nobody reads, and the row has no other; {how}"
    return Unseen(column, "image in another column", message)


def is_media_column(column: str) -> bool:
    """Whether a column's name says that it holds video or audio."""
    return _MEDIA_COLUMN.fullmatch(column) is not None


def mark_problem(text: str) -> Unseen | None:
    """The first mark of media in a text other than `<image>`, such as `<video>` or `<image_1>`."""
    mark = next((mark[0].strip() for mark in _MARK.finditer(text) if mark[0] != PLACEHOLDER), None)
    if mark is None:
        return None
    if re.search("video|audio", mark, re.IGNORECASE):
        fix = f"{_VIDEO_FRAMES} puts frames of the column `video` in the place of <video>; or put frames into `images`"
        return Unseen("", "video or audio", f"the mark {mark}, and {NO_MEDIA}; {fix} and remove it")
    message = f"the mark {mark} of an image; write {PLACEHOLDER} in the place of each of `images`, or remove it"
    return Unseen("", "mark of an image", message)


def refuse_unseen_media(name: str, dataset: Dataset) -> None:
    """Refuse a data set (`name` in errors) that holds media which the model would not see, and name the row."""
    if dataset.format["type"] == "custom":
        return  # what its transform makes of the columns is not known
    others = [column for column in dataset.column_names if column not in (*_READ, *IMAGE_COLUMNS)]
    for column in others:
        if _declares_media(dataset.features[column]):
            raise ValueError(f"{name}: the column {column!r} holds video or audio, and {NO_MEDIA}. Fix: {_FRAMES}.")
    suspects = [column for column in others if is_media_column(column)]
    first = dataset.select(range(min(_ROWS_LOOKED_AT, len(dataset))))
    images = [column for column in IMAGE_COLUMNS if column in dataset.column_names]
    for rows, columns in ((dataset, suspects), (first, [*others, *images])):
        for number, row in enumerate(_stored_rows(rows, columns)):
            unread = {column: row[column] for column in columns if column in others}
            # of the suspects alone nothing but video and audio is looked for
            stored = None if rows is dataset else stored_images(row)
            if problem := next(filter(None, map(record_problem, stored or ())), None):
                raise ValueError(f"{name}: an image of row {number} is {problem}.")
            for column in images:
                if gap := gap_problem(row.get(column)):
                    raise ValueError(f"{name}: row {number}, column {column!r}: it has {gap}.")
            if stored and present_images(row.get("images")):
                unread["image"] = row.get("image")  # trainers read `images`, not `image`
            unseen = unseen_media(unread, stored, fix=_renaming)
            if unseen is not None:
                raise ValueError(f"{name}: row {number}, column {unseen.column!r}: {unseen.message}.")
    _refuse_marks(name, dataset, images)


def _renaming(column: str) -> str:
    return (
        f"name that column `images` (dataset.rename_column({column!r}, 'images')), or remove it; if only a reward "
        "function reads it, give it a name that is none of an image"
    )


def _refuse_marks(name: str, dataset: Dataset, columns: list[str]) -> None:
    """Refuse prompts with parts or marks that no image stands for."""
    for number, row in enumerate(_stored_rows(dataset, ["prompt"])):
        prompt = row["prompt"]
        contents = [prompt] if isinstance(prompt, str) else [message.get("content") for message in prompt or ()]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        strange = sorted({str(part["type"]) for part in parts if part.get("type")} - {"text", "image"})
        texts = [content for content in contents if isinstance(content, str)]
        texts += [part["text"] for part in parts if isinstance(part.get("text"), str)]
        if strange:
            raise ValueError(
                f"{name}: the prompt of row {number} has a part of type {strange[0]!r}, and {NO_MEDIA}. Fix: put "
                "images, or frames of a video, into `images`, and leave it out."
            )
        if problem := next(filter(None, map(mark_problem, texts)), None):
            raise ValueError(f"{name}: the prompt of row {number} has {problem.message}.")
        marks = sum(text.count(PLACEHOLDER) for text in texts)
        if not marks:
            continue
        placed = 0 if isinstance(prompt, str) else count_marks(prompt)
        stored = dict(next(_stored_rows(dataset.select([number]), columns), {}))
        count = len(stored_images(stored)) + sum(part.get("image") is not None for part in parts)
        if placed != count if placed else marks > count:
            raise ValueError(
                f"{name}: the prompt of row {number} has {placed or marks} {PLACEHOLDER} and the row {count} image(s). "
                f"Fix: make them equal, or leave {PLACEHOLDER} out."
            )


def _stored_rows(dataset: Dataset, columns: list[str]) -> Iterator[Mapping[str, Any]]:
    """These columns of each row, as they are stored: no image is decoded."""
    if columns:
        for table in dataset.select_columns(columns).with_format("arrow").iter(_ROWS_AT_ONCE):
            yield from table.to_pylist()


def _declares_media(feature: Any) -> bool:
    if isinstance(feature, List | LargeList):
        return _declares_media(feature.feature)
    if isinstance(feature, dict):
        return any(map(_declares_media, feature.values()))
    return isinstance(feature, Audio | Video)


class _Leaf(NamedTuple):
    """A value without inner ones, and what leads to it: its column and keys."""

    value: Any
    names: tuple[str, ...]


def _leaves(value: Any, names: tuple[str, ...]) -> Iterator[_Leaf]:
    """What a value holds, however deep, also in lists and dictionaries written as text; nothing of what is empty."""
    if isinstance(value, str) and value[:1] in ("[", "{") and value.rstrip()[-1:] in ("]", "}"):
        with suppress(ValueError, RecursionError):
            value = json.loads(value if '"' in value else value.replace("'", '"'))
            names = names if isinstance(value, list) else (*names, "")  # of such texts lists alone can be read
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, names)
    elif isinstance(value, Mapping):
        says = [key for key in _SAYS_KIND if isinstance(value.get(key), str) and value[key] in _KINDS]
        kinds = tuple(value[key] for key in says)
        for key, inner in value.items():
            yield from _leaves(None if key in says else inner, (*names, *kinds, str(key)))
    elif value is not None and value != "" and value != b"":
        yield _Leaf(value, names)


def _named(leaf: _Leaf, pattern: re.Pattern[str]) -> bool:
    """Whether a name that leads to a value says what it is, and the last one not that it says where it comes from."""
    is_origin = len(leaf.names) > 1 and _ORIGIN.fullmatch(leaf.names[-1])
    return not is_origin and any(map(pattern.fullmatch, leaf.names))


def _is_named_file(leaf: _Leaf, ending: re.Pattern[str], named: bool, root: Path | None) -> bool:
    """Whether a string is the name of such a file, which exists or is meant to."""
    text = leaf.value
    if not ending.fullmatch(text) or (text.startswith(_LINKS) and not named):
        return False
    single = not any(map(str.isspace, text)) and not _ORIGIN.fullmatch(leaf.names[-1])
    return named or single or os.path.isfile(text if root is None else root / text)


def _is_media(leaf: _Leaf, alone: bool, root: Path | None) -> bool:
    value = leaf.value
    # beside images that are read, deeper names may say which video they come from
    named = _named(leaf if alone else leaf._replace(names=leaf.names[:1]), _MEDIA_COLUMN)
    if isinstance(value, bytes):
        return named or value.startswith(_MEDIA_STARTS) or value[4:8] == b"ftyp" or value[8:12] in (b"AVI ", b"WAVE")
    if not isinstance(value, str):
        return named and not isinstance(value, bool | int | float)
    if named and len(value.split()) == 1:
        return True
    return (alone or named) and _is_named_file(leaf, _MEDIA_FILE, named, root)


def _is_image(leaf: _Leaf, root: Path | None) -> bool:
    value, named = leaf.value, _named(leaf, _IMAGE_COLUMN)
    if isinstance(value, bytes):
        try:
            PIL.Image.open(io.BytesIO(value)).close()
        except DECODING_ERRORS:
            return False
        return True
    if not isinstance(value, str):
        return isinstance(value, PIL.Image.Image)
    if ENCODED_IMAGE.match(value):
        return True
    is_link = named and value.startswith(_LINKS) and not any(map(str.isspace, value))
    return is_link or _is_named_file(leaf, _IMAGE_FILE, named, root)


def _is_another(value: Any, images: Sequence[Any], root: Path | None) -> bool:
    """Whether an image is none of those that are read; a file that is not there may be the name of one of them."""
    is_path = isinstance(value, str) and not (value.startswith(_LINKS) or ENCODED_IMAGE.match(value))
    if is_path and not os.path.isfile(value if root is None else root / value):
        names = {Path(one["path"]).name for one in images if isinstance(one, Mapping) and one.get("path")}
        return bool(names) and Path(value).name not in names
    return _digest(value, root) not in {_digest(image, root) for image in images}


def _digest(value: Any, root: Path | None) -> bytes:
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    path = value if root is None or not isinstance(value, str) else str(root / value)
    try:
        return image_digest(path)
    except (FileNotFoundError, ValueError):
        return str(value).encode()
