"""Checks of `mmreason doctor`: versions, devices, private methods relied on, a configuration, a model."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One line of the output: "ok", "note" (possibly intended) or "FAIL" (something will not work)."""

    level: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.level:4}  {self.text}" + (f" Fix: {self.fix}" if self.fix else "")


def one_line(error: Exception) -> str:
    """An error's text without line breaks."""
    return " ".join(str(error).split())
