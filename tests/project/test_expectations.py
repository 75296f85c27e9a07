"""docs/expectations.md: times are those that `recipe_steps` computes, and all names are those of the code."""

import ast
import inspect
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import transformers.trainer
import trl.trainer
from test_troubleshooting import is_said
from trl import ModelConfig

import trl_mmreason
from benchmarks.__main__ import main
from trl_mmreason.chain_of_step.recipe import ChainOfStepArguments
from trl_mmreason.self_evolution.recipe import EvolutionArguments
from trl_mmreason.sophia.recipe import SophiaArguments
from trl_mmreason.srpo.recipe import ReflectionArguments

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/expectations.md").read_text(encoding="utf-8")
METHODS = {"AdaPO": "adapo", "SRPO": "srpo", "Chain-of-Step": "chain_of_step", "SOPHIA": "sophia"}
METHODS["Self-evolution"] = "self_evolution"
CONFIGS = [getattr(trl_mmreason, name) for name in trl_mmreason.__all__ if name.endswith("Config")]
SETTINGS = [ModelConfig, *CONFIGS, ReflectionArguments, ChainOfStepArguments, SophiaArguments, EvolutionArguments]
ARGUMENTS = {field.name for cls in SETTINGS for field in fields(cls)}
VALUES = {"grpo", "dapo", "dr_grpo", "dpo", "update"}  # of loss_type, and stages
FILES = (".yaml", ".json", ".txt")


def section_of(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@cache
def code():
    """Names and strings of the package and of the trainers below it; f-strings have … for what is filled in."""
    paths = [*(ROOT / "trl_mmreason").rglob("*.py"), Path(inspect.getfile(transformers.trainer))]
    paths += Path(inspect.getfile(trl.trainer)).parent.glob("*.py")
    words, patterns = set(), set()
    for node in (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
        elif isinstance(node, (ast.keyword, ast.FunctionDef)):
            words.add(node.arg if isinstance(node, ast.keyword) else node.name)
        elif isinstance(node, ast.JoinedStr):
            patterns.add("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
    return words, {pattern for pattern in patterns if len(pattern.strip("…")) >= len("time/")}


def is_logged(name):
    """Whether the code writes this name, or fills a name that it writes into an f-string, as in dropped_truncated."""
    words, patterns = code()
    fillings = (re.fullmatch("(.+)".join(map(re.escape, pattern.split("…"))), name) for pattern in patterns)
    return name in words or any(found and set(found.groups()) <= words for found in fillings)


def names_on(text):
    """The backticked names of metrics and arguments; of `name: value` the name, and neither commands nor files."""
    for quoted in re.findall(r"`([^`\n]+)`", text):
        name = quoted.partition(": ")[0]
        if re.fullmatch(r"[a-z]\w*(/\w+)*", name) and not quoted.endswith(FILES):
            yield name


def test_every_name_on_the_page_is_one_of_the_code():
    names = set(names_on(PAGE))
    assert len(names) > 50
    assert {name for name in names if name not in ARGUMENTS | VALUES and not is_logged(name)} == set()


@pytest.mark.parametrize("name", ["dropped_tired", "rewards/effect_reward/mean", "delta_t3", "clip_ratio/low_median"])
def test_a_name_that_is_not_logged_is_found(name):
    assert [*names_on(f"Watch `{name}`.")] == [name]
    assert not is_logged(name)


def test_messages_are_those_of_the_code():
    quoted = re.findall(r'"([^"]+)"', PAGE.partition("\n## Time a step")[0].replace('("Datasets")', ""))
    said = [" ".join(text.split()) for text in quoted]
    assert len(said) > len(METHODS)
    assert [text for text in said if not is_said(text)] == []


def test_times_are_those_that_are_computed(capsys):
    main(["recipe_steps"])
    table = capsys.readouterr().out
    assert table in PAGE
    for title, folder in METHODS.items():
        rows = [line.split(" | ") for line in table.splitlines() if line.startswith(f"| `{folder}/")]
        assert re.findall(r"on paper (\d+) s", section_of(title)) == [row[4] for row in rows]


@pytest.mark.parametrize("title", METHODS)
def test_a_section_fits_one_screen_and_watches_three_numbers(title):
    section = section_of(title)
    assert len(section.splitlines()) <= 25
    assert len(re.findall(r"^- \*\*", section, re.MULTILINE)) == 3
