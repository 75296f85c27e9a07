"""`mmreason rows`: what it prints, and its page."""

import re

import PIL.Image
import pytest
from pages import page_of
from support import write_lines

from trl_mmreason.cli.commands.rows_command import KIND_NAMES
from trl_mmreason.cli.main import main
from trl_mmreason.data.row_kinds import KINDS

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def folder(tmp_path):
    PIL.Image.new("RGB", (3, 2), "red").save(tmp_path / "red.png")
    return tmp_path


def shown(folder, rows, *options):
    source = write_lines(folder / "rows.jsonl", rows)
    main(["rows", str(source), "--output", str(folder / "rows.html"), *options])
    return page_of(folder / "rows.html")


def test_columns_and_problems_are_printed(folder, capsys, caplog):
    good = {"question": "<b>3+4?</b>", "image": "red.png", "solution": "7", "level": 3, "subject": "sums"}
    rows = [good, {**good, "solution": ""}, {**good, "image": "no.png"}, {**good, "solution": " "}]
    page = shown(folder, rows)
    said = capsys.readouterr().out
    source = folder / "rows.jsonl"
    assert said.startswith(
        f"{source}: 1 of 4 rows can be used\n\n"
        "column    read as\nquestion  prompt\nimage     images\nsolution  answer\nsubject   category\n"
        "level     left out\n\nreason              rows\nempty answer        2\nmissing image file  1\n\n"
    )
    assert said.endswith(f"\n\n{folder / 'rows.html'}\n")
    assert "row 1 (id 'rows-1'), column 'solution': empty answer: " in caplog.text  # of the log, once
    assert "rows-1" not in said
    cells = [element["text"] for element in page.with_tag("td") + page.with_tag("th")]
    assert {"left out", "level", "empty answer", "rows-2", "solution"} <= set(cells)
    (card,) = page.with_class("question")
    assert " ".join(card["text"].split()) == "rows-0 · sums · 1 image(s) user <b>3+4?</b> answer 7"
    (image,) = [element for element in page.elements if element["tag"] == "img"]
    assert image["attrs"]["src"].startswith("data:image/png;base64,")


def test_rows_without_an_image_are_counted_where_others_have_one(folder, capsys):
    texts = [{"prompt": "p", "image": name, "answer": "a"} for name in ("", "", "red.png")]
    shown(folder, texts)
    assert "rows.jsonl: 3 of 3 rows can be used, 2 of them without an image\n" in capsys.readouterr().out
    shown(folder, texts[:2])
    assert "rows.jsonl: 2 of 2 rows can be used\n" in capsys.readouterr().out


def test_shown_rows_are_spread_over_all(folder):
    rows = [{"prompt": f"{number}+1?", "answer": str(number + 1), "options": ["1", "2"]} for number in range(8)]
    rows = [{**row, "options": None, "id": f"q{row['answer']}"} for row in rows]
    page = shown(folder, rows, "--shown", "4")
    assert [text.split()[0] for text in page.texts("question")] == ["q1", "q3", "q5", "q7"]


def test_ids_that_are_not_unique_are_named_with_their_fix(folder, capsys):
    rows = [{"prompt": f"{number}+1?", "answer": str(number + 1), "id": f"page {number // 2}"} for number in range(5)]
    shown(folder, rows)
    assert "ids are not unique, which evaluations refuse: 'page 0' (2 times), 'page 1' (2 times). Fix: --columns" in (
        capsys.readouterr().out
    )
    shown(folder, rows, "--columns", '{"id": null}')
    assert "not unique" not in capsys.readouterr().out


KIND_ROWS = {
    "questions": ({"answer": "A", "options": ["red", "blue"]}, ["choices (A) red (B) blue", "answer A"]),
    "completions": ({"completion": "It is red."}, ["completion It is red."]),
    "preferences": ({"chosen": "Red.", "rejected": "Blue."}, ["chosen Red.", "rejected Blue."]),
    "steps": (
        {"response": {"steps": ["See.", "Red."], "process_correctness": [0, 1]}},
        ["step 1: no label See.", "step 2: 1 Red."],
    ),
}


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_every_kind_is_shown(folder, kind):
    row, texts = KIND_ROWS[kind]
    page = shown(folder, [{"prompt": "Which is it? A or B", **row}], "--kind", kind)
    assert sorted(page.texts("turn")) == sorted(["user Which is it? A or B", *texts])


def test_the_kinds_are_those_of_the_package():
    assert sorted(KINDS) == sorted(KIND_NAMES)


def test_rows_of_which_none_can_be_used_and_a_folder_that_is_not_there(folder):
    with pytest.raises(SystemExit, match=re.escape("mmreason rows: rows: 1 of 1 rows cannot be used")):
        shown(folder, [{"prompt": "?", "answer": ""}])
    assert not (folder / "rows.html").exists()
    with pytest.raises(SystemExit, match="there is no folder"):
        main(["rows", str(folder / "rows.jsonl"), "--output", str(folder / "no" / "rows.html")])
