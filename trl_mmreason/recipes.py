"""Example scripts, their configurations and tested versions: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_IN_WHEEL = Path(__file__).with_name("_recipes")

ROOT = _IN_WHEEL if _IN_WHEEL.is_dir() else Path(__file__).parents[1]
"""Folder of `examples/`, `configs/` and `constraints*.txt`."""


def script(method: str) -> Path:
    """The script that trains with this method."""
    return ROOT / "examples" / f"{method}.py"


def configs(method: str) -> list[str]:
    """The names of a method's shipped configurations, as `config_file` takes them."""
    return [f"{method}/{path.name}" for path in sorted((ROOT / "configs" / method).glob("*.yaml"))]


def config_file(name: str) -> Path:
    """Find a configuration: a file of one's own, or a shipped one by its name, as in `adapo/miniature.yaml`.

    Raises:
        FileNotFoundError: there is neither.
    """
    for path in (Path(name).expanduser(), ROOT / "configs" / name):
        if path.is_file():
            return path
    method = name.partition("/")[0]
    shipped = ", ".join(configs(method)) or f"those in {ROOT / 'configs'}"
    raise FileNotFoundError(f"--config {name}: there is no such file, and no recipe of that name; there are {shipped}")
