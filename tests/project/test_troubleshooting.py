"""docs/troubleshooting.md: messages that it quotes are those of the package, and tests that it names exist."""

import ast
import re
from functools import cache
from pathlib import Path

from test_paper_tables import named_in, symbols_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
SHOWN = "| symptom | what the run says | what to do | shown by |"


def shown_rows():
    """The cells of each row of the table whose rows name a test."""
    table = PAGE.partition(f"{SHOWN}\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[1:]]


@cache
def messages():
    """All strings of the package, with "…" in the place of what an f-string fills in."""
    found = []
    for path in sorted((ROOT / "trl_mmreason").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[-\d.]*[sdgfr]", "…", node.value))
    return found


def is_said(quotation):
    """Whether some message has the parts of a quotation between "…", in that order."""
    pattern = re.compile(".*".join(re.escape(part.strip()) for part in quotation.split("…")), re.DOTALL)
    return any(pattern.search(message) for message in messages())


def test_what_a_run_says_is_what_the_code_says():
    rows = shown_rows()
    assert len(rows) > 5
    for symptom, says, *_ in rows:
        quoted = re.findall(r'"([^"]+)"', says)
        assert quoted, symptom
        for each in quoted:
            assert is_said(each), f"{symptom}: no message has {each!r}"


def test_every_row_is_shown_by_a_test():
    for symptom, _, todo, shown in shown_rows():
        assert todo, symptom
        places = list(named_in(shown))
        assert places, symptom
        for path, symbol in places:
            assert symbol.startswith("test_"), f"{symptom}: {symbol} is no test"
            assert symbol in symbols_of(path), f"{symptom}: {path} has no {symbol}"
