"""README and docs: links lead somewhere, and quoted messages are those of the code."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), ROOT / "benchmarks/README.md", *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors_of(page):
    """The anchors that GitHub and the site give to headings; a later one of the same name has a number."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page):
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link}"
        assert not anchor or anchor in anchors_of(target), f"{page.name}: {link} has no such heading"


def test_images_are_small():
    images = list((ROOT / "docs/images").iterdir())
    assert len(images) >= 3
    assert [image.name for image in images if image.stat().st_size > 150_000] == []


@cache
def messages():
    """The strings of the package, with "…" for what is filled in."""
    found = []
    for path in ROOT.glob("trl_mmreason/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sdg]", "…", node.value).replace("%%", "%"))
    return "\n".join(found)


def test_quoted_messages_are_in_the_code():
    """An ellipsis in a quotation stands for anything within one message."""
    lines = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8").splitlines()
    seen = [line.split(" | ")[0] for line in lines if line.startswith("| ")]
    quoted = [text for cell in seen for text in re.findall(r'"([^"]+)"', cell)]
    assert len(quoted) > 25
    unknown = [text for text in quoted if not re.search(".*".join(map(re.escape, text.split("…"))), messages())]
    assert unknown == []


def test_every_reason_to_leave_a_row_out_is_on_the_page_of_data():
    code = "".join(
        (ROOT / f"trl_mmreason/data/{name}.py").read_text(encoding="utf-8")
        for name in ("rows", "row_values", "row_sources")
    )
    reasons = set(re.findall(r'RefusedValue\(\s*"([^"]+)"', code))
    assert len(reasons) > 15
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8").partition("## Why a row is left out")[2]
    assert reasons - set(re.findall(r"`([^`]+)`", page)) == set()
