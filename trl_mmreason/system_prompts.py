"""Optional texts as users give them, and system prompts: by the name of a shipped one, in a file, or as they are."""

from __future__ import annotations

import os
from pathlib import Path

from . import methods

_SWITCHES = ("/think", "/no_think")  # of Qwen3's thinking, in a system prompt


def parse_optional_text(name: str, text: str | None) -> str | None:
    """Parse an optional text setting: "null" means None, as the command line knows only text.

    Raises:
        ValueError: the text is empty.
    """
    if text in ("null", "None", "none"):
        return None
    if text is not None and not str(text).strip():
        raise ValueError(f"{name} is empty, expected a string, or null for none.")
    return text


def read_system_prompt(option: str, value: str | None) -> str | None:
    """The system prompt that `value` means; `None` for "null".

    Args:
        option: what the user calls it, for error messages.
        value: name of a method's prompt (`Method.system_prompts`), a file, or the text itself.

    Raises:
        ValueError: the text or the file is empty, or the file does not exist or is not UTF-8.
        OSError: the file cannot be read.
    """
    value = parse_optional_text(option, value)
    if value is None:
        return None
    named = methods.system_prompt_named(value)
    if named is not None:
        return named
    path = os.path.expanduser(value)
    if os.path.isfile(path):
        text = Path(path).read_text(encoding="utf-8").strip()
        if not text:
            raise ValueError(f"{option} {value}: the file is empty; give null for none")
        return text
    if value.startswith(("/", "./", "../", "~")) and not value.startswith(_SWITCHES):
        raise ValueError(f"{option} {value}: there is no such file")
    return value
