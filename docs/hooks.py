"""What the site makes of the pages and docstrings: mkdocs calls the functions, mkdocstrings the class."""

import ast
import posixpath
import re
from pathlib import Path

import griffe

from trl_mmreason.training.documented import read_entries  # the same texts as `--help` has

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s]+)\)")
ARGUMENTS = re.compile(r"^<!-- arguments: ([\w.]+) -->$", re.MULTILINE)
GROUP = re.compile(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def on_page_markdown(markdown, page, config, files):
    """Fill in the tables of arguments, and lead links out of this folder to the repository, if its address is known."""
    repository = config.extra["repository"]

    def outside(link):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[2]))
        if path.startswith("docs/"):
            return link[0]
        return f"[{link[1]}]({repository}/blob/main/{path})" if repository else link[1]

    return LINK.sub(outside, ARGUMENTS.sub(lambda found: arguments_table(found[1]), markdown))


def arguments_table(dataclass):
    """What a dataclass adds to its base, with defaults and descriptions; read from the source, nothing is imported."""
    module, _, name = dataclass.rpartition(".")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    described = ast.get_docstring(found)
    bases = f" Its base is `{ast.unparse(found.bases[-1])}`." if found.bases else ""
    defaults = {node.target.id: node.value for node in found.body if isinstance(node, ast.AnnAssign)}
    lines = [f"{described.splitlines()[0]}{bases}", "", "| argument | default | what it does |", "|---|---|---|"]
    for field, text in read_entries(described).items():
        lines.append(f"| `{field}` | {shown_default(defaults[field])} | {text} |")
    return "\n".join(lines if len(lines) > 4 else lines[:1])


def shown_default(value):
    """The default as the source has it; of `field(default_factory=…)` what the factory makes."""
    if isinstance(value, ast.Call):
        factory = value.keywords[0].value
        value = factory.body if isinstance(factory, ast.Lambda) else ast.Dict([], [])  # the only other one is `dict`
    return "required" if value is None else f"`{ast.unparse(value)}`"


class SplitGroups(griffe.Extension):
    """Docstrings describe several arguments at once, as `low, high: text`; griffe knows one name an entry."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = GROUP.sub(
                lambda found: "\n".join(f"    {name}: {found[2]}" for name in found[1].split(", ")), obj.docstring.value
            )
