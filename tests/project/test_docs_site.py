"""The documentation as a site: it builds without a warning, holds every name and argument, and opens in a browser."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pages import Tab, dump_dom, listening_proxy, needs_browser

import trl_mmreason

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://example.org/repository"
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install -e '.[docs]'"
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "docs"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "REPOSITORY_URL": REPOSITORY}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    assert "WARNING" not in built.stderr
    return folder


def html_of(site, page):
    return (site / page).read_text(encoding="utf-8")


def test_every_page_is_there(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in ROOT.glob("docs/**/*.md")}
    assert len(pages) > 25
    assert pages <= {path.relative_to(site) for path in site.glob("**/*.html")}


def test_every_public_name_is_described(site):
    reference = "".join(path.read_text(encoding="utf-8") for path in site.glob("reference/*.html"))
    settings = html_of(site, "settings.html")
    for name in trl_mmreason.__all__:
        if name.endswith("Config"):
            assert f'id="{name.lower()}"' in settings, name
        else:
            assert f'id="trl_mmreason.{name}"' in reference, name


def documented_dataclasses():
    """Each dataclass whose arguments `--help` shows, with its fields: those that its docstring describes."""
    for path in ROOT.glob("trl_mmreason/**/*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and "documented" in map(ast.unparse, node.decorator_list):
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield f"{module}.{node.name}", [part for part in node.body if isinstance(part, ast.AnnAssign)]


def test_every_argument_is_in_a_table(site):
    settings = html_of(site, "settings.html")
    dataclasses = dict(documented_dataclasses())
    assert len(dataclasses) > 15
    for name, fields in dataclasses.items():
        anchor = f'id="{name.rpartition(".")[2].lower()}"'
        section = settings.partition(anchor)[2].partition("<h3")[0]
        for field in fields:
            if "ClassVar" not in ast.unparse(field.annotation):
                assert f"<td><code>{field.target.id}</code></td>" in section, f"{name}.{field.target.id}"


def test_defaults_and_descriptions_are_those_of_the_code(site):
    rows = re.findall(r"<tr>\s*(.*?)</tr>", html_of(site, "settings.html"), re.DOTALL)
    cells = {re.findall(r"<td>(.*?)</td>", row, re.DOTALL)[0]: row for row in rows if "<td>" in row}
    assert "<code>0.6</code>" in cells["<code>threshold</code>"]
    assert "correcting outweighs keeping" in cells["<code>threshold</code>"]
    assert "required" in cells["<code>dataset_name</code>"]
    assert "<code>{}</code>" in cells["<code>mixed_in</code>"]
    assert "<code>['language']</code>" in cells["<code>trainable_parts</code>"]


def test_links_out_of_the_pages_lead_to_the_repository(site):
    page = html_of(site, "srpo.html")
    assert f'href="{REPOSITORY}/blob/main/benchmarks/README.md"' in page
    assert "../benchmarks" not in page


@pytest.mark.parametrize(
    ("repository", "expected"),
    [("", "See `x.py` and [here](srpo.md)."), ("r", "See [`x.py`](r/blob/main/examples/x.py) and [here](srpo.md).")],
)
def test_without_an_address_links_out_of_the_pages_are_text(repository, expected):
    found = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    hooks = importlib.util.module_from_spec(found)
    found.loader.exec_module(hooks)
    page, config = (
        SimpleNamespace(file=SimpleNamespace(src_uri="a.md")),
        SimpleNamespace(extra={"repository": repository}),
    )
    assert hooks.on_page_markdown("See [`x.py`](../examples/x.py) and [here](srpo.md).", page, config, []) == expected


@needs_browser
def test_a_page_opens_in_a_browser_without_a_request(site, tmp_path):
    with listening_proxy() as (proxy, requests):
        dom = dump_dom((site / "reference/objectives.html").as_uri(), tmp_path, proxy)
    assert "adaptive_rewards" in dom
    assert [address for address in requests if "google" not in address] == []  # those are Chromium's own


@needs_browser
def test_the_search_finds_pages_from_disk(site, tmp_path):
    field = "document.querySelector('.md-search__input')"
    typed = f"({field}.value = 'oversampling', {field}.dispatchEvent(new Event('keyup', {{bubbles: true}})))"
    found = "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
    with Tab((site / "reference/data.html").as_uri(), tmp_path) as tab:
        tab.ask(f"(document.querySelector('[data-md-toggle=search]').click(), {field}.focus(), {typed})")
        deadline = time.monotonic() + 60
        while not (links := tab.ask(found)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert f"{site.as_uri()}/training.html" in {link.partition("?")[0] for link in links}
        assert tab.errors == []
        assert [address for address in tab.requests if not address.startswith(site.as_uri())] == []


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_no_argument_s_name_is_broken(site, tmp_path, width):
    broken = """[...document.querySelectorAll('td:first-child code')]
      .filter((name) => name.getClientRects().length > 1).map((name) => name.textContent)"""
    with Tab((site / "settings.html").as_uri(), tmp_path, size=(width, 800)) as tab:
        assert tab.ask("document.querySelectorAll('td:first-child code').length") > 100
        assert tab.ask(broken) == []
        assert tab.ask("document.documentElement.scrollWidth") == width
