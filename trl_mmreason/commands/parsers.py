"""Parsers of the values of options, for `type=` of `add_argument`."""

from __future__ import annotations

import argparse
from typing import Any

from ..unique_json import parse_unique


def count(text: str) -> int:
    """Parse a whole number, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer ≥ 1, got {text!r}")
    return int(text)


def text_or_file(text: str) -> str:
    """Parse a text, which may be in a file of that name; "null" and an empty one stay as they are."""
    from ..system_prompts import read_optional_text

    try:
        return (read_optional_text("", text) if text.strip() else text) or text
    except (ValueError, OSError) as error:
        raise argparse.ArgumentTypeError(str(error).strip()) from error


def address(text: str) -> str:
    """Parse the address of a server."""
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"expected an address such as http://127.0.0.1:8000/v1, got {text!r}")
    return text


def port(text: str) -> int:
    """Parse the number of a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return value


def temperature(text: str) -> float:
    """Parse a number, at least 0."""
    value = _number(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number ≥ 0, got {text!r}")
    return value


def top_p(text: str) -> float:
    """Parse a number above 0, at most 1."""
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and at most 1, got {text!r}")
    return value


def _number(text: str) -> float:
    """Parse a number; any other string becomes NaN, which lies in no range."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def share_of_machines(text: str) -> tuple[int, int]:
    """Parse K/M: number and count of machines."""
    first, slash, machines = text.partition("/")
    if not (slash and first.isdecimal() and machines.isdecimal() and int(first) < int(machines)):
        raise argparse.ArgumentTypeError(f"expected K/M with K from 0 to M - 1, as in 0/2 and 1/2; got {text!r}")
    return int(first), int(machines)


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = parse_unique(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r} ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value
