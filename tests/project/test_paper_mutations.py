"""Rows of the pages "paper, code, test" whose own test fails when what they say is changed in the code.

`tests/paper_mutations/` has a change for each row. The slow test applies them all, in a copy; the others keep the
tables in step with the code and the pages. One method: `pytest -m slow tests/project/test_paper_mutations.py -k srpo`.
"""

import ast
from functools import cache

import pytest

from tests.paper_mutations.mutation import ROOT, audited_rows
from tests.paper_mutations.running import FAILED, METHODS, copied_tree, exit_codes, mutations_of


def row_of(beginning, method):
    """The row of a page that begins like this, of which there has to be exactly one."""
    (row,) = [row for row in audited_rows(method) if row.startswith(beginning)]
    return row


@cache
def functions_of(path):
    return {node.name for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body if hasattr(node, "name")}


@pytest.mark.parametrize("method", METHODS)
def test_every_change_applies_and_its_test_is_the_row_s(method):
    rows = audited_rows(method)
    for each in mutations_of(method):
        text = (ROOT / each.file).read_text(encoding="utf-8")
        assert each.apply(text) != text
        path, _, name = each.function.partition("::")
        assert name in functions_of(path), each.test
        assert each.function in rows[row_of(each.row, method)], f"{each.row}: the row does not name {each.function}"
    assert len(set(mutations_of(method))) == len(mutations_of(method))


@pytest.mark.parametrize("method", METHODS)
def test_every_row_has_a_change(method):
    assert {row_of(each.row, method) for each in mutations_of(method)} == audited_rows(method).keys()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_row_s_test_finds_its_change(method, tmp_path):
    """Each test passes on the code as it is, and fails, which is more than not running, on the changed code."""
    changes = mutations_of(method)
    jobs = [*((test, None) for test in dict.fromkeys(each.test for each in changes)), *((e.test, e) for e in changes)]
    unexpected = [
        f"{mutation.row if mutation else 'unchanged'}: {test} ended with exit code {code}"
        for (test, mutation), code in zip(jobs, exit_codes(copied_tree(tmp_path), jobs), strict=True)
        if code != (FAILED if mutation else 0)
    ]
    assert not unexpected
