"""The form of a mutation, and the rows of the pages "paper, code, test" that one is expected of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
VALUES = "tests/project/test_paper_values.py::test_the_defaults_are_the_papers"
RECIPES = "tests/project/test_paper_values.py::test_the_recipes_train_with_the_papers_values"
TEST = re.compile(r"`(tests/[^`]+\.py::test_\w+)`")


class Mutation(NamedTuple):
    """A change of the code that makes a row of an audit page false.

    Attributes:
        row: beginning of the row's first two cells, "paper | what it says", which tells it from all other rows.
        file: file to change, from the repository's root.
        old: text that occurs once in the file.
        new: text that takes its place.
        test: node id of a test that the row names, which fails on the changed code; with a parameter where one of the
            test's cases is enough.
    """

    row: str
    file: str
    old: str
    new: str
    test: str

    @property
    def function(self) -> str:
        """The node id without parameters."""
        return self.test.partition("[")[0]

    def apply(self, text: str) -> str:
        """Return the file's text with the change."""
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.row}: {self.file} has {times} times {self.old!r}, expected once.")
        return text.replace(self.old, self.new)


def audited_rows(method: str) -> dict[str, list[str]]:
    """The rows of `docs/audit/` that name a test of ours: "paper | what it says" → node ids."""
    page = (ROOT / f"docs/audit/{method}.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]
    return {f"{paper} | {says}": tests for paper, says, _, shown in cells if (tests := TEST.findall(shown))}
