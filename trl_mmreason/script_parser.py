"""Command-line parser of the example scripts, with help by section and one-line errors."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from argparse import Action, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import yaml
from trl import ModelConfig, TrlParser

from .documented import HelpFormatter
from .recipes import config_file, configs

_TRACKERS = {"trackio": 'pip install "trl-mmreason[tracking]"', "wandb": "pip install wandb"}
_LIBRARIES = ("trl", "transformers", "builtins")


class WrongArgument(ValueError):
    """An argument has an invalid value."""


class _Formatter(HelpFormatter, RawDescriptionHelpFormatter):
    """Formatter that shows defaults, and the script's docstring unchanged."""


class ScriptParser(TrlParser):
    """`TrlParser` for a method's example script.

    `--help` shows the script's docstring, the arguments of each class of ours, the method's before the shared ones, and
    then what is inherited from TRL and transformers. `--config` takes the name of a shipped recipe, too.

    Args:
        dataclass_types: as for `TrlParser`; the method's own configuration after the data's.
    """

    def __init__(self, dataclass_types: Sequence[type]) -> None:
        declaring = [base for kind in reversed(dataclass_types) for base in kind.__mro__]
        self._owner: dict[str, type] = {}
        for base in declaring:
            for name in inspect.get_annotations(base):
                self._owner.setdefault(name, base)
        self._own = [base for base in declaring if base.__module__.partition(".")[0] not in _LIBRARIES]
        self._sections: dict[type | None, Any] = {}
        super().__init__(
            dataclass_types,
            prog=Path(sys.argv[0]).name,
            usage="%(prog)s [--config FILE] [--NAME VALUE …]",
            description=sys.modules["__main__"].__doc__,
            formatter_class=_Formatter,
        )
        method = self.prog.split()[-1].removesuffix(".py")
        if recipes := configs(method):
            self.epilog = f"example: {self.prog} --config {recipes[0]} --seed 1\nrecipes: {', '.join(recipes)}"

    def add_argument(self, *names: str, **settings: Any) -> Action:
        """Add an argument to the section of the class that declares it."""
        owner = self._owner.get(settings.get("dest") or names[0].removeprefix("--"))
        if owner is None:  # --help
            return super().add_argument(*names, **settings)
        if not self._sections:
            for base in self._own:
                self._sections[base] = self.add_argument_group(base.__name__, (base.__doc__ or "").partition("\n")[0])
            self._sections[None] = self.add_argument_group("inherited from TRL and transformers")
        section = self._sections.get(owner, self._sections[None])
        action: Action = section.add_argument(*names, **settings)
        return action

    def parse_args_and_config(self, args: Sequence[str] | None = None, **settings: Any) -> Any:
        """Parse as `TrlParser` does; end the script with a one-line error."""
        args = list(sys.argv[1:] if args is None else args)
        args = [part for one in args for part in (one.split("=", 1) if one.startswith("--config=") else [one])]
        try:
            if "--config" in args[:-1]:
                place = args.index("--config") + 1
                args[place] = str(config_file(args[place]))
            parsed = super().parse_args_and_config(args, **settings)
            for part in parsed:
                refuse_missing_trackers(getattr(part, "report_to", None))
                self._refuse_other_choices(part)
                refuse_unwritable(getattr(part, "output_dir", None))
            return parsed
        except (ValueError, OSError, yaml.YAMLError) as error:
            self.error(str(error))

    def _refuse_other_choices(self, part: Any) -> None:
        """Check a configuration file's values against choices; argparse checks the command line only."""
        for action in self._actions:
            value = getattr(part, action.dest, None)
            if action.choices and isinstance(value, str) and value not in action.choices:
                raise ValueError(f"{action.dest}: {value!r}, expected one of {', '.join(map(str, action.choices))}")

    def error(self, message: str) -> NoReturn:
        """End the script without printing the usage of two hundred arguments."""
        sys.stderr.write(f"{self.prog}: error: {message}\n")
        sys.exit(2)


def named_policy(model_args: ModelConfig) -> str:
    """The policy's name, which is optional in TRL and required here."""
    if model_args.model_name_or_path is None:
        raise WrongArgument("Name a policy: --model_name_or_path with a Hub id, a path or miniature/<family>/<size>.")
    return model_args.model_name_or_path


def missing_trackers(report_to: Any) -> dict[str, str]:
    """The trackers of `report_to` that are not installed → how to install them."""
    wanted = [report_to] if isinstance(report_to, str) else report_to or []
    return {name: _TRACKERS[name] for name in wanted if name in _TRACKERS and find_spec(name) is None}


def refuse_missing_trackers(report_to: Any) -> None:
    """Refuse `report_to` before slow work; transformers does so only after loading the model."""
    for name, install in missing_trackers(report_to).items():
        raise ValueError(f"report_to: {name} is not installed. Fix: {install}, or --report_to none")


def refuse_unwritable(output_dir: str | None) -> None:
    """Refuse an unwritable output folder before slow work; trainers notice only after loading the model."""
    if output_dir is None:
        return
    folder = Path(output_dir).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(f"output_dir: {output_dir}: {there} is no folder that may be written to")


def command_line() -> str:
    """The running script's command line, for reports."""
    return " ".join([sys.argv[0], shlex.join(sys.argv[1:])]).strip()
