"""Rows in the layouts of public data sets: what each becomes, and which columns are left out."""

import base64

import PIL.Image
import pytest
from datasets import Dataset
from row_layouts import BLUE, LAYOUTS, RED, REFUSED, saved, user
from support import png, write_lines

from trl_mmreason.data.row_loading import DataError, load_completions, load_rows

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def folder(tmp_path):
    PIL.Image.new("RGB", (3, 2), "red").save(tmp_path / "red.png")
    PIL.Image.new("RGB", (3, 2), "blue").save(tmp_path / "blue.png")
    return tmp_path


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_and_what_cannot_be_is_named(folder, name):
    layout = LAYOUTS[name]
    file = saved(layout, folder)
    for _ in ("read", "from the cache"):
        loaded = load_rows(file, kind=layout.kind)
        rows = list(loaded.dataset)
        assert len(rows) == len(layout.becomes)
        for row, expected in zip(rows, layout.becomes, strict=True):
            assert [image.getpixel((0, 0)) for image in row["images"]] == expected["images"]
            known = {**row, "images": expected["images"]}
            assert {column: known[column] for column in expected} == expected
        assert loaded.left_out == layout.left_out
        refused = [(problem.column, problem.reason) for problem in loaded.problems]
        assert refused == ([REFUSED[name][:2]] if name in REFUSED else [])
        assert all(REFUSED[name][2] in problem.message for problem in loaded.problems)


def test_a_field_inside_a_column_can_be_named(folder):
    rows = [{"q": {"text": "Which?", "image": "red.png"}, "meta": {"gold": "red", "level": 3}}]
    columns = {"prompt": "q.text", "images": "q.image", "answer": "meta.gold"}
    file = write_lines(folder / "rows.jsonl", rows)
    Dataset.from_list(rows).to_parquet(folder / "rows.parquet")
    for source in (file, folder / "rows.parquet"):
        loaded = load_rows(source, columns=columns)
        (row,) = loaded.dataset
        assert (row["prompt"], row["answer"]) == ([user("Which?")], "red")
        assert row["images"][0].getpixel((0, 0)) == RED
        assert (loaded.columns, loaded.left_out) == (columns, ["meta.level"])
    with pytest.raises(DataError, match=r"no column 'meta.golden' for answer; it has \['q.text', 'q.image', 'meta"):
        load_rows(file, columns={**columns, "answer": "meta.golden"})


def test_the_cache_notices_an_image_in_a_field_or_behind_a_url(folder):
    rows = [{"q": {"image": "red.png"}, "prompt": "Which?", "answer": "red"}]
    Dataset.from_list(rows).to_parquet(folder / "fields.parquet")
    urls = write_lines(
        folder / "urls.jsonl", [{"prompt": "?", "image_urls": [f"file://{folder}/red.png"], "answer": "a"}]
    )
    sources = ((folder / "fields.parquet", {"images": "q.image"}), (urls, None))
    for colour, pixel in (("red", RED), ("blue", BLUE)):
        PIL.Image.new("RGB", (3 if colour == "red" else 5, 2), colour).save(folder / "red.png")
        for source, columns in sources:
            (row,) = load_rows(source, columns=columns).dataset
            assert row["images"][0].getpixel((0, 0)) == pixel


MARKED = [
    ("<image1>Which is red, it or <image2>?", 2, "<image>Which is red, it or <image>?"),
    ("Is <image 1> as red as <image_2>?", 2, "Is <image> as red as <image>?"),
    ("Is <image2> as red as <image1>?", 2, "Is image 2 as red as image 1?"),
    ("<image1>\nIs <image1> red?", 1, "Is image 1 red?"),
    ("As <image1>, is <image2> as red as <image1>?", 2, "As <image>, is <image> as red as image 1?"),
    ("<image>\n<image>\nIs <image2> red?", 2, "Is image 2 red?"),
]


@pytest.mark.parametrize(("text", "count", "becomes"), MARKED)
def test_marks_of_images_become_their_places_or_names(folder, text, count, becomes):
    row = {"prompt": text, "images": ["red.png", "blue.png"][:count], "answer": "a"}
    (loaded,) = load_rows(write_lines(folder / "rows.jsonl", [row]), on_error="raise").dataset
    assert loaded["prompt"] == [user(becomes)]


UNCLEAR = [
    ("Is <image3> red?", 2, "mark of an image"),
    ("Is <image1> red?", 0, "mark of an image"),
    ("<image> <image> <image> Which?", 2, "wrong number of <image>"),
    ("<image>\nIs it as red as <image>?", 1, "wrong number of <image>"),
    ("<image> Which?", 2, "wrong number of <image>"),
]


@pytest.mark.parametrize(("text", "count", "reason"), UNCLEAR)
def test_marks_that_could_mean_anything_are_refused(folder, text, count, reason):
    good = {"prompt": "?", "images": [], "answer": "a"}
    row = {"prompt": text, "images": ["red.png", "blue.png"][:count], "answer": "a"}
    (problem,) = load_rows(write_lines(folder / "rows.jsonl", [good, row])).problems
    assert (problem.row, problem.reason) == (1, reason)


def test_of_a_row_with_a_missing_image_only_that_is_reported(folder):
    rows = [{"prompt": "?", "answer": "a"}, {"prompt": "<image1> Which?", "images": ["no.png"], "answer": "a"}]
    (problem,) = load_rows(write_lines(folder / "rows.jsonl", rows)).problems
    assert problem.reason == "missing image file"
    assert "fix the path, or give the folder that relative paths start from (--image-root" in problem.message


@pytest.mark.parametrize("path", ["/lost/no.png", "file:///lost/no.png"])
def test_image_root_is_no_fix_for_an_absolute_path(folder, path):
    rows = [{"prompt": "?", "answer": "a"}, {"prompt": "?", "images": [path], "answer": "a"}]
    (problem,) = load_rows(write_lines(folder / "rows.jsonl", rows)).problems
    fix = "fix the path, which is absolute, so that image_root does not change it"
    assert problem.message == f"'/lost/no.png' does not exist; {fix}"


def test_a_configuration_is_named_after_a_colon(folder):
    copy = folder / "copy"
    for number, name in enumerate(("virl39k", "mmk12")):
        (copy / name).mkdir(parents=True)
        Dataset.from_list([{"prompt": name, "answer": str(number)}]).to_parquet(copy / name / "train.parquet")
    files = "\n".join(f"- config_name: {name}\n  data_files: {name}/train.parquet" for name in ("virl39k", "mmk12"))
    (copy / "README.md").write_text(f"---\nconfigs:\n{files}\n---\n")
    (row,) = load_rows(f"{copy}:mmk12").dataset
    assert (row["prompt"], row["answer"]) == ([user("mmk12")], "1")
    with pytest.raises(DataError, match=r"BuilderConfig 'no' not found. Available: \['virl39k', 'mmk12'\]"):
        load_rows(f"{copy}:no")
    with pytest.raises(DataError, match="/nowhere:no' does not exist here"):
        load_rows(f"{folder}/nowhere:no")


def test_answers_in_earlier_turns_are_counted(folder, caplog):
    load_rows(saved(LAYOUTS["LLaVA-CoT"], folder), kind="completions")
    assert "rows: 1 of 2 conversations have several answers. The last one is the completion" in caplog.text


def test_base64_that_is_cut_off_is_named(folder):
    whole = base64.b64encode(png("blue", (40, 30))).decode()
    rows = [{"prompt": "?", "images": [f"data:image/png;base64,{text}"], "answer": "a"} for text in (whole, whole[:81])]
    rows.append({"prompt": "?", "images": [{"bytes": whole, "path": None}], "answer": "a"})
    loaded = load_rows(write_lines(folder / "rows.jsonl", rows))
    assert [images[0].size for images in loaded.dataset["images"]] == [(40, 30), (40, 30)]
    (problem,) = loaded.problems
    assert (problem.row, problem.reason) == (1, "unreadable image")


def test_an_unknown_kind_is_refused(folder):
    with pytest.raises(DataError, match=r"kind is 'dpo'; expected one of \['questions', 'completions', 'preferences'"):
        load_rows(write_lines(folder / "rows.jsonl", [{}]), kind="dpo")


def test_a_column_that_a_kind_needs_is_named(folder):
    file = write_lines(folder / "rows.jsonl", [{"prompt": "?", "chosen": "a"}])
    with pytest.raises(
        DataError,
        match=r"no column for rejected: looked for \['rejected', 'rejected_response', .*found \['prompt', 'chosen'",
    ):
        load_rows(file, kind="preferences")


def test_supervised_rows_come_from_our_own_parquet_unchanged_and_from_json_lines(folder):
    own = [{"prompt": [user("3+4?")], "images": [], "completion": "7", "source": "reflect"}]
    Dataset.from_list(own).to_parquet(folder / "own.parquet")
    assert load_completions(str(folder / "own.parquet")).column_names == ["prompt", "images", "completion", "source"]
    lines = write_lines(folder / "rows.jsonl", [{"question": "3+4?", "solution": "It is 7."}])
    (row,) = load_completions(str(lines), columns=None)
    assert (row["prompt"], row["completion"]) == ([user("3+4?")], "It is 7.")
    numbers = [{"question": "3+4?", "solution": 7}, {"question": "Half?", "solution": 0.5}]
    numbers.append({"question": "Right?", "solution": True})  # Python's numbers, and no text
    read = load_rows(write_lines(folder / "numbers.jsonl", numbers), kind="completions")
    assert read.dataset["completion"][:] == ["7", "0.5"]
    assert [problem.reason for problem in read.problems] == ["wrong type"]
    Dataset.from_list([{**own[0], "text": "seven"}]).to_parquet(folder / "text.parquet")
    assert load_completions(str(folder / "text.parquet"), columns={"completion": "text"})["completion"][:] == ["seven"]
