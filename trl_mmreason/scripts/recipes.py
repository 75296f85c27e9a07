"""Locate and load example scripts, and locate configurations and constraints, in a checkout or the installed wheel."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from ..data.user_text import parse_unique_yaml, suggestion

_IN_WHEEL = Path(__file__).parents[1] / "_recipes"

ROOT = _IN_WHEEL if _IN_WHEEL.is_dir() else Path(__file__).parents[2]
"""Folder of `examples/`, `configs/` and `constraints*.txt`."""


def load_script(method: str, name: str) -> ModuleType:
    """Execute the method's example script as the module `name`; as "__main__" it trains."""
    return load_module(name, ROOT / f"examples/{method}.py")


def load_module(name: str, path: Path) -> ModuleType:
    """Execute a Python file as the module `name`."""
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None  # the file is a Python file
    sys.modules[name] = module = module_from_spec(spec)  # dataclasses and pickle look their module up there
    spec.loader.exec_module(module)
    return module


def configs(method: str) -> list[str]:
    """Names of a method's shipped configurations, for `config_file`."""
    return [f"{method}/{path.name}" for path in sorted((ROOT / "configs" / method).glob("*.yaml"))]


def config_file(name: str) -> Path:
    """Find a configuration: the user's file, or a shipped one by name, such as `adapo/miniature.yaml`."""
    for path in (Path(name).expanduser(), ROOT / "configs" / name):
        if path.is_file():
            return path
    folder = name.removesuffix(Path(name).name)  # the folder with its slash
    places = (Path(folder).expanduser(), ROOT / "configs" / folder)
    near = suggestion(Path(name).name, {file.name for place in places for file in place.glob("*.y*ml")}, folder)
    shipped = ", ".join(configs(name.partition("/")[0])) or f"those in {ROOT / 'configs'}"
    raise FileNotFoundError(
        f"--config {name}: there is no such file, and no recipe of that name{near or f'; there are {shipped}'}"
    )


def read_config(name: str) -> dict[str, Any]:
    """Read a configuration, found as by `config_file`; refuse one in which a name comes twice, as YAML takes the last.

    Raises:
        FileNotFoundError, ValueError: it does not exist; it is not YAML, or no lines of the form `name: value`.
    """
    try:
        config = parse_unique_yaml(config_file(name).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{name} is not a configuration: expected lines of the form `name: value`")
    return config
