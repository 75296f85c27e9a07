"""The pages "paper, code, test" of the methods: every file, symbol and test that they name exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
METHODS = ["adapo", "srpo", "chain_of_step", "sophia", "self_evolution"]
FOLDERS = ("trl_mmreason", "study", "tests", "configs", "examples", "docs", "benchmarks")


def rows_of(method):
    """The cells of each row: paper, what it says, code, what shows it."""
    page = (ROOT / f"docs/audit/{method}.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == ["paper", "what it says", "code", "shown by"]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def named_in(cell):
    """The backticked places of a cell: (path, symbol or None)."""
    for text in re.findall(r"`([^`]+)`", cell):
        path, colons, symbol = text.partition("::" if "::" in text else ":")
        if path.partition("/")[0] in FOLDERS:
            yield path, symbol if colons else None


@cache
def symbols_of(path):
    """What can be named in a file: the names of a module and of its classes, or the keys of a YAML file."""
    text = (ROOT / path).read_text()
    if path.endswith(".yaml"):
        return set(keys_of(yaml.safe_load(text)))
    return set(names_of(ast.parse(text).body)) if path.endswith(".py") else set()


def keys_of(section, within=""):
    for key, value in section.items():
        yield f"{within}{key}"
        if isinstance(value, dict):
            yield from keys_of(value, f"{within}{key}.")


def names_of(body, within=""):
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)]
        yield from (f"{within}{name}" for name in [*names, *([node.name] if hasattr(node, "name") else [])])
        if isinstance(node, ast.ClassDef):
            yield from names_of(node.body, f"{within}{node.name}.")


@pytest.mark.parametrize("method", METHODS)
def test_what_a_table_names_exists(method):
    for paper, says, *cells in rows_of(method):
        for path, symbol in (place for cell in cells for place in named_in(cell)):
            assert (ROOT / path).exists(), f"{paper}, {says}: there is no {path}"
            assert symbol is None or symbol in symbols_of(path), f"{paper}, {says}: {path} has no {symbol}"


@pytest.mark.parametrize("method", METHODS)
def test_every_row_is_shown_by_a_test_or_says_why_not(method):
    rows = rows_of(method)
    assert len(rows) > 20
    for row in rows:
        assert len(row) == 4, row
        paper, says, code, shown = row
        assert paper, row
        assert says, row
        tests = [
            path for path, symbol in named_in(shown) if path.startswith("tests/") and (symbol or "").startswith("test_")
        ]
        excused = re.match(r"(departure|gap): \w", shown)
        assert tests or excused, f"{paper}, {says}: no test is named, and no departure or gap"
        assert excused or list(named_in(code)), f"{paper}, {says}: no code is named"
