"""Locate and load example scripts, and locate configurations and constraints, in a checkout or the installed wheel."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from .suggestions import suggestion

_IN_WHEEL = Path(__file__).with_name("_recipes")

ROOT = _IN_WHEEL if _IN_WHEEL.is_dir() else Path(__file__).parents[1]
"""Folder of `examples/`, `configs/` and `constraints*.txt`."""


def script(method: str) -> Path:
    """Path of the method's example script."""
    return ROOT / "examples" / f"{method}.py"


def load_script(method: str, name: str) -> ModuleType:
    """Execute the method's example script as the module `name`; as "__main__" it trains."""
    spec = spec_from_file_location(name, script(method))
    assert spec is not None
    assert spec.loader is not None  # it is a Python file
    sys.modules[name] = module = module_from_spec(spec)  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def configs(method: str) -> list[str]:
    """Names of a method's shipped configurations, for `config_file`."""
    return [f"{method}/{path.name}" for path in sorted((ROOT / "configs" / method).glob("*.yaml"))]


def config_file(name: str) -> Path:
    """Find a configuration: the user's file, or a shipped one by name, such as `adapo/miniature.yaml`.

    Raises:
        FileNotFoundError: there is neither.
    """
    for path in (Path(name).expanduser(), ROOT / "configs" / name):
        if path.is_file():
            return path
    folder = name.removesuffix(Path(name).name)  # with its slash
    places = (Path(folder).expanduser(), ROOT / "configs" / folder)
    near = suggestion(Path(name).name, {file.name for place in places for file in place.glob("*.y*ml")}, folder)
    shipped = ", ".join(configs(name.partition("/")[0])) or f"those in {ROOT / 'configs'}"
    raise FileNotFoundError(
        f"--config {name}: there is no such file, and no recipe of that name{near or f'; there are {shipped}'}"
    )
