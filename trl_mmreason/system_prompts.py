"""System prompts as users give them: by the name of a shipped one, in a file, or as they are."""

from __future__ import annotations

import os
from pathlib import Path

from . import methods

_SWITCHES = ("/think", "/no_think")  # of Qwen3's thinking, in a system prompt


def read_system_prompt(option: str, given: str | None) -> str | None:
    """The system prompt that `given` means; `None` for "null".

    Args:
        option: what the user calls it, for error messages.
        given: name of a method's prompt (`Method.system_prompts`), a file, or the text itself.

    Raises:
        ValueError: the text is empty, or the file does not exist or is not UTF-8.
        OSError: the file cannot be read.
    """
    if given is None or given == "null":
        return None
    named = methods.system_prompt_named(given)
    if named is not None:
        return named
    text, path = given, os.path.expanduser(given)
    if os.path.isfile(path):
        text = Path(path).read_text(encoding="utf-8").strip()
    elif given.startswith(("/", "./", "../", "~")) and not given.startswith(_SWITCHES):
        raise ValueError(f"{option} {given}: there is no such file")
    if not text.strip():
        raise ValueError(f"{option} {given!r} is empty; give null for none")
    return text
