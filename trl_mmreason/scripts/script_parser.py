"""Command-line parser of the example scripts, with help by section and one-line errors."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import sys
from argparse import SUPPRESS, Action, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import yaml
from transformers import TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from trl import ModelConfig, TrlParser

from ..compat.packages import DEEPSPEED, refuse_missing_packages
from ..data.user_text import parse_unique, suggestion
from ..training.config_values import refuse_impossible
from ..training.documented import HelpFormatter
from ..training.resuming import resolve_checkpoint
from .recipes import config_file, configs, read_config
from .refusals import WrongArgument
from .sections import StagedArguments, setting_faults, values_of, without_gpu

_LIBRARIES = ("trl", "transformers", "builtins")
_FIRST = ("columns", "image_root", "max_steps", "log_completions", "resume_from_checkpoint", "overwrite_output_dir")
"""What `--help` shows beside what the recipes set."""
_NEED = {
    "use_peft": (
        *("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_parameters"),
        *("lora_modules_to_save", "use_rslora", "use_dora"),
    ),
    "load_in_4bit": ("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage"),
}
"""Setting of `ModelConfig` → those that change nothing without it."""
_WITHOUT = {
    "use_peft": "is of an adapter, and without use_peft all weights are trained",
    "load_in_4bit": "is of weights in 4 bits, and load_in_4bit is off",
}
_NO_DROPOUT = 0.0


class _Formatter(HelpFormatter, RawDescriptionHelpFormatter):
    """Formatter that shows defaults, and the script's docstring unchanged."""


class _HelpAll(Action):
    """Shows every argument, where `--help` shows those that matter first."""

    def __call__(self, parser: ArgumentParser, *_: Any) -> None:
        sys.stdout.write(ArgumentParser.format_help(parser))
        parser.exit()


class ScriptParser(TrlParser):
    """`TrlParser` for a method's example script.

    `--help` shows the script's docstring and the arguments that the method's `your_model.yaml` sets, in its order;
    `--help-all` those of each class of ours, the method's before the shared ones, and then what is inherited from TRL
    and transformers. `--config` takes the name of a shipped recipe, too.

    Args:
        dataclass_types: as for `TrlParser`; the method's own configuration after the data's.

    Attributes:
        config: the configuration file, as the user wrote it, of the last arguments that were parsed; "" without one.
    """

    config = ""

    def __init__(self, dataclass_types: Sequence[type]) -> None:
        declaring = [base for kind in reversed(dataclass_types) for base in kind.__mro__]
        self._owner: dict[str, type] = {}
        for base in declaring:
            for name in inspect.get_annotations(base):
                self._owner.setdefault(name, base)
        self._own = [base for base in declaring if base.__module__.partition(".")[0] not in _LIBRARIES]
        self._groups: dict[type | None, Any] = {}
        self._takes_sections = any(issubclass(kind, StagedArguments) for kind in dataclass_types)
        super().__init__(
            dataclass_types,
            prog=Path(sys.argv[0]).name,
            usage="%(prog)s [--config FILE] [--NAME VALUE …]",
            description=sys.modules["__main__"].__doc__,
            formatter_class=_Formatter,
        )
        if ModelConfig in dataclass_types:  # as the recipes have it, and not TRL's 0.05: dropout would part the trained
            self.set_defaults(lora_dropout=_NO_DROPOUT)  # policy from the one that sampled
        self._recipes = recipes = configs(self.prog.split()[-1].removesuffix(".py"))
        if recipes:
            self.epilog = f"example: {self.prog} --config {recipes[0]} --seed 1\nrecipes: {', '.join(recipes)}"
            self.add_argument(
                "--help-all", action=_HelpAll, nargs=0, default=SUPPRESS, help="show every argument and exit"
            )

    def format_help(self) -> str:
        """Format the help of the arguments that one sets first."""
        if not self._recipes:
            return super().format_help()
        named = [name for name in self._recipes if name.endswith("/your_model.yaml")] or self._recipes
        names = dict.fromkeys([*(key for name in named for key in read_config(name)), *_FIRST])
        actions = {action.dest: action for action in reversed(self._actions)}  # not those of `--no_…`
        shown = [actions[name] for name in (*names, "help", "help_all") if name in actions]
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, shown, [])
        formatter.add_text(self.description)
        formatter.start_section(f"arguments that {named[0]} sets, and a few more; --help-all shows {len(actions)}")
        formatter.add_arguments(shown)
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def add_argument(self, *names: str, **settings: Any) -> Action:
        """Add an argument to the section of the class that declares it."""
        owner = self._owner.get(settings.get("dest") or names[0].removeprefix("--"))
        if owner is None:  # --help
            return super().add_argument(*names, **settings)
        if not self._groups:
            for base in self._own:
                self._groups[base] = self.add_argument_group(base.__name__, (base.__doc__ or "").partition("\n")[0])
            self._groups[None] = self.add_argument_group("inherited from TRL and transformers")
        action: Action = self._groups.get(owner, self._groups[None]).add_argument(*names, **settings)
        return action

    def parse_args_and_config(self, args: Sequence[str] | None = None) -> Any:
        """Parse as `TrlParser` does, sections included; end the script with a one-line error."""
        args = list(sys.argv[1:] if args is None else args)
        args = [part for one in args for part in (one.split("=", 1) if one.startswith("--config=") else [one])]
        try:
            if args and args[0].endswith((".yaml", ".yml")):
                raise ValueError(f"got {args[0]!r} without an option; did you mean --config {args[0]}?")
            for option, value in pairwise(args):
                _refuse_repeated_names(option, value)
            self._options = {one[2:].partition("=")[0].replace("-", "_") for one in args if one.startswith("--")}
            self._said = self._options
            if "--config" in args[:-1]:
                place = args.index("--config") + 1
                self.config = args[place]
                config = read_config(self.config)
                self._said = self._options | config.keys()
                self._refuse_wrong_keys(config)
                args[place] = str(config_file(self.config))
            *parsed, options = super().parse_args_and_config(args, return_remaining_strings=True)
            for part in parsed:
                _expand_home(part)
                self._check(part, options)
            return tuple(parsed)
        except ImportError as error:  # raised by transformers, which reads DeepSpeed's file at once
            if "deepspeed" not in str(error):
                raise
            # It keeps that file's half-made configuration, which every model that is loaded afterwards would ask:
            # https://github.com/huggingface/transformers/issues/39081
            unset_hf_deepspeed_config()
            self.error(f"{DEEPSPEED}. Fix: {DEEPSPEED.fix()}")
        except (ValueError, OSError, yaml.YAMLError) as error:
            self.error(without_gpu(error) or str(error))

    def _check(self, part: Any, options: Sequence[str]) -> None:
        """Refuse what one of the dataclasses has that would end the run later; apply `options` to its sections."""
        if isinstance(part, StagedArguments):
            self.override_sections(part, options)
            self.refuse_wrong_sections(part, options)
        refuse_missing_packages(vars(part))
        for action in self._actions:  # argparse checks the choices of the command line only
            value = getattr(part, action.dest, None)
            if action.choices and isinstance(value, str) and value not in action.choices:
                raise ValueError(f"{action.dest}: {value!r}, expected one of {', '.join(map(str, action.choices))}")
        output_dir = getattr(part, "output_dir", None)  # trainers would notice only after loading the model
        if output_dir is not None:
            folder = Path(output_dir).absolute()
            there = next(path for path in (folder, *folder.parents) if path.exists())
            if not there.is_dir() or not os.access(there, os.W_OK):
                raise ValueError(f"output_dir: {output_dir}: {there} is no folder that may be written to")
        if isinstance(part, TrainingArguments):
            refuse_impossible(type(part).__name__, vars(part))
            resolve_checkpoint(part.resume_from_checkpoint, part.output_dir)  # which is read after a cold start
        if isinstance(part, ModelConfig):
            self._refuse_unused(part)

    def _refuse_unused(self, part: ModelConfig) -> None:
        """Refuse settings of adapters or of 4 bits where these are off; a recipe may hold both if that is said."""
        for needed, names in _NEED.items():
            for name in () if getattr(part, needed) else names:
                usual = _NO_DROPOUT if name == "lora_dropout" else getattr(ModelConfig, name)
                is_of_recipe = needed in self._said and name not in self._options
                if (value := getattr(part, name)) != usual and not is_of_recipe:
                    raise ValueError(f"{name}={value!r} {_WITHOUT[needed]}. Fix: --{needed} true, or leave {name} out")

    def set_defaults_with_config(self, **config: Any) -> list[str]:
        """Set defaults as `TrlParser` does, which returns the options of sections with their values as `str` has them.

        Values are JSON here, so that null stays null and a string of digits a string.
        """
        known = {action.dest for action in self._actions}
        values = {
            key: value if key in known else json.dumps(value, ensure_ascii=False, default=str)
            for key, value in config.items()
        }
        return super().set_defaults_with_config(**values)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; refuse unknown options before configurations are made, which refuse other things."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown and not self._takes_sections:
            raise self._unknown(unknown[0].partition("=")[0])
        return known, unknown

    def override_sections(self, part: StagedArguments, options: Sequence[str]) -> None:
        """Apply options of sections, such as `--dpo.rounds 1`."""
        for option, value in zip(options[::2], [*options[1::2], None], strict=False):
            section, dot, name = option.removeprefix("--").partition(".")
            is_option = option.startswith("--") and dot and value is not None
            if not is_option or not isinstance(getattr(part, section, 0), dict):
                raise self._unknown(option, "; expected a field, or --SECTION.NAME VALUE")
            getattr(part, section)[name] = _option_value(str(value))

    def refuse_wrong_sections(self, part: StagedArguments, options: Sequence[str]) -> None:
        """Refuse unknown and impossible settings of sections before the first stage begins."""
        for section, name, fault in part.unknown_settings():
            option = f"--{section}.{name}"
            raise ValueError(f"{option if option in options else f'{self.config}: {section}'}: {fault}")
        for section in ("common", *part.SECTIONS):
            refuse_missing_packages(getattr(part, section), f"--{section}.")
        for section, kind in part.configs().items():
            settings = {**part.common, **getattr(part, section)}
            refuse_impossible(section, settings, schedule=kind.lr_scheduler_type)

    def _refuse_wrong_keys(self, config: Mapping[str, Any]) -> None:
        """Refuse a configuration file's keys that are no arguments, and values of another type; argparse reads strings.

        Keys such as `dpo.rounds` are options of sections.
        """
        types = {name: hint for kind in self.dataclass_types for name, hint in get_type_hints(kind).items()}
        known = {"env": Any, **{action.dest: types.get(action.dest, Any) for action in self._actions}}
        texts = {key for key, value in config.items() if key in known and isinstance(value, str)}
        texts |= {key for key in config if self._takes_sections and "." in str(key)}
        for _, fault in setting_faults({key: value for key, value in config.items() if key not in texts}, known):
            raise ValueError(f"{self.config}: {fault}")

    def _unknown(self, option: str, otherwise: str = "") -> ValueError:
        near = suggestion(option, [f"--{action.dest}" for action in self._actions])
        return ValueError(f"there is no `{option}`{near or otherwise}")

    def error(self, message: str) -> NoReturn:
        """End the script without printing the usage of two hundred arguments."""
        if "arguments are required" in message:
            message += "; or give --config FILE" + (f", such as {self._recipes[0]}" if self._recipes else "")
        sys.stderr.write(f"{self.prog}: error: {message}\n")
        sys.exit(2)


def _expand_home(part: Any) -> None:
    """Replace a `~` that a path begins with: no shell has done so in a file, and the Hub would be asked for a model."""
    for name, value in vars(part).items():
        if isinstance(value, str) and value.startswith("~/"):
            setattr(part, name, os.path.expanduser(value))


def _option_value(text: str) -> Any:
    """The value of a section's option: what YAML reads in a number, a word, a string in quotes, a list or a mapping.

    Other text stays as it is, so that a colon or # in it means nothing, and a quoted word at its beginning is one.
    """
    value: Any = text
    if re.fullmatch(r"[\[{'\"].*|[+-]?\.?\w[\w.+-]*|~", text.strip(), re.DOTALL):
        with suppress(yaml.YAMLError, ValueError):  # the latter of what begins as a date, such as 2026-02-30
            value = values_of(yaml.safe_load(text.strip()))
    return text if isinstance(value, date) else value  # no setting is one


def _refuse_repeated_names(option: str, value: str) -> None:
    """Refuse JSON in which a name comes twice; transformers, which parses most of it, would take the last."""
    try:
        parse_unique(value)
    except json.JSONDecodeError:  # no JSON, or left to those who parse it
        return
    except ValueError as error:
        raise ValueError(f"{option} {value}: {error}") from error


def named_policy(model_args: ModelConfig) -> str:
    """The policy's name, which is optional in TRL and required here."""
    if model_args.model_name_or_path is None:
        raise WrongArgument("Name a policy: --model_name_or_path with a Hub id, a path or miniature/<family>/<size>.")
    return model_args.model_name_or_path


def command_line() -> str:
    """The running script's command line, for reports."""
    return " ".join([sys.argv[0], shlex.join(sys.argv[1:])]).strip()
