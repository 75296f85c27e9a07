"""Copy descriptions of arguments from a dataclass's docstring to `--help`."""

from __future__ import annotations

import argparse
import inspect
import re
from copy import copy
from dataclasses import fields
from textwrap import shorten
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Class = TypeVar("_Class", bound="type[DataclassInstance]")
_SHOWN_CHARACTERS = 100  # of a default, as a whole prompt would hide the options around it


class HelpFormatter(argparse.HelpFormatter):
    """Formatter that shows an option's default, if it has one, and the beginning of a long one."""

    def add_argument(self, action: argparse.Action) -> None:
        is_default = all(action.default is not nothing for nothing in (None, False, argparse.SUPPRESS))  # 0 is one
        if action.option_strings and action.help and is_default:
            action = copy(action)
            action.help = f"{action.help} (default: %(default)s)"
            if isinstance(action.default, str):
                action.default = shorten(action.default, _SHOWN_CHARACTERS, placeholder=" …")
        super().add_argument(action)


def documented(cls: _Class) -> _Class:
    """Fill in the help of a dataclass's fields from its docstring; `HfArgumentParser` and `TrlParser` show it.

    Stands above `@dataclass`. The docstring's section "Attributes:" has an entry for every field of the class itself,
    as `name: text`, or `name, other: text` for several. An inherited field keeps its help, unless it has an entry too.

    Raises:
        ValueError: a field of the class has no entry, or an entry has no field.
    """
    texts = read_entries(cls.__doc__ or "")
    known = [field.name for field in fields(cls)]
    missing = [name for name in known if name in inspect.get_annotations(cls) and not texts.get(name)]
    unknown = [name for name in texts if name not in known]
    faults = {"has no entry for": missing, "describes what is no field": unknown}
    if problems := " and ".join(f"{fault}: {', '.join(names)}" for fault, names in faults.items() if names):
        raise ValueError(
            f"{cls.__name__}: the section 'Attributes:' of its docstring {problems}. Fix: write 'name: text' for each "
            "field that the class declares, and indent continued lines by four spaces more."
        )
    for name, text in texts.items():
        field = copy(cls.__dataclass_fields__[name])  # an inherited one stays as it is in its own class
        field.metadata = MappingProxyType({**field.metadata, "help": text.replace("%", "%%")})  # argparse formats it
        cls.__dataclass_fields__[name] = field
    return cls


def read_entries(docstring: str, section: str = "Attributes") -> dict[str, str]:
    """Parse a docstring's section into name → text; it ends at the next line that is not indented."""
    section = inspect.cleandoc(docstring).partition(f"\n{section}:\n")[2]
    indented = re.split(r"^(?=\S)", section, maxsplit=1, flags=re.MULTILINE)[0]
    entries = [entry.partition(":") for entry in re.split(r"^ {4}(?=\S)", indented, flags=re.MULTILINE)[1:]]
    return {name.strip(): " ".join(text.split()) for names, _, text in entries for name in names.split(",")}
