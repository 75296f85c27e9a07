"""Check one row of a data source, and convert it to the package's format.

Everything here sees one row at a time and keeps nothing, so that `data.load_rows` can run it over any number of
rows in several processes. A value that cannot be used raises `RefusedValue`; `RowReader.check` turns that into an entry
of the row's list of problems, so that one row can report all its mistakes at once.
"""

from __future__ import annotations

import math
import os
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import PIL.Image

from .grading.decide import gold_problem
from .grading.extraction import read_gold
from .messages import PLACEHOLDER, conversation, pictures_inside, split_answer
from .pictures import DECODING_ERRORS, decode, picture_file, present_pictures, repaired_picture
from .unseen_media import NO_MEDIA, media_mark, unseen_media

NAMES = ("prompt", "images", "answer", "choices", "id", "category")

Row = Mapping[str, Any]
"""Column → value."""

ROLES = ("system", "user", "assistant", "tool")  # those that TRL knows
MESSAGES = datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")})
"""Type of a column of messages."""

# The image processors of the Qwen-VL family refuse longer shapes in the middle of training.
_MAX_ASPECT_RATIO = 200
_MAX_FILE_NAME = 255  # characters between two slashes, on all usual file systems; a small picture in base64 has more

_PLACEHOLDERS_AT_START = re.compile(r"\A(?:\s*<image>)+\s*")
_PLACEHOLDERS_AT_END = re.compile(r"\s*(?:<image>\s*)+\Z")
_LONE_LETTER = re.compile(r"\(?([A-Z])\)?[.:]?")

_IMAGE_ROOT = "give the folder that relative paths start from (--image-root, or image_root=…)"


_NO_PICTURES = """; or read the text alone: --columns '{"images": null}', or columns={"images": None} in Python"""


def _reading_pictures(column: str) -> str:
    return f"{naming_column('images', column)}; null (None) if the pictures are not needed"


def naming_column(name: str, column: str = "…") -> str:
    """How the source's column for one of our names is given, in commands and in Python."""
    return f"""--columns '{{"{name}": "{column}"}}', or columns={{"{name}": "{column}"}} in Python"""


class RefusedValue(Exception):
    """An unusable value: `reason` is a short phrase to count by, `message` the whole sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def in_column(self, column: str) -> dict[str, str]:
        """This problem as an entry of a row's list of problems."""
        return {"column": column, "reason": self.reason, "message": self.message}


@dataclass(frozen=True)
class RowProblem:
    """Why one row is unusable.

    Attributes:
        row: its index in the source, from 0 (blank lines of a file are not counted).
        id: the row's own id, or the one that it was given.
        column: the source's column; "line" if the whole line could not be read.
        reason: a short phrase to count by.
        message: what came, what was expected and the fix.
    """

    row: int
    id: str
    column: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"row {self.row} (id {self.id!r}), column {self.column!r}: {self.reason}: {self.message}"


class DataError(ValueError):
    """An unusable source; `problems` lists every bad row, or nothing if the source itself is at fault."""

    def __init__(self, message: str, problems: Sequence[RowProblem] = ()) -> None:
        super().__init__(message)
        self.problems = list(problems)


@dataclass(frozen=True)
class RowReader:
    """Reads and checks the rows of one source.

    Attributes:
        columns: our name → the source's column; a name that the source does not have is absent. One column for
            `prompt` and `answer` holds conversations, whose last turn is the answer.
        image_root: the folder that relative paths of pictures start from.
        source_name: used for the ids of rows that have none of their own.
        system_prompt: put before every prompt as a system message, or None.
        unread: columns that are left out, in which a row is searched for media that its model would not see.
    """

    columns: Mapping[str, str]
    image_root: Path
    source_name: str
    system_prompt: str | None = None
    unread: tuple[str, ...] = ()

    def check(self, row: Mapping[str, Any], index: int) -> dict[str, Any]:
        """Return the six columns of the common row, and `problems`: a list of column, reason and message.

        A value that was refused is None or empty in the result. `answer` is a list of strings here in any case.
        """
        problems: list[dict[str, str]] = []
        values = {name: row.get(column) for name, column in self.columns.items()}
        inside = pictures_inside(values.get("prompt"))
        values["prompt"] = conversation(values.get("prompt"))
        if ends_with_answer := self.columns.get("answer") == self.columns.get("prompt"):
            values["prompt"], values["answer"] = split_answer(values["prompt"])

        def read(name: str, reader: Callable[[Any], Any]) -> Any:
            if name not in self.columns:
                return None
            try:
                return reader(values[name])
            except RefusedValue as refused:
                problems.append(refused.in_column(self.columns[name]))
                return None

        images = read("images", lambda value: read_images(value, self.image_root)) or []
        if inside:
            images = read("prompt", lambda _: read_inside(inside, self.image_root, beside=len(images))) or []
        image_count = None if problems else len(images)
        unread = {column: row.get(column) for column in self.unread}
        has_pictures = bool(images or problems)
        if unseen := unseen_media(unread, has_pictures=has_pictures, image_root=self.image_root, fix=_reading_pictures):
            alone = _NO_PICTURES if unseen.reason == "video or audio" else ""
            problems.append({**unseen._asdict(), "message": unseen.message + alone})
        choices = read("choices", read_choices)
        return {
            "prompt": read("prompt", lambda value: read_prompt(value, image_count, self.system_prompt)) or [],
            "images": images,
            "answer": read("answer", lambda value: read_answers(value, choices, ends_with_answer)) or [],
            "choices": choices,
            "id": read("id", read_label) or f"{self.source_name}-{index}",
            "category": read("category", read_label),
            "problems": problems,
        }


def read_prompt(value: Any, image_count: int | None, system_prompt: str | None = None) -> list[dict[str, str]]:
    """Return messages with string contents, without `<image>` placeholders.

    Args:
        value: a string, which becomes a user message, or a list of messages.
        image_count: how many pictures the row has; None if unknown, and then placeholders are not counted.
        system_prompt: goes first as a system message, or None.

    TRL puts the pictures before the first user message itself, so placeholders at the two ends of that message are
    taken off; one anywhere else would lose its meaning and is refused.
    """
    messages = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(messages, list):
        raise _wrong_type(value, "a string or a list of messages with 'role' and 'content'")
    messages = [_read_message(message) for message in messages]
    user_message = next((message for message in messages if message["role"] == "user"), None)
    if user_message is None:
        raise RefusedValue("empty prompt", "the prompt has no user message; add the question as one")
    if messages[-1]["role"] == "assistant":
        raise RefusedValue(
            "prompt ends with an answer",
            "the last message is the assistant's, but the policy is to write that one; remove it, put it in `answer`, "
            "or name this column for `answer` too",
        )
    user_message["content"], placeholder_count = _strip_placeholders(user_message["content"])
    if not user_message["content"].strip():
        raise RefusedValue("empty prompt", "the prompt has no text; write the question there")
    if mark := next(filter(None, (media_mark(message["content"]) for message in messages)), None):
        raise RefusedValue(
            "video or audio",
            f"the prompt has the mark {mark}, and {NO_MEDIA}; put frames into `images` and remove it, or write the tag "
            "in other words",
        )
    if any(PLACEHOLDER in message["content"] for message in messages):
        raise RefusedValue(
            "misplaced <image>",
            "<image> stands inside the text, but TRL puts all pictures before the first user message; "
            "refer to them in words ('the second picture') and remove <image>",
        )
    if placeholder_count and image_count is not None and placeholder_count != image_count:
        raise RefusedValue(
            "wrong number of <image>",
            f"the prompt has {placeholder_count} <image> placeholder(s) and the row {image_count} picture(s); "
            "make them equal or leave the placeholders out",
        )
    if system_prompt is None:
        return messages
    if messages[0]["role"] == "system":
        raise RefusedValue(
            "two system messages",
            "the prompt has its own system message and a system prompt (--system-prompt, or system_prompt=…) came too; "
            "remove one of them",
        )
    return [{"role": "system", "content": system_prompt}, *messages]


def _read_message(message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise _wrong_type(message, "a message with 'role' and 'content'")
    fields = {key: value for key, value in message.items() if value is not None}  # Arrow fills absent keys with None
    if fields.keys() != {"role", "content"}:
        raise RefusedValue(
            "wrong message", f"a message has the keys {sorted(fields)}; it must have 'role' and 'content', no others"
        )
    if fields["role"] not in ROLES:
        raise RefusedValue(
            "unknown role",
            f"a message has the role {fields['role']!r}; expected one of {ROLES}, or LLaVA's 'human' and 'gpt'",
        )
    if not isinstance(fields["content"], str):
        raise RefusedValue(
            "wrong message",
            f"the content of a message is {_show(fields['content'])}; it must be a string, or parts of text "
            '({"type": "text", "text": …}) and pictures ({"type": "image"})',
        )
    return {"role": fields["role"], "content": fields["content"]}


def _strip_placeholders(text: str) -> tuple[str, int]:
    """Take `<image>` off both ends of `text`; return the rest and how many were taken."""
    rest = _PLACEHOLDERS_AT_END.sub("", _PLACEHOLDERS_AT_START.sub("", text))
    return rest, text.count(PLACEHOLDER) - rest.count(PLACEHOLDER)


def read_answers(value: Any, choices: Mapping[str, str] | None, ends_with_answer: bool = False) -> list[str]:
    """Return the acceptable answers, at least one.

    Args:
        value: one answer or a list of them; numbers become text.
        choices: letter → text.
        ends_with_answer: `value` is the last turn of a conversation, and None if that is not the assistant's.
    """
    if ends_with_answer and value is None:
        raise RefusedValue(
            "no answer at the end",
            "the conversation does not end with a message of the assistant, which would be the answer; add it, or name "
            f"a column of answers: {naming_column('answer')}",
        )
    answers = [_read_text(item) for item in (value if isinstance(value, list) else [value])]
    if not answers or "" in answers:
        raise RefusedValue("empty answer", f"the answer is {_show(value)}; give a string or a list of strings")
    for answer in answers:
        if problem := gold_problem(read_gold(answer)):
            raise RefusedValue("unusable answer", f"the answer {_show(answer)} cannot be graded: {problem}")
    if choices is None:
        return answers
    if any(isinstance(item, int | float) for item in (value if isinstance(value, list) else [value])):
        # Data sets count from 0, from 1, or mean the value of a choice: a guess would teach wrong answers.
        raise RefusedValue(
            "answer is a number", f"the answer is the number {value} although there are choices; give letter or text"
        )
    for answer in answers:
        letter = _LONE_LETTER.fullmatch(answer)
        if letter and letter[1] not in choices and answer not in choices.values():
            raise RefusedValue(
                "letter not among the choices",
                f"the answer is {answer!r} but the choices are {list(choices)}; fix the answer or the choices",
            )
    return answers


def read_choices(value: Any) -> dict[str, str] | None:
    """Return letter → text, or None if there are no choices. A list of strings gets the letters A, B, C, …"""
    if value is None or value in ([], {}, ""):
        return None
    if isinstance(value, list) and len(value) <= len(string.ascii_uppercase):
        value = dict(zip(string.ascii_uppercase, value, strict=False))
    elif isinstance(value, Mapping):
        # Arrow gives every row the letters of all rows, with None where this row has none.
        value = {letter: text for letter, text in value.items() if text is not None}
    else:
        raise _wrong_type(value, "a dictionary letter → string or a list of at most 26 strings")
    if not all(isinstance(key, str) and re.fullmatch("[A-Z]", key) for key in value):
        raise RefusedValue("wrong choices", f"the choices are named {list(value)}; expected capital letters A to Z")
    texts = {letter: _read_text(text) for letter, text in value.items()}
    if "" in texts.values():
        raise RefusedValue("wrong choices", f"the choices are {_show(value)}; one of them is empty")
    return texts or None


def read_label(value: Any) -> str | None:
    """Return an id or a category as a string, or None if it is absent."""
    return _read_text(value) or None


def _read_text(value: Any) -> str:
    """Return `value` without outer spaces; numbers as the shortest string (7.0 → '7'), None as ''."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(int(value)) if value == int(value) else str(value)
    raise _wrong_type(value, "a string or a finite number")


def read_images(value: Any, image_root: Path) -> list[dict[str, Any]]:
    """Return {"bytes", "path"} for each picture, as `datasets.Image(mode="RGB")` stores it, decoding each once.

    Args:
        value: one picture or a list of them, or any form of none (`present_pictures`). A picture is a path, the bytes
            of a picture file, or a dictionary with "bytes" or "path".
        image_root: the folder that relative paths start from.
    """
    return [_read_picture(picture, image_root) for picture in present_pictures(value)]


def read_inside(pictures: Sequence[Any], image_root: Path, *, beside: int) -> list[dict[str, Any]]:
    """`read_images` for pictures inside messages; `beside` are those in the column of pictures."""
    if beside:
        raise RefusedValue(
            "pictures in two places",
            f"the messages hold {len(pictures)} picture(s) and the column of pictures {beside}; keep them in one place",
        )
    return [_read_picture(picture, image_root) for picture in pictures]


def _read_picture(value: Any, image_root: Path) -> dict[str, Any]:
    stored: dict[str, Any] = {"bytes": None, "path": None}
    if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):
        stored = {"bytes": value.get("bytes"), "path": value.get("path")}
    elif isinstance(value, bytes):
        stored["bytes"] = value
    elif isinstance(value, str):
        stored["path"] = value
    if isinstance(stored["bytes"], bytes):
        where = f"the picture {stored['path']!r}" if stored["path"] else f"a picture of {len(stored['bytes'])} bytes"
    elif isinstance(stored["path"], str):
        stored["path"] = where = str(_existing_file(stored["path"], image_root))
    else:
        raise _wrong_type(value, 'a path, the bytes of a picture file, or {"bytes": …, "path": …}')
    try:
        picture = decode(stored["bytes"] or stored["path"])
        repaired = repaired_picture(picture)
    except DECODING_ERRORS as error:
        raise RefusedValue("unreadable picture", f"{where} cannot be decoded ({error}); save it again") from error
    width, height = picture.size
    if max(width, height) > _MAX_ASPECT_RATIO * min(width, height):
        raise RefusedValue(
            "picture too long",
            f"{where} is {width}×{height} pixels; sides may differ by a factor of {_MAX_ASPECT_RATIO} at most: crop it",
        )
    return stored if repaired is None else stored_picture(repaired)


def _existing_file(path: str, image_root: Path) -> Path:
    if re.match(r"(https?|s3|hf|gs)://", path):
        raise RefusedValue("picture is a link", f"{path!r} is not on this machine; download the pictures first")
    if path.startswith("data:") or len(path) > 1024 or max(map(len, path.split("/"))) > _MAX_FILE_NAME:
        raise RefusedValue(
            "picture is base64",
            f"expected a path and got {_show(path)}; save it as a file and give its path, or give its bytes",
        )
    file = (image_root / path).absolute()
    if not os.path.isfile(file):  # `Path.is_file` raises where a name is too long for the file system
        raise RefusedValue("missing picture file", f"{str(file)!r} does not exist; fix the path, or {_IMAGE_ROOT}")
    return file


def stored_picture(picture: PIL.Image.Image) -> dict[str, Any]:
    """Encode a picture as `datasets` stores it, losslessly; `datasets` itself encodes each twice and takes longer."""
    return {"bytes": picture_file(picture, "PNG", compress_level=1), "path": None}  # a third of the usual level's time


def _wrong_type(value: Any, expected: str) -> RefusedValue:
    return RefusedValue("wrong type", f"got {_show(value)} ({type(value).__name__}); expected {expected}")


def _show(value: Any) -> str:
    """A short repr, as values may be whole pictures."""
    text = repr(value[:60] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 80 else text[:77] + "…"
