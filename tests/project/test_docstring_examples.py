"""The examples in docstrings, which the reference pages show, say what the code does."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in ROOT.glob("trl_mmreason/**/*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def test_there_are_examples():
    methods = ("adapo", "srpo", "chain_of_step", "sophia", "self_evolution")
    assert {f"trl_mmreason.{method}.objective" for method in methods} <= set(MODULES)
    assert {"trl_mmreason.functional", "trl_mmreason.grading.grader", "trl_mmreason.evaluation.metrics"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed
