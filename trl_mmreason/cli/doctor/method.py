"""Find the method of a configuration, and parse the configuration as `mmreason train` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import torch
import yaml
from transformers import TrainingArguments
from trl import ModelConfig

from ...compat.packages import missing_packages
from ...scripts.recipes import config_file, load_script, read_config
from ...scripts.script_parser import ScriptParser
from .finding import Finding, one_line
from .settings import ONLY_STAGE


class _Parser(ScriptParser):
    """The parser of a method's script, which raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def refuse_wrong_sections(self, *_: Any) -> None:
        """Leave the sections to `MethodParser.faults`, which names all that is wrong with them."""


class MethodParser:
    """Parse a configuration as `mmreason train METHOD` does.

    Attributes:
        method: name of the method.
        reads: stage → the settings that it reads; empty for a method without stages.
        configs: stage → its configuration class.
        whole: sections whose stages train all weights, with `use_peft`, too.
    """

    def __init__(self, method: str) -> None:
        self.method = method
        module = load_script(method, f"{__package__}.{method}")
        hints = get_type_hints(module.main) if hasattr(module, "main") else {}
        staged = [kind for kind in vars(module).values() if is_dataclass(kind) and hasattr(kind, "STAGES")]
        self._types: list[Any] = [kind for name, kind in hints.items() if name != "return"] or [*staged, ModelConfig]
        self._known = {each.name for kind in self._types for each in fields(kind)}
        self._staged = hasattr(self._types[0], "STAGES")
        self.reads: Mapping[str, Iterable[str]] = getattr(self._types[0], "READS", {})
        self.whole: Sequence[str] = getattr(self._types[0], "WHOLE", ())
        trained = [kind for kind in self._types if issubclass(kind, TrainingArguments)]
        self.configs: Mapping[str, type] = self._types[0].configs() if self._staged else {ONLY_STAGE: trained[0]}

    def unknown_keys(self, given: Mapping[str, Any]) -> list[str]:
        """The keys, outside sections, that the method does not have."""
        return sorted(given.keys() - self._known - {"env"})

    def faults(self, path: Path, given: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Section, or "" → what `train` refuses, apart from what this machine lacks: `check_settings` names that."""
        lacking = _lacking(given).items()
        options = [part for key, value in lacking if key in self._known for part in (f"--{key}", value)]
        try:
            parsed = _Parser(self._types).parse_args_and_config(["--config", str(path), *options])
        except (ValueError, TypeError) as error:
            return [("", one_line(error))]
        return list(self._section_faults(parsed[0])) if self._staged else []

    def _section_faults(self, args: Any) -> Iterator[tuple[str, str]]:
        yield from ((section, fault) for section, _, fault in args.unknown_settings())
        for section, kind in args.configs().items():
            if not getattr(args, section):
                continue
            known = {each.name for each in fields(kind)}
            merged_settings = {**args.common, **getattr(args, section)}
            settings = {name: value for name, value in merged_settings.items() if name in known}
            lacking = {key: yaml.safe_load(value) for key, value in _lacking(settings).items()}
            try:
                kind(args.output_dir, **{**settings, **lacking})
            except (ValueError, TypeError) as error:
                yield section, one_line(error)


def _lacking(settings: Mapping[str, Any]) -> dict[str, str]:
    """Option → its value on a machine that lacks what the settings ask for."""
    on_cpu = {} if torch.cuda.is_available() else {"use_cpu": "true"}
    return on_cpu | {missing.setting: missing.instead for missing in missing_packages(settings)}


def check_method(config: str, methods: Sequence[str]) -> tuple[MethodParser | None, list[Finding]]:
    """Find the method of a configuration, and what its parser refuses.

    It is the method that knows most of the keys; among several, that of the configuration's folder, or one that refuses
    nothing.

    Args:
        config: as for `read_settings`, which has read it.
        methods: names of methods.
    """
    path = config_file(config)
    contents = read_config(config)
    parsers = [MethodParser(method) for method in methods]
    fewest = min(len(parser.unknown_keys(contents)) for parser in parsers)
    fitting = [parser for parser in parsers if len(parser.unknown_keys(contents)) == fewest]
    if 2 * fewest > len(contents):
        unknown = ", ".join(fitting[0].unknown_keys(contents)[:3])
        text = f"{config} is no configuration of a method: no method has {unknown}."
        return None, [Finding("FAIL", text, "--config takes what `mmreason train METHOD --config` takes.")]
    own = [parser for parser in fitting if parser.method == path.parent.name]
    faults = {parser: parser.faults(path, contents) for parser in own or fitting}
    parser = next((each for each, parser_faults in faults.items() if not parser_faults), next(iter(faults)))
    if not faults[parser]:
        taking = [each.method for each, parser_faults in faults.items() if not parser_faults]
        others = f"; {', '.join(taking[1:])} would, too: --method names one" if len(taking) > 1 else ""
        return parser, [Finding("ok", f"{config} is a configuration that {parser.method} takes{others}.")]
    return parser, [
        Finding("FAIL", f"{where}: {text}" if where else f"{parser.method}: {text}")
        for text, where in merge_sections((text, where) for where, text in faults[parser])
    ]


def merge_sections(faults: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each text once, with all its sections."""
    sections: dict[str, list[str]] = {}
    for text, where in faults:
        sections.setdefault(text, []).append(where)
    return ((text, ", ".join(where)) for text, where in sections.items())
