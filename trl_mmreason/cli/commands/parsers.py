"""Parsers of the values of options, for `type=` of `add_argument`."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from ...data.user_text import parse_unique
from ...scripts.system_prompts import read_optional_text


def _number(kind: type, expected: str, holds: Callable[[float], bool]) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan  # NaN lies in no range
        if not holds(value):
            raise ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return number


count = _number(int, "an integer ≥ 1", lambda value: value >= 1)
share = _number(float, "a number from 0 to 1", lambda value: 0 <= value <= 1)
temperature = _number(float, "a number ≥ 0", lambda value: 0 <= value < math.inf)
top_p = _number(float, "a number above 0 and at most 1", lambda value: 0 < value <= 1)


def text_or_file(text: str) -> str:
    """Parse a text, which may be in a file of that name; "null" and an empty one stay as they are."""
    try:
        return (read_optional_text("", text) if text.strip() else text) or text
    except ValueError as error:
        raise ArgumentTypeError(str(error).strip()) from error


def address(text: str) -> str:
    """Parse the address of a server."""
    if not text.startswith(("http://", "https://")):
        raise ArgumentTypeError(f"expected an address such as http://127.0.0.1:8000/v1, got {text!r}")
    return text


def share_of_machines(text: str) -> tuple[int, int]:
    """Parse K/M: number and count of machines."""
    first, slash, machines = text.partition("/")
    if not (slash and first.isdecimal() and machines.isdecimal() and int(first) < int(machines)):
        raise ArgumentTypeError(f"expected K/M with K from 0 to M - 1, as in 0/2 and 1/2; got {text!r}")
    return int(first), int(machines)


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = parse_unique(text)
    except ValueError as error:
        raise ArgumentTypeError(f"expected a JSON object, got {text!r} ({error})") from error
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value


_share = _number(float, "strict, lenient or a share between 0 and 1, such as 0.05", lambda value: 0 < value < 1)


def tolerance(text: str) -> str | float:
    """Parse `strict`, `lenient` or a share."""
    return text if text in ("strict", "lenient") else _share(text)
