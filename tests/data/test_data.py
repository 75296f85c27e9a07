"""Rows from every kind of source, their columns, and that a bad row costs no other."""

import base64
import csv
import json
import logging

import datasets
import numpy as np
import PIL.Image
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from support import png, write_lines
from trl.data_utils import prepare_multimodal_messages

from trl_mmreason.data.row_loading import DataError, load_rows

pytestmark = pytest.mark.usefixtures("own_cache")
NAMES = ["prompt", "images", "answer", "choices", "id", "category"]
COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255)}


@pytest.fixture
def folder(tmp_path):
    """A folder with red.png (3 × 2) and blue.jpg (5 × 4)."""
    folder = tmp_path / "shapes"
    (folder / "pictures").mkdir(parents=True)
    PIL.Image.new("RGB", (3, 2), COLOURS["red"]).save(folder / "pictures/red.png")
    PIL.Image.new("RGB", (5, 4), COLOURS["blue"]).save(folder / "pictures/blue.jpg", quality=100)
    return folder


def image_rows(images="images", prefix="pictures/"):
    """A row with two images and, in Chinese, one without any."""
    with_images = {"question": "<image><image>\nWhich is red?", "answer": "the first", "extra": 1}
    text_only = {"question": "三加四等于几？", images: [], "answer": "七", "extra": 2}
    return [{**with_images, images: [f"{prefix}red.png", f"{prefix}blue.jpg"]}, text_only]


def assert_image_rows(rows, name):
    """What `image_rows` must become, whatever the source."""
    assert rows.problems == []
    assert rows.dataset.column_names == NAMES
    first, second = rows.dataset
    assert first["prompt"] == [{"role": "user", "content": "Which is red?"}]
    assert [image.size for image in first["images"]] == [(3, 2), (5, 4)]
    assert [image.mode for image in first["images"]] == ["RGB", "RGB"]
    assert first["images"][0].getpixel((0, 0)) == COLOURS["red"]
    assert np.abs(np.subtract(first["images"][1].getpixel((0, 0)), COLOURS["blue"])).max() <= 2  # JPEG
    assert (first["answer"], first["choices"], first["id"], first["category"]) == ("the first", None, f"{name}-0", None)
    assert second["prompt"] == [{"role": "user", "content": "三加四等于几？"}]
    assert (second["images"], second["answer"], second["id"]) == ([], "七", f"{name}-1")


# ---- sources ----


def test_json_lines_file(folder):
    file = write_lines(folder / "train.jsonl", image_rows())
    file.write_text("\ufeff\n" + file.read_text(encoding="utf-8") + "\n\n", encoding="utf-8")  # blank lines, a mark
    assert_image_rows(load_rows(file), "train")


def test_json_array_file_whose_images_are_elsewhere(folder, tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(image_rows()))
    assert_image_rows(load_rows(str(tmp_path / "rows.json"), image_root=folder), "rows")


QUESTIONS = [{"question": "Which?", "image": "red.png", "answer": "red"}, {"question": "Why?", "answers": ["a", "b"]}]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ({"dataset_name": "docvqa", "data": QUESTIONS}, ["r-0", "r-1"]),
        ({"info": {"split": "train", "url": "http://a.org"}, "questions": QUESTIONS}, ["r-0", "r-1"]),  # CLEVR
        ({"17": QUESTIONS[0], "18": {**QUESTIONS[1], "id": "own"}}, ["17", "own"]),  # ScienceQA, MathVista
    ],
)
def test_the_rows_of_a_json_file_that_is_one_object(tmp_path, value, ids, indent):
    (tmp_path / "red.png").write_bytes(png("red"))
    (tmp_path / "r.json").write_text(json.dumps(value, indent=indent))
    rows = load_rows(tmp_path / "r.json", columns={"answer": None})
    assert rows.dataset["id"][:] == ids
    assert [one[0]["content"] for one in rows.dataset["prompt"]] == ["Which?", "Why?"]
    assert [len(images) for images in rows.dataset["images"]] == [1, 0]


def test_an_object_that_is_a_row_stays_one(tmp_path):
    (tmp_path / "red.png").write_bytes(png("red"))
    talk = [{"role": "user", "content": "<image>3+4?"}, {"role": "assistant", "content": "7"}]
    (tmp_path / "r.json").write_text(json.dumps({"messages": talk, "images": ["red.png"]}, indent=1))
    (row,) = load_rows(tmp_path / "r.json", on_error="raise").dataset
    assert (row["answer"], len(row["images"])) == ("7", 1)
    (tmp_path / "several.json").write_text(json.dumps({"photo": "red.png", "qas": QUESTIONS}))  # the image is not lost
    with pytest.raises(DataError, match=r"has no column for prompt: .*found \['photo', 'qas'\]"):
        load_rows(tmp_path / "several.json")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{\n"prompt": "p",\n"answer": "3"\n}',
            r"begins '\{'. Fix: rename it to .json, if",
        ),
        ("a.csv", "prompt,answer\né,3\n".encode("latin-1"), "a.csv' is not in UTF-8 .*Fix: save it as UTF-8"),
        ("a.json", '[{"prompt": "é"}]'.encode("latin-1"), "a.json' is not in UTF-8 .*Fix: save it as UTF-8"),
        ("a.jsonl", '{"prompt": "é"}'.encode("latin-1"), "'a' is not in UTF-8 .*Fix: save it as UTF-8"),
        (
            "a.csv",
            b"prompt,answer,answer\np,3,4\n",
            "a.csv' has several columns of the name 'answer'; rename all but one",
        ),
        ("a.jsonl", b'{"prompt": "p", "answer": 3,}', r"begins '.*,}' \(Expecting property name"),
        (
            "a.csv",
            b"prompt,answer\nHow, when?,3\n",
            "of the first the row has 3 fields and the header 2; put text with",
        ),
        ("a.json", b'{"frage": {"0": "p"}, "zahl": {"0": 3}}', r"a table by its columns.*to_json\(\"a.jsonl\", orient"),
        ("a.json", b'{"prompt": ["p", "q"], "answer": [3, 4]}', "a table by its columns, expected rows"),
        ("a.json", b'{"columns": ["prompt"], "index": [0], "data": [["p"]]}', "a table by its columns"),
        ("a.jsonl", b'[{"prompt": "p", "answer": "3"}]', "a.jsonl' holds an array of JSON.*Fix: rename it to a.json"),
        ("a.jsonl", b'\n[\n{"prompt": "p", "answer": "3"}\n]', "a.jsonl' holds an array of JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_fix(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_rows(tmp_path / name)


def test_csv_holds_images_in_base64_and_a_comma_without_quotation_marks_costs_its_row(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    PIL.Image.fromarray(noise).save(tmp_path / "noise.png")
    image = base64.b64encode((tmp_path / "noise.png").read_bytes()).decode()
    assert len(image) > 131_072  # what Python's reader takes in a field
    lines = ["image,question,answer", ",What, when?,red", f"{image},What?,red", ',"What, when?",red', ",What?"]
    (tmp_path / "r.csv").write_text("\n".join(lines))
    rows = load_rows(tmp_path / "r.csv")
    assert [one[0]["content"] for one in rows.dataset["prompt"]] == ["What?", "What, when?"]
    assert [[image.size for image in images] for images in rows.dataset["images"]] == [[(200, 200)], []]
    assert [(one.row, one.reason) for one in rows.problems] == [(0, "too many fields"), (3, "empty answer")]
    assert rows.problems[0].message.startswith("the row has 4 fields and the header 3; put text with a separator in")
    assert rows.left_out == []


def test_csv_of_excel_with_decimal_commas_has_semicolons(tmp_path):
    (tmp_path / "r.csv").write_bytes("\ufeffquestion;answer\r\nWie lang, in m?;3,5\r\n".encode())
    (row,) = load_rows(tmp_path / "r.csv", on_error="raise").dataset
    assert (row["prompt"][0]["content"], row["answer"]) == ("Wie lang, in m?", "3,5")
    (tmp_path / "r.csv").write_text("question,answer,a;b\np;q,3,c\n")
    (row,) = load_rows(tmp_path / "r.csv", on_error="raise").dataset
    assert row["prompt"][0]["content"] == "p;q"


def test_a_file_with_tabs(tmp_path):
    image = base64.b64encode(png("blue", (40, 30))).decode()  # as VLMEvalKit keeps it
    (tmp_path / "r.tsv").write_text(f"index\timage\tquestion\tanswer\n0\t{image}\tOne, or two?\ttwo\n")
    (row,) = load_rows(tmp_path / "r.tsv", on_error="raise").dataset
    assert (row["prompt"][0]["content"], row["answer"], row["images"][0].size) == ("One, or two?", "two", (40, 30))


def test_half_a_surrogate_pair_costs_its_row_only(tmp_path):
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "b \ud83d", "answer": "2"}, {"prompt": "😀", "answer": "3"}]
    (tmp_path / "r.json").write_text(json.dumps(rows))
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for file in ("r.json", "r.jsonl"):
        loaded = load_rows(tmp_path / file)
        assert loaded.dataset["answer"][:] == ["1", "3"]
        assert [(one.row, one.reason) for one in loaded.problems] == [(1, "line is not Unicode")]


def test_a_folder_of_save_to_disk_is_read(tmp_path):
    rows = Dataset.from_list([{"prompt": "p", "answer": "3"}])
    rows.save_to_disk(tmp_path / "one")
    DatasetDict({"test": rows}).save_to_disk(tmp_path / "several")
    assert load_rows(tmp_path / "one").dataset["id"][:] == ["one-0"]
    assert load_rows(tmp_path / "several", split="test").dataset["id"][:] == ["several-0"]
    with pytest.raises(DataError, match=r"no split 'train'; it has \['test'\]"):
        load_rows(tmp_path / "several")


def test_folder_of_json_lines_takes_the_files_of_the_split(folder):
    rows = image_rows()
    write_lines(folder / "a.jsonl", rows[:1])
    write_lines(folder / "b.jsonl", rows[1:])
    write_lines(folder / "test-0.jsonl", [{"question": "held out?", "answer": "yes"}])
    assert_image_rows(load_rows(folder), "shapes")
    assert load_rows(folder, split="test").dataset["answer"][:] == ["yes"]
    with pytest.raises(DataError, match=r"no file for the split 'validation'; it has \['a.jsonl', 'b.jsonl'"):
        load_rows(folder, split="validation")


def test_the_name_of_a_split_may_stand_anywhere_in_that_of_a_file(folder):
    for name in ("math-train", "math_test", "physics.train", "physics-Val", "test2", "train1"):
        write_lines(folder / f"{name}.jsonl", [{"question": "?", "answer": name}])
    assert load_rows(folder).dataset["answer"][:] == ["math-train", "physics.train", "train1"]
    assert load_rows(folder, split="test").dataset["answer"][:] == ["math_test", "test2"]
    assert load_rows(folder, split="test2").dataset["answer"][:] == ["test2"]


def test_a_file_of_no_split_beside_those_of_train_is_not_left_out_silently(folder, caplog):
    for name in ("math-train", "math-test", "physics"):
        write_lines(folder / f"{name}.jsonl", [{"question": "?", "answer": name}])
    assert load_rows(folder, split="test").dataset["answer"][:] == ["math-test"]
    assert not caplog.messages
    assert load_rows(folder).dataset["answer"][:] == ["math-train"]
    assert "math-train.jsonl are read for the split 'train'; physics.jsonl are left out" in caplog.text


def test_two_values_of_one_name_are_no_row(tmp_path):
    twice = '{"prompt": "a", "answer": "1", "answer": "2"}'
    (tmp_path / "r.jsonl").write_text(f'{twice}\n{{"prompt": "b", "answer": "3"}}')
    loaded = load_rows(tmp_path / "r.jsonl")
    assert loaded.dataset["answer"][:] == ["3"]
    assert "`answer` comes twice" in loaded.problems[0].message
    question = '"7": {"prompt": "a", "answer": "1"}'  # two questions of one id
    for text, name in ((f"[{twice}]", "answer"), (f"{{{question}, {question}}}", "7")):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(DataError, match=f"`{name}` comes twice"):
            load_rows(tmp_path / "r.json")


def test_image_folder_with_json_lines(folder):
    # the layout of datasets' imagefolder: `file_names` holds several images, relative to the metadata file
    write_lines(folder / "pictures/metadata.jsonl", image_rows("file_names", ""))
    assert_image_rows(load_rows(folder / "pictures"), "pictures")


def test_image_folder_with_csv_and_a_folder_for_the_split(folder):
    (folder / "pictures").rename(folder / "train")
    with (folder / "train/metadata.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("file_name", "problem", "answer"), ("red.png", "How many?", "007")])
    row = load_rows(folder).dataset[0]
    assert (row["answer"], row["id"], row["images"][0].size) == ("007", "shapes-0", (3, 2))


def test_parquet_file_with_paths(folder):
    Dataset.from_list(image_rows()).to_parquet(folder / "shapes.parquet")
    assert_image_rows(load_rows(folder / "shapes.parquet"), "shapes")


def loaded(folder):
    """The same rows with the images as PIL objects."""
    rows = image_rows(prefix=f"{folder}/pictures/")
    return Dataset.from_list([{**row, "images": [PIL.Image.open(path) for path in row["images"]]} for row in rows])


def test_loaded_dataset_with_pil_images(folder):
    dataset = loaded(folder)
    assert dataset.features["images"] == datasets.List(datasets.Image())
    assert_image_rows(load_rows(dataset), "rows")
    assert_image_rows(load_rows(DatasetDict(train=dataset)), "rows")
    with pytest.raises(DataError, match=r"no split 'test'; it has \['train'\]"):
        load_rows(DatasetDict(train=dataset), split="test")


def test_dataset_in_the_layout_of_the_hub(folder, tmp_path, monkeypatch):
    # `load_dataset(path)` takes a folder as it takes a Hub id; the second call is given as a relative name
    table = loaded(folder)
    (tmp_path / "hub/data").mkdir(parents=True)
    table.to_parquet(tmp_path / "hub/data/train-00000-of-00002.parquet")
    table.select([1]).to_parquet(tmp_path / "hub/data/test-00000-of-00001.parquet")
    assert_image_rows(load_rows(tmp_path / "hub"), "hub")
    monkeypatch.chdir(tmp_path)
    assert load_rows("hub", split="test").dataset["answer"][:] == ["七"]
    with pytest.raises(DataError, match="could not load 'hub': Unknown split"):
        load_rows("hub", split="validation")


def test_one_image_that_is_no_list_as_bytes(folder):
    dataset = Dataset.from_list([{"query": "What?", "image": png(size=(4, 1)), "answer": "a"}])
    assert load_rows(dataset).dataset[0]["images"][0].size == (4, 1)


def test_unknown_sources_are_named_with_what_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for source, message in [
        ("nobody/no-such-set", "could not load 'nobody/no-such-set'"),
        ("", "the source is empty, ''. A source is a Hub id, a file"),
        ("no/such/train.jsonl", "'no/such/train.jsonl' does not exist here"),
        (tmp_path / "absent", "absent' does not exist here"),
        ("data/absent", "'data/absent' does not exist here"),  # no Hub id, as there is a folder `data`
        (3, "cannot load rows from a int"),
    ]:
        with pytest.raises(DataError, match=message) as raised:
            load_rows(source)
        assert "A source is a Hub id, a file (.parquet, .jsonl, .json, .csv, .tsv), a folder" in str(raised.value)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is no parquet file")
    with pytest.raises(DataError, match="could not load 'broken'"):
        load_rows(tmp_path / "broken.parquet")


def test_dataset_with_a_transform_is_refused():
    dataset = Dataset.from_list([{"prompt": "a", "answer": "b"}]).with_transform(lambda batch: batch)
    with pytest.raises(DataError, match="has a transform, which would be lost; apply it with map"):
        load_rows(dataset)


# ---- columns ----


def test_columns_are_found_by_name_by_synonym_and_by_mapping():
    row = {"problem": "p", "solution": "long", "answer": "s", "options": ["s", "y"], "question_id": 9, "subject": "geo"}
    found = load_rows(Dataset.from_list([row])).dataset[0]
    assert found == {
        "prompt": [{"role": "user", "content": "p"}],
        "images": [],
        "answer": "s",  # our own name wins over the synonym `solution`
        "choices": {"A": "s", "B": "y"},
        "id": "9",
        "category": "geo",
    }
    mapped = load_rows(Dataset.from_list([row]), columns={"answer": "solution", "choices": None}).dataset[0]
    assert (mapped["answer"], mapped["choices"]) == ("long", None)
    red = PIL.Image.new("RGB", (4, 4), "red")
    for column in ({"images": [red]}, {"image": red}):
        (image,) = load_rows(Dataset.from_list([{**row, **column}])).dataset[0]["images"]
        assert image.getpixel((0, 0)) == (255, 0, 0)


def test_data_without_labels():
    rows = load_rows(Dataset.from_list([{"prompt": "p"}]), columns={"answer": None})
    assert rows.dataset["answer"][:] == [None]


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"text": "p", "answer": "a"}, {}, r"no column for prompt: .*found \['text', 'answer'\]; name it"),
        (
            {"text": "p", "answer": "a"},
            {},
            """--columns '{"prompt": "…"}', or columns={"prompt": "…"} in Python$""",
        ),
        ({"text": "p", "answer": "a"}, {"columns": {"prompt": None}}, "no column for prompt .None., which every"),
        ({"prompt": "p", "label": 1}, {}, r"no column for answer: .*found \['prompt', 'label'\].*or null"),
        ({"question": "p", "query": "p", "answer": "a"}, {}, r"prompt could be any of \['question', 'query'\]"),
        ({"question": "p", "query": "p", "answer": "a"}, {}, """say which with columns: --columns '{"prompt": "…"}'"""),
        ({"prompt": "p", "answer": "a"}, {"columns": {"answer": "gold"}}, "no column 'gold' for answer; it has"),
        ({"prompt": "p", "answer": "a"}, {"columns": {"gold": "answer"}}, r"columns has the keys \['gold'\]"),
        ({"prompt": "p", "answer": "a"}, {"keep_columns": ["level"]}, "no column 'level' to keep"),
        ({"prompt": "p", "answer": "a"}, {"keep_columns": ["answer"]}, "keep_columns cannot hold 'answer'"),
        ({"prompt": "p", "answer": "a"}, {"on_error": "ignore"}, "on_error is 'ignore'; expected 'drop' or 'raise'"),
        ({"prompt": "p", "answer": "a"}, {"max_rows": 0}, "max_rows is 0; expected at least 1"),
        ({"prompt": "p", "answer": "a"}, {"max_rows": -1, "seed": 0}, "max_rows is -1; expected at least 1"),
    ],
)
def test_wrong_columns_and_options(row, options, message):
    with pytest.raises(DataError, match=message):
        load_rows(Dataset.from_list([row]), **options)


def test_kept_columns(tmp_path, caplog):
    rows = [{"prompt": "p", "answer": "a", "reward": 0.5 * i, "steps": ["007"], "other": i} for i in range(3)]
    with caplog.at_level(logging.INFO, "trl_mmreason.data.row_loading"):
        kept = load_rows(write_lines(tmp_path / "r.jsonl", rows), keep_columns=["reward", "steps"]).dataset
    assert kept.column_names == [*NAMES, "reward", "steps"]
    assert (kept["reward"][:], kept["steps"][0]) == ([0.0, 0.5, 1.0], ["007"])
    assert "left out the columns ['other']" in caplog.text
    assert load_rows(Dataset.from_list(rows), keep_columns=["reward"]).dataset["reward"][:] == [0.0, 0.5, 1.0]
    mixed = write_lines(tmp_path / "mixed.jsonl", [rows[0], {**rows[1], "reward": "high"}])
    with pytest.raises(DataError, match="cannot keep the column 'reward', it has values of different types"):
        load_rows(mixed, keep_columns=["reward"])


def test_max_rows_takes_the_first_rows_before_the_checks(tmp_path):
    rows = [{"prompt": "p", "answer": answer} for answer in ["", "b", "c"]]
    rows = load_rows(write_lines(tmp_path / "r.jsonl", rows), max_rows=2)
    assert rows.dataset["answer"][:] == ["b"]
    assert [problem.row for problem in rows.problems] == [0]


def test_rows_are_sampled_with_a_seed(tmp_path):
    """In the order of the source and under its numbers; of one seed, fewer rows are among more."""
    rows = [{"prompt": "p", "answer": "" if index % 10 == 3 else str(index)} for index in range(100)]
    files = [write_lines(tmp_path / "r.jsonl", rows), tmp_path / "r.parquet"]
    Dataset.from_list(rows).to_parquet(files[1])
    for file in files:
        some, more = (load_rows(file, max_rows=count, seed=5) for count in (20, 60))
        ids = some.dataset["id"][:]
        assert ids == [f"r-{answer}" for answer in some.dataset["answer"]]
        assert [int(answer) for answer in some.dataset["answer"]] == sorted(map(int, some.dataset["answer"]))
        assert ids != [f"r-{index}" for index in range(20) if index % 10 != 3]  # not the first
        assert set(ids) < set(more.dataset["id"])
        bad = [problem.row for problem in more.problems]
        assert bad
        assert all(row % 10 == 3 for row in bad)
        assert len(more.dataset) + len(bad) == 60
        assert load_rows(file, max_rows=20, seed=5).dataset["id"][:] == ids
        assert load_rows(file, max_rows=20, seed=6).dataset["id"][:] != ids
        assert len(load_rows(file, max_rows=200, seed=5).dataset) == 90


# ---- values that are good ----


def test_messages_system_prompt_and_placeholders(tmp_path):
    turns = [
        {"role": "user", "content": "one <b> "},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]
    rows = [
        {"prompt": turns, "answer": "2", "images": []},
        {"prompt": "What is it?\n<image>", "answer": "2", "images": [{"bytes": None, "path": "a.png"}]},
    ]
    (tmp_path / "a.png").write_bytes(png())
    prompts = load_rows(write_lines(tmp_path / "r.jsonl", rows), system_prompt="Think.").dataset["prompt"][:]
    system = {"role": "system", "content": "Think."}
    assert prompts == [[system, *turns], [system, {"role": "user", "content": "What is it?\n<image>"}]]


def test_rows_go_into_trl(folder):
    write_lines(folder / "train.jsonl", image_rows())
    with_images, text_only = load_rows(folder).dataset
    content = prepare_multimodal_messages(with_images["prompt"], images=with_images["images"])[0]["content"]
    assert [part["type"] for part in content] == ["image", "image", "text"]
    assert [part["image"].size for part in content[:2]] == [(3, 2), (5, 4)]
    assert content[2]["text"] == "Which is red?"
    content = prepare_multimodal_messages(text_only["prompt"], images=text_only["images"])[0]["content"]
    assert content == [{"type": "text", "text": "三加四等于几？"}]


@pytest.mark.parametrize(
    ("kind", "stored", "read"),
    [
        (ClassLabel(names=["no", "yes"]), 1, "yes"),
        (List(ClassLabel(names=["cat", "dog"])), [1, 0], ["dog", "cat"]),
        (Value("float16"), 0.3, "0.3"),  # 0.300048828125 with all digits of its 16 bits
        (Value("float32"), 0.1, "0.1"),
        (Value("float32"), 16777216.0, "16777216"),
        (List(Value("float32")), [0.1], "0.1"),  # several numbers may be one answer, and are refused
        (Value("float64"), 0.1 + 0.2, "0.30000000000000004"),
    ],
)
def test_an_answer_is_what_its_column_s_type_says(kind, stored, read, tmp_path):
    rows = {"prompt": ["p"], "label": [stored], "category": [stored]}
    columns = {"answer": "label", **({"category": None} if isinstance(kind, List) else {})}
    source = Dataset.from_dict(rows, features=Features({"prompt": Value("string"), "label": kind, "category": kind}))
    source.to_parquet(tmp_path / "r.parquet")  # which keeps the types
    for each in (source, tmp_path / "r.parquet"):
        (row,) = load_rows(each, columns=columns, on_error="raise").dataset
        assert (row["answer"], row["category"]) == (read, None if isinstance(kind, List) else read)


def test_a_label_that_is_not_known_is_no_answer():
    features = Features({"prompt": Value("string"), "answer": ClassLabel(names=["no", "yes"])})
    rows = load_rows(Dataset.from_dict({"prompt": ["p", "q"], "answer": [-1, 0]}, features=features))
    assert rows.dataset["answer"][:] == ["no"]
    assert [(problem.row, problem.reason) for problem in rows.problems] == [(0, "empty answer")]


def test_lines_that_are_no_rows(tmp_path):
    good = json.dumps({"question": "p", "answer": "a"})
    (tmp_path / "r.jsonl").write_text("\n".join([good, '{"question": "p", "ans', "[1]", good]))
    rows = load_rows(tmp_path / "r.jsonl")
    assert len(rows.dataset) == 2
    problems = [(problem.row, problem.column, problem.reason) for problem in rows.problems]
    assert problems == [(1, "line", "line is not JSON"), (2, "line", "line is no object")]
    (tmp_path / "r.jsonl").write_text("no JSON at all")
    with pytest.raises(DataError, match="no line is a JSON object; the first begins 'no JSON at all'"):
        load_rows(tmp_path / "r.jsonl")
    (tmp_path / "r.json").write_text('[{"question": ]')
    with pytest.raises(DataError, match="r.json' is not valid JSON: Expecting value: line 1 column 15"):
        load_rows(tmp_path / "r.json")


def test_three_bad_rows_in_a_thousand_cost_three_rows(tmp_path, caplog):
    rows = [{"id": i, "prompt": f"{i}?", "image": png(size=(1 + i % 7, 1)), "answer": str(i)} for i in range(1000)]
    rows[10]["image"] = rows[10]["image"][:40]
    rows[10]["answer"] = rows[500]["answer"] = ""
    rows[999]["image"] = b"no image"
    Dataset.from_list(rows).to_parquet(tmp_path / "r.parquet")
    loaded = load_rows(tmp_path / "r.parquet", num_proc=2)
    assert loaded.dataset["id"][:] == [str(i) for i in range(1000) if i not in (10, 500, 999)]
    assert [(p.row, p.id, p.column, p.reason) for p in loaded.problems] == [
        (10, "10", "image", "unreadable image"),
        (10, "10", "answer", "empty answer"),
        (500, "500", "answer", "empty answer"),
        (999, "999", "image", "unreadable image"),
    ]
    assert loaded.dataset[996]["images"][0].size == (1 + 998 % 7, 1)
    assert "3 of 1000 rows cannot be used and were left out (2 × unreadable image, 2 × empty answer)" in caplog.text


def test_an_image_that_vanishes_is_noticed_at_the_next_call(folder):
    file = write_lines(folder / "train.jsonl", image_rows())
    assert len(load_rows(file).dataset) == 2
    (folder / "pictures/red.png").unlink()
    assert [problem.reason for problem in load_rows(file).problems] == ["missing image file"]
