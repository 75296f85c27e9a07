"""Checks of `mmreason doctor`: versions, devices, private methods relied on, a configuration, a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trl import GRPOConfig

from ...compat.trl_contract import changed_methods
from .estimate import check_memory
from .finding import Finding, one_line
from .machine import PACKAGES, check_contract, check_devices, check_packages, installed_version
from .method import check_method
from .model import check_conversation, check_prompts, load_for_checks
from .settings import check_files, check_questions, check_settings, check_values, of_all_stages, read_settings


def examine(config: str | None, model: str | None, methods: Sequence[str]) -> Iterator[Finding]:
    """Run all checks.

    Args:
        config: a configuration file, or the name of a shipped recipe.
        model: path or Hub id of a policy; that of the configuration by default.
        methods: names of the methods that a configuration can belong to.
    """
    changes = changed_methods()
    yield from check_packages({package: installed_version(package) for package in PACKAGES}, changes)
    yield from check_devices()
    yield from check_contract(changes)
    stages: dict[str, dict[str, Any]] = {}
    if config is not None:
        try:
            read_settings(config)  # before a method is looked for, which decides on defaults
        except (OSError, ValueError) as error:
            yield Finding("FAIL", one_line(error))
            return
        parser, findings = check_method(config, methods)
        yield from findings
        if parser is None:
            return
        common, stages = read_settings(config, parser.configs)
        model = model or common["model_name_or_path"]
        yield from check_files(common, parser.reads)
        yield from of_all_stages(check_settings, stages)
        wrong = {where: list(check_values(settings, where)) for where, settings in stages.items()}
        if all(each.level == "ok" for each in findings):  # otherwise they are named above
            yield from of_all_stages(check_values, stages)
        stages = {where: settings for where, settings in stages.items() if not wrong[where]}  # the readable ones
        for where, settings in stages.items():
            if issubclass(parser.configs.get(where, object), GRPOConfig):
                yield from check_questions(settings, where)
        stages |= {where: {**stages[where], "use_peft": False} for where in parser.whole if where in stages}
    if model is None:
        return
    try:
        _, processor, end_ids = load_for_checks(model)
    except (OSError, ValueError, ImportError) as error:
        text = one_line(error)
        yield Finding("FAIL", text if model in text else f"{model}: {text}")
        return
    yield from check_conversation(processor, end_ids)
    for where, settings in stages.items():
        yield from check_prompts(processor, settings, where)
    for where, settings in stages.items():
        yield from check_memory(load_for_checks(model)[0], settings, where)  # each with an adapter of its own
