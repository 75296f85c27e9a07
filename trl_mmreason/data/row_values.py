"""Read one value of a row (answer, choices, label, image), or raise `RefusedValue`."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import string
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import PIL.Image
from datasets import ClassLabel, LargeList, List, Value

from ..grading.choices import names_a_choice, without_labels
from ..grading.decide import gold_problem
from ..grading.equivalence import same_answer
from ..grading.extraction import extract_answer, read_gold, without_thinking
from ..messages import PLACEHOLDER, shape_problem
from .images import (
    DECODING_ERRORS,
    SeveralFrames,
    decode,
    decoded_base64,
    gap_problem,
    image_file,
    present_images,
    record_problem,
    repaired_image,
)

_MAX_FILE_NAME = 255  # characters between two slashes, on all usual file systems; a small image in base64 has more
_LONE_LETTER = re.compile(r"\(?([A-Z])\)?[.:]?")
# A list with a quoted string; [1, 2], (0, 3] and [3', 4'] may be answers themselves.
_ITEM = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w.+-]+)"""
_WRITTEN_LIST = re.compile(rf"""\[\s*(?=.*["']){_ITEM}(?:[\s,]+{_ITEM})*[\s,]*\]""", re.DOTALL)
# What Python reads otherwise: ['a' 'b'] of numpy as 'ab', \frac as a form feed and "rac".
_UNCLEAR_LIST = re.compile(r"""['"]\s+['"]|(?<!\\)(?:\\\\)*\\[A-Za-tvwyz]""")
_FILE_URL = "file://"
_SOLUTION = re.compile(r"</?think>|<answer>|<CONCLUSION>", re.IGNORECASE)
_CONCLUSION = re.compile(r"<CONCLUSION>((?:(?!<CONCLUSION>).)*)</CONCLUSION>", re.IGNORECASE | re.DOTALL)
_LONGEST_ANSWER = 200  # characters of one line after the thought that is taken as it is
NUMBER = "answer is a number"


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


def cell(row: Mapping[str, Any], column: str) -> Any:
    """The value of a column, or of a field inside one, "column.field"; `None` if the row has none.

    Of a data set's features it is the type of that column or field.
    """
    if column in row or "." not in column:
        return row.get(column)
    outer, _, field = column.partition(".")
    inside = row.get(outer)
    return cell(inside, field) if isinstance(inside, Mapping) else None


def as_declared(value: Any, feature: Any) -> Any:
    """A value of Arrow as its column's type (`None` in JSON) means it: a class's number as its name, a float of 16 or
    32 bits as its shortest decimal."""
    if isinstance(feature, List | LargeList) and isinstance(value, list):
        return [as_declared(one, feature.feature) for one in value]
    if isinstance(feature, dict) and isinstance(value, Mapping):
        return {key: as_declared(one, feature.get(key)) for key, one in value.items()}
    if isinstance(feature, ClassLabel) and isinstance(value, int):
        return feature.names[value] if value >= 0 else None  # -1 stands for a label that is not known
    if isinstance(feature, Value) and feature.dtype in ("float16", "float32") and isinstance(value, float):
        return float(str(np.dtype(feature.dtype).type(value)))
    return value


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
    if isinstance(value, list) and len(value) > 1 and all(isinstance(item, int | float) for item in value):
        one, several = json.dumps(value), json.dumps([str(item) for item in value])
        raise RefusedValue(
            "list of numbers",
            f"the answer is {show(value)}, of which every number would be a right answer; write {show(one)} if it is "
            f"one answer, such as a box, or {several if len(several) < 60 else 'strings'} if any of them is right",
        )
    answers = [_final_answer(read_text(item)) for item in (value if isinstance(value, list) else [value])]
    if not answers or "" in answers:
        raise RefusedValue("empty answer", f"the answer is {show(value)}; give a string or a list of strings")
    texts = choices.values() if choices else ()
    if isinstance(value, str) and _WRITTEN_LIST.fullmatch(answers[0]) and answers[0] not in texts:
        raise RefusedValue(
            "list written as text",
            f"the answer is the text {show(answers[0])}; give a list itself, as JSON and parquet hold it, of which "
            "every string is a right answer; or a list of this text alone, if that is the answer",
        )
    for answer in answers:
        if PLACEHOLDER in answer:
            raise RefusedValue(
                "image in the answer",
                f"the answer is {show(answer)} and has an image, but models here answer in text; give the text alone",
            )
        if problem := gold_problem(read_gold(answer)):
            raise RefusedValue("unusable answer", f"the answer {show(answer)} cannot be graded: {problem}")
    if choices is None:
        return answers
    if any(isinstance(item, int | float) for item in (value if isinstance(value, list) else [value])):
        raise _number_beside_choices(value)
    for answer in answers:
        _check_choice(answer, choices)
    return answers


def _final_answer(text: str) -> str:
    """The answer at the end of a solution that thinks in tags, or in LLaVA-CoT's stages; any other text as it is."""
    if not _SOLUTION.search(text):
        return text
    concluded = [match[1] for match in _CONCLUSION.finditer(text)]
    said = concluded[-1] if concluded else text
    rest = (without_thinking(said) or "").strip()
    answer = extract_answer(said) or (rest if len(rest) <= _LONGEST_ANSWER and "\n" not in rest else "")
    if answer:
        return answer
    raise RefusedValue(
        "no answer in the solution",
        f"the answer is a whole solution, {show(text)}, which ends with none that can be told from it; write the short "
        f"answer into a column of its own: {naming_column('answer')}",
    )


def _number_beside_choices(value: Any) -> RefusedValue:
    # Data sets count from 0, from 1, or mean the value of a choice: a guess would teach wrong answers.
    return RefusedValue(NUMBER, f"the answer is the number {value} although there are choices; give letter or text")


def number_as_text(answer: str, choices: Mapping[str, str]) -> RefusedValue:
    """Refuse a choice's text that is a number, in a source where other answers are numbers of choices."""
    return RefusedValue(
        NUMBER,
        f"the answer {answer!r} is the text of a choice of {show(dict(choices))}, but other answers of this source are "
        "numbers of choices, and so may this one be; give letter or text",
    )


def _check_choice(answer: str, choices: Mapping[str, str]) -> None:
    """Refuse an answer that is none of the choices, or that could be two of them."""
    letter = _LONE_LETTER.fullmatch(answer)
    if letter and letter[1] not in choices and answer not in choices.values():
        raise RefusedValue(
            "letter not among the choices",
            f"the answer is {answer!r} but the choices are {list(choices)}; fix the answer or the choices",
        )
    choices = without_labels(choices)  # as the grader reads `A. red`
    other = next((each for each, text in choices.items() if text == answer and each != answer), None)
    if answer in choices and other is not None:
        raise RefusedValue(
            "letter and text of two choices",
            f"the answer is {answer!r}, the letter of {choices[answer]!r} and the text of choice {other}; write "
            f"'({answer})' or '({other})'",
        )
    if not names_a_choice(read_gold(answer), choices, same_answer):
        if answer.isdecimal():
            raise _number_beside_choices(answer)
        raise RefusedValue(
            "answer not among the choices",
            f"the answer is {show(answer)} but the choices are {show(dict(choices))}; give a letter or a text",
        )


def read_choices(value: Any) -> dict[str, str] | None:
    """Return letter → text, or None if there are no choices. A list of strings gets the letters A, B, C, …

    Both may be written as text, as in CSV and MMMU.
    """
    if isinstance(value, str) and value.strip()[:1] in ("[", "{") and not _UNCLEAR_LIST.search(value):
        text, letters = value.strip(), list[Any]()
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            read = ast.parse(text, mode="eval").body
            value, letters = ast.literal_eval(read), getattr(read, "keys", [])
        if isinstance(value, Mapping) and len(value) < len(letters):
            raise RefusedValue("wrong choices", f"the choices are {show(text)}; one letter comes twice")
    if value is None or value in ([], {}, ""):
        return None
    if isinstance(value, list) and len(value) <= len(string.ascii_uppercase):
        value = dict(zip(string.ascii_uppercase, value, strict=False))
    elif isinstance(value, Mapping):
        # Arrow gives every row the letters of all rows, with None where this row has none.
        value = {letter: text for letter, text in value.items() if text is not None}
    else:
        raise wrong_type(value, "a dictionary letter → string or a list of at most 26 strings")
    if not all(isinstance(key, str) and re.fullmatch("[A-Z]", key) for key in value):
        raise RefusedValue("wrong choices", f"the choices are named {list(value)}; expected capital letters A to Z")
    texts = {letter: read_text(text) for letter, text in value.items()}
    if "" in texts.values():
        raise RefusedValue("wrong choices", f"the choices are {show(value)}; one of them is empty")
    return texts or None


def read_label(value: Any) -> str | None:
    """Return an id or a category as a string, or None if it is absent."""
    return read_text(value) or None


def read_tolerance(value: Any) -> float | None:
    """Return the share of the right number by which an answer may be off, or None if it is absent."""
    if value is None or value == "":
        return None
    try:
        share = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        share = math.nan
    if not 0 < share < 1:
        message = f"{show(value)} is no tolerance; write a share of the right number such as 0.05, or leave it empty"
        raise RefusedValue("not a tolerance", f'{message}, or leave the column out with columns={{"tolerance": None}}')
    return share


def read_text(value: Any) -> str:
    """Return `value` without outer spaces; numbers as the shortest string (7.0 → '7'), None as ''."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(int(value)) if value == int(value) else str(value)
    raise wrong_type(value, "a string or a finite number")


def listed_images(value: Any) -> Any:
    """A list of images that is written as text, as pandas writes one into CSV; any other value as it is."""
    if not isinstance(value, str) or value.strip()[:1] != "[" or value.strip()[-1:] != "]":
        return value
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            images = read(value.strip())
            return images if isinstance(images, list) else value
    return value


def read_images(value: Any, image_root: Path) -> list[dict[str, Any]]:
    """Return {"bytes", "path"} for each image, as `datasets.Image(mode="RGB")` stores it, decoding each once.

    Args:
        value: one image or a list of them, or any form of none (`present_images`). An image is a path, a file:// URL,
            the bytes of a file, base64 or a data URL, or a dictionary with "bytes" or "path".
        image_root: folder that relative paths start from.
    """
    if problem := gap_problem(value):
        raise RefusedValue("missing image", f"the row has {problem}")
    return [_read_image(image, image_root) for image in present_images(value)]


def _read_image(value: Any, image_root: Path) -> dict[str, Any]:
    stored: dict[str, Any] = {"bytes": None, "path": None}
    if problem := record_problem(value):
        raise RefusedValue("wrong type", f'an image is {problem}: write {{"path": …}}, or the path alone')
    if isinstance(value, str):
        value = _bytes_of_base64(value)
    if isinstance(value, Mapping):
        path = value.get("path")
        content = value.get("bytes")
        content = _bytes_of_base64(content) if isinstance(content, str) else content  # JSON holds no bytes
        stored = {"bytes": (content or None) if path else content, "path": path}
    elif isinstance(value, bytes):
        stored["bytes"] = value
    elif isinstance(value, str):
        stored["path"] = value
    if isinstance(stored["bytes"], bytes):
        where = f"the image {stored['path']!r}" if stored["path"] else f"an image of {len(stored['bytes'])} bytes"
    elif isinstance(stored["path"], str):
        stored["path"] = where = str(existing_file(stored["path"], image_root))
    else:
        raise wrong_type(value, 'a path, the bytes of an image file, or {"bytes": …, "path": …}')
    try:
        image = decode(stored["path"] if stored["bytes"] is None else stored["bytes"])
        repaired = repaired_image(image)
    except SeveralFrames as error:
        raise RefusedValue("several frames", f"{where}: {error}") from error
    except DECODING_ERRORS as error:
        fix = "shrink it" if isinstance(error, PIL.Image.DecompressionBombError) else "save it again"
        raise RefusedValue("unreadable image", f"{where} cannot be decoded ({error}); {fix}") from error
    if problem := shape_problem(image):
        raise RefusedValue("image too long", f"{where} {problem}: crop it")
    return stored if repaired is None else stored_image(repaired)


def _bytes_of_base64(text: str) -> str | bytes:
    """The bytes of an image in base64 or a data URL; any other text as it is."""
    try:
        return decoded_base64(text) or text
    except ValueError as error:
        raise RefusedValue("unreadable image", f"the base64 {show(text)} cannot be decoded ({error})") from error


def local_path(path: str, image_root: Path) -> Path:
    """Where a path or a file:// URL of a row lies; both may be relative to `image_root`."""
    plain = image_root / path.removeprefix(_FILE_URL)
    if path.startswith(_FILE_URL) and "%" in path and not os.path.isfile(plain):
        return image_root / unquote(path.removeprefix(_FILE_URL))
    return plain


def existing_file(path: str, image_root: Path, kind: str = "image") -> Path:
    """The file of a path or a file:// URL from `image_root`; `kind` is what it should hold."""
    if re.match(r"(https?|s3|hf|gs)://", path):
        raise RefusedValue(f"{kind} is a link", f"{path!r} is not on this machine; download the {kind}s first")
    if path.startswith("data:") or len(path) > 1024 or max(map(len, path.split("/"))) > _MAX_FILE_NAME:
        raise RefusedValue(
            f"{kind} is base64",
            f"expected a path and got {show(path)}; save it as a file and give its path, or give its bytes",
        )
    file = local_path(path, image_root).absolute()
    if not os.path.isfile(file):  # `Path.is_file` raises where a name is too long for the file system
        is_absolute = os.path.isabs(path.removeprefix(_FILE_URL))
        relative = "or give the folder that relative paths start from (--image-root, or image_root=…)"
        rest = "which is absolute, so that image_root does not change it" if is_absolute else relative
        raise RefusedValue(f"missing {kind} file", f"{str(file)!r} does not exist; fix the path, {rest}")
    return file


def stored_image(image: PIL.Image.Image) -> dict[str, Any]:
    """Encode an image as `datasets` stores it, losslessly; `datasets` itself encodes each twice and takes longer."""
    return {"bytes": image_file(image, "PNG", compress_level=1), "path": None}  # a third of the usual level's time


def wrong_type(value: Any, expected: str) -> RefusedValue:
    return RefusedValue("wrong type", f"got {show(value)} ({type(value).__name__}); expected {expected}")


def show(value: Any) -> str:
    """A short repr, as values may be whole images."""
    text = repr(value[:60] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 80 else text[:77] + "…"
