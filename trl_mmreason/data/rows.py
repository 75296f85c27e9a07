"""Check one row of a data source, and convert it to the package's format.

A value that cannot be used raises `RefusedValue`; `RowReader.check` turns that into an entry of the row's list of
problems, so that one row can report all its mistakes at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import datasets

from ..messages import PLACEHOLDER, conversation, images_inside
from .image_marks import with_usual_marks
from .image_size import PixelBounds, fitted_image
from .images import present_images
from .row_kinds import KINDS, RowKindName
from .row_values import (
    RefusedValue,
    as_declared,
    cell,
    listed_images,
    naming_column,
    read_images,
    read_label,
    read_tolerance,
    show,
    wrong_type,
)
from .unseen_media import TEXT_ALONE, mark_problem, unseen_media
from .video import VIDEO_NAMES, read_videos

TOLERANCE = "tolerance"  # of rows whose source has such a column

Row = Mapping[str, Any]
"""Column → value."""

ROLES = ("system", "user", "assistant", "tool")  # those that TRL knows
MESSAGES = datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string")})
"""Type of a column of messages."""

_VIDEO = "<video>"  # where the frames of a video stand
_PLACEHOLDERS_AT_START = re.compile(r"\A(?:\s*<image>)+\s*")
# How a prompt begins that a chat template has made: ChatML, Llama, Phi and Zephyr, Gemma, Mistral.
_TEMPLATED = re.compile(
    r"\s*(<s>|<bos>|<\|begin_of_text\|>)?\s*"
    r"(<\|im_start\|>|<\|start_header_id\|>|<\|(system|user)\|>|<start_of_turn>|\[INST\])"
)
# Columns that Alpaca, ShareGPT and ms-swift put beside a prompt's column, and that belong to the prompt.
_BESIDE_PROMPT = {
    "messages": ("system",),
    "conversations": ("system",),
    "conversation": ("system",),
    "instruction": ("input", "system", "history"),
    "query": ("system", "history"),
}


def _reading_images(column: str) -> str:
    return f"{naming_column('images', column)}; null (None) if the images are not needed"


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
        columns: our name → the source's column, for those that the source has. One column for `prompt` and `answer`,
            or what the kind has in its place, holds conversations that end with it.
        image_root: folder that relative paths of images start from.
        source_name: beginning of the ids of rows without one.
        system_prompt: put before every prompt as a system message.
        unread: further columns, which are searched for media that the model would not see.
        features: types of the source's columns; empty for JSON.
        video_frames: frames to read of each video in the columns `video` and `videos`.
        kind: what the rows are for.
        id_prefix: beginning of every id.
        pixels: bounds of each image's size.
    """

    columns: Mapping[str, str]
    image_root: Path
    source_name: str
    system_prompt: str | None = None
    unread: tuple[str, ...] = ()
    features: Mapping[str, Any] = field(default_factory=dict)
    video_frames: int = 0
    kind: RowKindName = "questions"
    id_prefix: str = ""
    pixels: PixelBounds = PixelBounds()

    def check(self, row: Mapping[str, Any], index: int) -> dict[str, Any]:
        """Return the columns of the common row, and `problems`: a list of column, reason and message.

        A refused value is None or empty. `answer` is always a list of strings.
        """
        problems: list[dict[str, str]] = []
        kind = KINDS[self.kind]
        values = {
            name: as_declared(cell(row, column), self.features.get(column)) for name, column in self.columns.items()
        }
        if "images" in values:
            values["images"] = listed_images(values["images"])
        inside = images_inside(values.get("prompt"))
        values["prompt"] = conversation(values.get("prompt"))
        if ends_prompt := self.columns.get(kind.ends) == self.columns.get("prompt"):
            values["prompt"], values[kind.ends] = kind.split(values["prompt"])

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
            images = read("prompt", lambda _: self._read_inside(inside, len(images))) or []
        videos = [video for name in VIDEO_NAMES for video in read(name, partial(self._read_videos, name, values)) or []]
        if self.video_frames:
            placed = None if problems else read("prompt", lambda prompt: place_frames(prompt, images, videos))
            # of a row with another problem, nothing more is to be said about its videos
            marked = _with_texts(values["prompt"], lambda text: text.replace(_VIDEO, PLACEHOLDER))
            values["prompt"], images = placed or (marked, images)
        image_count = None if problems else len(images)
        unread = {column: cell(row, column) for column in self.unread}
        read_ones = None if problems else [*present_images(values.get("images")), *inside, *chain(*videos)]
        if unseen := unseen_media(unread, read_ones, image_root=self.image_root, fix=_reading_images):
            alone = TEXT_ALONE if unseen.reason == "video or audio" else ""
            problems.append({**unseen._asdict(), "message": unseen.message + alone})
        problems.extend(self._dropped_text(row))
        return {
            "prompt": read("prompt", lambda value: read_prompt(value, image_count, self.system_prompt)) or [],
            "images": images if self.pixels == PixelBounds() else [fitted_image(one, self.pixels) for one in images],
            **kind.read(read, ends_prompt),
            "id": self.id_prefix + (read("id", read_label) or f"{self.source_name}-{index}"),
            "category": read("category", read_label),
            **({TOLERANCE: read(TOLERANCE, read_tolerance)} if TOLERANCE in self.columns else {}),
            "problems": problems,
        }

    def _read_inside(self, images: list[Any], beside: int) -> list[dict[str, Any]]:
        """Images inside messages, of which a row with images `beside` them has none."""
        if beside:
            message = f"the messages hold {len(images)} image(s) and the column of images {beside}"
            raise RefusedValue("images in two places", f"{message}; keep them in one place")
        return read_images(images, self.image_root)

    def _read_videos(self, name: str, values: Row, value: Any) -> list[list[dict[str, Any]]]:
        """Frames of the videos in one of the two columns, of which a row fills one."""
        if name == VIDEO_NAMES[-1] and all(present_images(values.get(each)) for each in VIDEO_NAMES):
            raise RefusedValue("videos in two places", "the columns `video` and `videos` both hold some; fill one")
        return read_videos(value, name, self.video_frames, self.image_root)

    def _dropped_text(self, row: Row) -> list[dict[str, str]]:
        """Columns of the row that belong to its prompt and are not read."""
        column = self.columns.get("prompt", "")
        read = {*self.columns.values(), *(["system"] if self.system_prompt is not None else [])}
        return [
            RefusedValue(
                "text beside the prompt",
                f"it holds {show(row[one])}, which belongs to the prompt, and only {column!r} is read; write it into "
                f"{column!r} (system as a system message), or empty this column",
            ).in_column(one)
            for one in _BESIDE_PROMPT.get(column, ())
            if row.get(one) and one not in read
        ]


def place_frames(prompt: Any, images: list[Any], videos: list[list[Any]]) -> tuple[Any, list[Any]]:
    """Put the frames of videos between the images of a row.

    Returns:
        The prompt with an `<image>` for each frame in the place of `<video>`, and the images in the order of the marks;
        without marks the frames follow the images.
    """
    marks: list[str] = []
    each = iter(videos)

    def place(mark: re.Match[str]) -> str:
        marks.append(mark[0])
        return PLACEHOLDER if mark[0] == PLACEHOLDER else PLACEHOLDER * len(next(each, ()))

    marked = _with_texts(prompt, lambda text: re.sub(f"{PLACEHOLDER}|{_VIDEO}", place, text))
    places, frames = marks.count(PLACEHOLDER), list(chain(*videos))
    if _VIDEO not in marks and (not videos or places in (0, len(images) + len(frames))):
        return prompt, [*images, *frames]
    if (marks.count(_VIDEO), places) != (len(videos), len(images)):
        raise RefusedValue(
            "wrong number of <video>",
            f"the prompt has {marks.count(_VIDEO)} {_VIDEO} and {places} {PLACEHOLDER}, and the row {len(videos)} "
            f"video(s) and {len(images)} image(s); make them equal, or leave all of them out to have the images first",
        )
    ones, groups = iter(images), iter(videos)
    return marked, [one for mark in marks for one in (next(groups) if mark == _VIDEO else [next(ones)])]


def _with_texts(prompt: Any, change: Callable[[str], str]) -> Any:
    """A prompt, or its messages, with the texts changed; anything else stays as it is."""
    if isinstance(prompt, Mapping):
        return {key: _with_texts(value, change) if key == "content" else value for key, value in prompt.items()}
    if isinstance(prompt, list):
        return [_with_texts(message, change) for message in prompt]
    return change(prompt) if isinstance(prompt, str) else prompt


def read_prompt(value: Any, image_count: int | None, system_prompt: str | None = None) -> list[dict[str, str]]:
    """Return messages with string contents.

    `<image>` stays in messages of the user if images stand inside their text. If all come first, it is removed: that is
    where TRL puts the images by itself.

    Args:
        value: a string, which becomes a user message, or a list of messages.
        image_count: number of the row's images; None if unknown, and then placeholders are not counted.
        system_prompt: put first as a system message.
    """
    messages = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(messages, list):
        raise wrong_type(value, "a string or a list of messages with 'role' and 'content'")
    messages = with_usual_marks([_read_message(message) for message in messages], image_count)
    user_message = next((message for message in messages if message["role"] == "user"), None)
    if user_message is None:
        raise RefusedValue("empty prompt", "the prompt has no user message; add the question as one")
    if messages[-1]["role"] == "assistant":
        raise RefusedValue(
            "prompt ends with an answer",
            "the last message is the assistant's, but the policy is to write that one; remove it, put it in `answer`, "
            "or name this column for `answer` too",
        )
    placeholder_count = sum(message["content"].count(PLACEHOLDER) for message in messages)
    rest = _PLACEHOLDERS_AT_START.sub("", user_message["content"])
    if placeholder_count == user_message["content"].count(PLACEHOLDER) - rest.count(PLACEHOLDER):
        user_message["content"] = rest  # all come first
    if not user_message["content"].replace(PLACEHOLDER, "").strip():
        raise RefusedValue("empty prompt", "the prompt has no text; write the question there")
    if mark := next(filter(None, (_TEMPLATED.match(message["content"]) for message in messages)), None):
        raise RefusedValue(
            "prompt in a chat template",
            f"the prompt begins with {mark[0].strip()!r}, so that it would be put into a chat template twice; give the "
            "question alone, or messages",
        )
    if problem := next(filter(None, (mark_problem(message["content"]) for message in messages)), None):
        raise RefusedValue(problem.reason, f"the prompt has {problem.message}, or write the tag in other words")
    if misplaced := [one["role"] for one in messages if one["role"] != "user" and PLACEHOLDER in one["content"]]:
        raise RefusedValue(
            "misplaced <image>",
            f"<image> stands in a message of the {misplaced[0]}, but models here see images of the user alone; put it "
            "into a message of the user, or write 'the image' in its place",
        )
    if placeholder_count and image_count is not None and placeholder_count != image_count:
        raise RefusedValue(
            "wrong number of <image>",
            f"the prompt has {placeholder_count} <image> placeholder(s) and the row {image_count} image(s); "
            "make them equal, or leave the placeholders out to have the images first",
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
        raise wrong_type(message, "a message with 'role' and 'content'")
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
            f"the content of a message is {show(fields['content'])}; it must be a string, or parts of text "
            '({"type": "text", "text": …}) and images ({"type": "image"})',
        )
    return {"role": fields["role"], "content": fields["content"]}
