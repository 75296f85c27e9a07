"""Reward functions of a user's own, named as `file.py:function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..data.user_text import suggestion
from .recipes import load_module
from .refusals import WrongArgument


def load_rewards(names: Sequence[str]) -> list[Callable[..., Any]]:
    """Load reward functions; each file is executed once.

    Args:
        names: `file.py:function` each; relative paths start at the working folder.

    Raises:
        WrongArgument: a file or function is not there, is none, or two have one name, under which both would be logged.
    """
    modules: dict[Path, ModuleType] = {}
    functions = [_function(name, modules) for name in names]
    called = [function.__name__ for function in functions]
    if repeated := next((name for name in called if called.count(name) > 1), None):
        raise WrongArgument(f"reward_funcs: two functions are called {repeated}; give them different names")
    return functions


def _function(name: str, modules: dict[Path, ModuleType]) -> Callable[..., Any]:
    file, colon, wanted = name.rpartition(":")
    path = Path(file).expanduser()
    if not colon or path.suffix != ".py" or not wanted.isidentifier():
        raise WrongArgument(f"reward_funcs: got {name!r}, expected file.py:function, such as my_rewards.py:short")
    if not path.is_file():
        raise WrongArgument(f"reward_funcs: there is no file {file} (looked from {Path.cwd()})")
    path = path.resolve()
    module = modules[path] = modules.get(path) or load_module(f"reward_file_{path.stem}", path)
    function = getattr(module, wanted, None)
    if function is None:
        there = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        near = suggestion(wanted, there) or f"; it has {', '.join(there) or 'none'}"
        raise WrongArgument(f"reward_funcs: {file} has no function {wanted}{near}")
    if not callable(function) or not hasattr(function, "__name__"):
        raise WrongArgument(f"reward_funcs: {wanted} in {file} is {function!r:.80}, expected a function")
    return function
