"""A docstring describes arguments and fields under the names that they have."""

import ast
from pathlib import Path

import pytest

from trl_mmreason.training.documented import read_entries

ROOT = Path(__file__).parents[2]
HANDED_ON = ("target_ratio", "max_ratio", "target_response_tokens", "max_response_tokens")  # in **lengths


def unknown(code):
    """Names that the docstring of a class or function describes and that the class or function does not have."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found = list(ast.walk(node))
            # a class has its fields, its arguments and what it writes as self.name; a function has its arguments
            names = {each.arg for each in found if isinstance(each, ast.arg)}
            if isinstance(node, ast.ClassDef):
                names |= {each.attr for each in found if isinstance(each, ast.Attribute)}
                names |= {each.id for each in found if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
                names |= {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            docstring = ast.get_docstring(node) or ""
            for section in ("Args", "Attributes"):
                told = [name.lstrip("*") for name in read_entries(docstring, section)]
                yield from (f"{node.name}: {name}" for name in told if name not in names)


def test_described_names_are_there():
    paths = [path for folder in ("trl_mmreason", "study") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 200
    found = {path.name: names for path in paths if (names := [*unknown(path.read_text(encoding="utf-8"))])}
    assert found == {"rewards.py": [f"ReflectionRewards: {name}" for name in HANDED_ON]}


@pytest.mark.parametrize("section", ["Args", "Attributes"])
def test_a_name_that_is_not_there_is_found(section):
    code = f'''
class Grill:
    """It grills.

    {section}:
        heat, smoke: how much.
    """

    heat: float

    def fry(self, egg):
        """Fry.

        {section}:
            eggs: of a hen.
        """
'''
    assert [*unknown(code)] == ["Grill: smoke", "fry: eggs"]
