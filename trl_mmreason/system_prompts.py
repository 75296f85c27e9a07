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


def read_system_prompt(option: str, given: str | None) -> str | None:
    """The system prompt that `given` means; `None` for "null".

    Args:
        option: what the user calls it, for error messages.
        given: name of a method's prompt (`Method.system_prompts`), a file, or the text itself.

    Raises:
        ValueError: the text or the file is empty, or the file does not exist or is not UTF-8.
        OSError: the file cannot be read.
    """
    given = parse_optional_text(option, given)
    if given is None:
        return None
    named = methods.system_prompt_named(given)
    if named is not None:
        return named
    path = os.path.expanduser(given)
    if os.path.isfile(path):
        text = Path(path).read_text(encoding="utf-8").strip()
        if not text:
            raise ValueError(f"{option} {given}: the file is empty; give null for none")
        return text
    if given.startswith(("/", "./", "../", "~")) and not given.startswith(_SWITCHES):
        raise ValueError(f"{option} {given}: there is no such file")
    return given
