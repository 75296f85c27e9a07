"""Check versions, GPUs, memory and a model's chat template.

Check the installed versions, the GPUs and the private methods that are relied on; for a configuration or a model, also
its requirements, the memory of training, and whether its chat template and its processor support two turns. Prints one
line per finding. Exit status 1 if something will not work.

example: mmreason doctor --config adapo/your_model.yaml --model Qwen/Qwen2.5-VL-3B-Instruct
"""

from __future__ import annotations

import platform
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from ... import __version__
from ...scripts.refusals import WrongArgument
from .train import SCRIPTS


def add(command: ArgumentParser) -> None:
    add = command.add_argument
    add("--config", metavar="FILE", help="configuration of a method, or the name of a shipped recipe")
    method = "method of --config; by default that of the file's folder, or the first that takes the file"
    add("--method", choices=tuple(SCRIPTS), help=method)
    add("--model", metavar="PATH", help="path or Hub id of a model; by default that of --config")
    add(
        "--weights", action="store_true", help="load the model's weights, and score a row with an image and one without"
    )


def run(arguments: Namespace) -> None:
    print(f"ok    trl-mmreason {__version__}, Python {platform.python_version()}")  # noqa: T201 - as below
    if arguments.method and not arguments.config:
        raise WrongArgument("--method has no effect without --config, whose method it is")
    methods, failed = (arguments.method,) if arguments.method else tuple(SCRIPTS), 0
    for finding in examine(arguments.config, arguments.model, methods, weights=arguments.weights):
        print(finding, flush=True)  # noqa: T201 - what the command is asked for
        failed += finding.level == "FAIL"
    if failed:
        raise WrongArgument(f"{failed} of these will not work")


def examine(config: str | None, model: str | None, methods: Sequence[str], *, weights: bool = False) -> Iterator[Any]:
    """Run all checks, and yield their findings.

    Args:
        config: a configuration file, or the name of a shipped recipe.
        model: path or Hub id of a policy; that of the configuration by default.
        weights: load those of the model, and score tokens with them.
    """
    from trl import GRPOConfig

    from ...compat.trl_contract import changed_methods
    from ..doctor import Finding, machine, memory, one_line, settings
    from ..doctor.model import check_conversation, check_prompts, check_scoring, load_for_checks

    changes = changed_methods()
    installed = {package: machine.installed_version(package) for package in machine.PACKAGES}
    yield from machine.check_packages(installed, changes)
    yield from machine.check_devices()
    yield from machine.check_contract(changes)
    stages: dict[str, dict[str, Any]] = {}
    asking: set[str] = set()  # stages that ask questions
    if config is not None:
        try:
            settings.read_settings(config)  # before a method is looked for, which decides on defaults
        except (OSError, ValueError) as error:
            yield Finding("FAIL", one_line(error))
            return
        parser, findings = settings.check_method(config, methods)
        yield from findings
        if parser is None:
            return
        common, stages = settings.read_settings(config, parser.configs)
        model = model or common["model_name_or_path"]
        if model is None and not parser.reads:
            yield from settings.check_policy(model)
        yield from settings.check_files(common, parser.reads)
        yield from settings.of_all_stages(settings.check_settings, stages)
        stages = {where: each for where, each in stages.items() if settings.can_be_estimated(each)}
        asking = {where for where in stages if issubclass(parser.configs.get(where, object), GRPOConfig)}
        for where, each in stages.items():
            if where in asking:
                yield from settings.check_questions(each, where)
                yield from settings.check_rows(each, where)
        stages |= {where: {**stages[where], "use_peft": False} for where in parser.whole if where in stages}
    if model is None:
        return
    try:
        policy, processor, end_ids = load_for_checks(model, weights=weights)
    except (OSError, ValueError, ImportError) as error:
        text = one_line(error)
        yield Finding("FAIL", text if model in text else f"{model}: {text}")
        return
    yield from check_conversation(processor, end_ids)
    yield from check_scoring(policy, processor, end_ids)
    longest: dict[str, int | None] = {}
    for where, each in stages.items():
        longest[where] = (yield from check_prompts(processor, each, where)) if where in asking else None
    for where, each in stages.items():  # each with an adapter of its own
        yield from memory.check_memory(load_for_checks(model)[0], each, where, longest[where])
