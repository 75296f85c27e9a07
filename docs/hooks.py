"""What the site makes of the pages and docstrings: mkdocs calls the functions, mkdocstrings the class."""

import ast
import posixpath
import re
from pathlib import Path

import griffe

from trl_mmreason.documented import _read_entries  # the same texts as `--help` has

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((\.\./[^)\s]+)\)")
ARGUMENTS = re.compile(r"^<!-- arguments: ([\w.]+) -->$", re.MULTILINE)
GROUP = re.compile(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def on_page_markdown(markdown, page, config, files):
    """Fill in the tables of arguments, and lead links out of this folder to the repository."""

    def outside(link):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[1]))
        return link[0] if path.startswith("docs/") else f"]({config.repo_url.rstrip('/')}/blob/main/{path})"

    return LINK.sub(outside, ARGUMENTS.sub(lambda found: arguments_table(found[1]), markdown))


def arguments_table(dataclass):
    """A dataclass's own fields, their defaults and what its docstring says; read from the source, nothing is imported."""
    module, _, name = dataclass.rpartition(".")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    defaults = {node.target.id: node.value for node in found.body if isinstance(node, ast.AnnAssign)}
    lines = ["| argument | default | what it does |", "|---|---|---|"]
    for field, text in _read_entries(ast.get_docstring(found)).items():
        default = defaults[field]
        lines.append(f"| `{field}` | {'required' if default is None else f'`{ast.unparse(default)}`'} | {text} |")
    return "\n".join(lines)


class SplitGroups(griffe.Extension):
    """Docstrings describe several arguments at once, as `low, high: text`; griffe knows one name an entry."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = GROUP.sub(
                lambda found: "\n".join(f"    {name}: {found[2]}" for name in found[1].split(", ")), obj.docstring.value
            )
