"""Texts as users give them, as they are or in a file, and system prompts, which may be named too."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..data.user_text import suggestion
from ..evaluation.methods import declared

_SWITCHES = ("/think", "/no_think")  # switches of Qwen3's thinking in a system prompt
_SUFFIXES = (".txt", ".text", ".md", ".rst", ".prompt", ".jinja", ".jinja2", ".j2", ".json", ".yaml", ".yml")
_ANCHORS = ("/", "./", "../", "~/")
# One word with one of the suffixes, or of ASCII letters and with a slash: some languages write without spaces.
_PATH = re.compile(rf"\S+({'|'.join(map(re.escape, _SUFFIXES))})|[A-Za-z0-9_.~:+-]*/[A-Za-z0-9_.~:/+-]*")


def parse_optional_text(name: str, text: str | None) -> str | None:
    """Parse an optional text setting: "null" means None, as the command line knows only text.

    Raises:
        TypeError: it is no text.
        ValueError: the text is empty.
    """
    if not isinstance(text, str | None):
        raise TypeError(f"{name} is {text!r:.80} ({type(text).__name__}), expected a string, or None for none.")
    if text in ("null", "None", "none"):
        return None
    if text is not None and not str(text).strip():
        raise ValueError(f"{name} is empty, expected a string, or null for none.")
    return text


def read_optional_text(name: str, text: str | None) -> str | None:
    """The text that a setting means: itself, what the file of that name holds, or `None` for "null".

    Raises:
        TypeError: it is no string.
        ValueError: the text or the file is empty, the file cannot be read or is not UTF-8, or the text looks like the
            path of a file that does not exist.
    """
    text = parse_optional_text(name, text)
    if text is None:
        return None
    path = os.path.expanduser(text)
    if os.path.isfile(path):  # `Path.is_file` raises where a text is too long for a name
        try:
            content = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{name} {text}: {error}") from error
        if not content:
            raise ValueError(f"{name} {text}: the file is empty; give null for none")
        return content
    is_path = _PATH.fullmatch(text) or (text.startswith(_ANCHORS) and Path(text).suffix in _SUFFIXES)
    if is_path and "\n" not in text.strip() and not text.startswith(_SWITCHES):
        raise ValueError(
            f"{name} {text}: there is no such file (looked from {os.getcwd()}). Fix the path; if this is the text "
            "itself, put it into a file and give that"
        )
    return text


def read_system_prompt(option: str, value: str | None) -> str | None:
    """The system prompt that `value` means: a method's by name (`Method.system_prompts`), or as `read_optional_text`.

    Raises:
        TypeError, ValueError: as `read_optional_text`; or it is a word close to the name of a prompt.
    """
    if not isinstance(value, str):
        return read_optional_text(option, value)
    named = {name: text for method in declared() for name, text in method.system_prompts.items()}
    text = named[value] if value in named else read_optional_text(option, value)
    near = suggestion(value, named) if text == value and value.isidentifier() else ""
    if near:
        raise ValueError(f"{option} {value}: there is no system prompt of that name{near}")
    return text
