"""Run a benchmark: `python -m benchmarks NAME [options]`.

A benchmark is a function of keyword arguments, which are its options; its docstring is its help. It prints what it
measured and returns a `Result`. The exit code is 1 if the result names a failure, such as a ratio beyond its limit.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from trl_mmreason.cli.commands.parsers import count
from trl_mmreason.training.documented import HelpFormatter, read_entries

from .common import Result

BENCHMARKS = {
    "training": ("padding", "images", "off_policy"),
    "sampling": ("rollouts", "evaluation"),
    "overlap": ("overlap",),
    "two_turns": ("two_turns", "ceiling"),
    "models": ("patches", "hooks", "process_reward"),
    "grading": ("grading", "labelled"),
    "examples": ("seeds", "precision", "pretrained", "reflections"),
    "scaling": ("scaling",),
    "gpu_check": ("gpu_check",),
    "rollout_scheduler": ("micro_batches", "reference_pass", "oversampling", "curves", "refill"),
    "ahead": ("ahead",),
    "weight_sync": ("weight_sync", "weight_sync_served", "adapter_sync"),
    "on_paper": ("on_paper", "recipe_steps"),
    "rows": ("rows",),
    "memory": ("memory", "what_fits"),
    "published_memory": ("published_memory",),
}
"""Module → the benchmarks in it."""


def add_option(parser: argparse.ArgumentParser, parameter: inspect.Parameter, hint: Any, text: str) -> None:
    """Add the option of a benchmark's parameter."""
    kind = get_args(hint)[0] if type(None) in get_args(hint) else hint  # of `int | None` int
    if several := get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    options: dict[str, Any] = {"help": text.replace("%", "%%"), "nargs": "+" if several else None}
    if get_origin(kind) is Literal:
        options["choices"] = get_args(kind)
    else:
        options["type"] = count if parameter.name == "rounds" else kind
    if parameter.default is inspect.Parameter.empty:
        options["required"] = True
    else:
        options["default"] = parameter.default
    parser.add_argument(f"--{parameter.name}", **options)


def parse(name: str, benchmark: Callable[..., Result], argv: Sequence[str]) -> argparse.Namespace:
    """Parse the options of a benchmark."""
    about = inspect.getdoc(benchmark) or ""

    class Formatter(HelpFormatter, argparse.RawDescriptionHelpFormatter):
        """Shows defaults, and the description as it is."""

    parser = argparse.ArgumentParser(
        f"python -m benchmarks {name}", description=about.partition("\n\nArgs:")[0], formatter_class=Formatter
    )
    texts, hints = read_entries(about, "Args"), get_type_hints(benchmark)
    texts.setdefault("rounds", "rounds of which the medians are taken")
    for parameter in inspect.signature(benchmark).parameters.values():
        add_option(parser, parameter, hints[parameter.name], texts[parameter.name])
    parser.add_argument("--json", type=Path, help="file for the arguments and the numbers of every round")
    arguments = parser.parse_args(argv)
    if arguments.json and (arguments.json.is_dir() or not arguments.json.parent.is_dir()):
        parser.error(f"--json {arguments.json}: expected a file in a folder that exists")
    return arguments


def main(argv: Sequence[str]) -> None:
    modules = {name: module for module, names in BENCHMARKS.items() for name in names}
    argv = [argv[0].replace("-", "_"), *argv[1:]] if argv else []
    if not argv or argv[0] not in modules:
        sys.exit(f"usage: python -m benchmarks NAME [options]\nNAME is one of {', '.join(modules)}.")
    name, *options = argv
    benchmark = getattr(import_module(f"benchmarks.{modules[name]}"), name)
    arguments = vars(parse(name, benchmark, options))
    file = arguments.pop("json")
    result = benchmark(**arguments)
    if file:
        file.write_text(json.dumps({"arguments": arguments, **result.numbers}, indent=2, default=str))
    if result.failures:
        sys.exit("\n".join(result.failures))


if __name__ == "__main__":
    main(sys.argv[1:])
