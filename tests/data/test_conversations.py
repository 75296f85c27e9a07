"""Rows as TRL, ms-swift and LLaVA write them: each file becomes the rows that a plain question and answer become."""

import json

import datasets
import PIL.Image
import pytest
from datasets import Dataset
from support import png, write_lines

from trl_mmreason.data.row_loading import DataError, load_rows

pytestmark = pytest.mark.usefixtures("own_cache")

IMAGE, TEXT = {"type": "image"}, {"type": "text", "text": "Which is red?"}
SYSTEM = {"role": "system", "content": "Look."}
ASKED = {"role": "user", "content": "<image><image>\nWhich is red?"}
ANSWER = {"role": "assistant", "content": "the first"}
FILES = ["red.png", "blue.png"]


def user(*parts):
    return {"role": "user", "content": list(parts)}


def inside(value):
    return {"type": "image", "image": value}


FORMATS = {
    "plain": {"prompt": ASKED["content"], "images": FILES, "answer": "the first"},
    "trl": {"prompt": [user(IMAGE, IMAGE, TEXT)], "images": FILES, "answer": "the first"},
    "trl, images inside": {"prompt": [user(*map(inside, FILES), TEXT)], "solution": "the first"},
    "ms-swift": {"messages": [ASKED, ANSWER], "images": FILES},
    "ms-swift, to be rewarded": {"messages": [ASKED], "images": FILES, "solution": "the first"},
    "ms-swift, in parts": {
        "messages": [user(*map(inside, FILES), TEXT), {"role": "assistant", "content": [{**TEXT, "text": "the first"}]}]
    },
    "LLaVA": {
        "image": FILES,
        "conversations": [
            {"from": "human", "value": ASKED["content"]},
            {"from": "gpt", "value": "the first"},
        ],
    },
}


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        PIL.Image.new("RGB", (3, 2), name.removesuffix(".png")).save(tmp_path / name)
    return tmp_path


def assert_plain(rows):
    assert rows.problems == []
    assert rows.dataset.column_names == ["prompt", "images", "answer", "choices", "id", "category"]
    for row in rows.dataset:
        assert row["prompt"] == [{"role": "user", "content": "Which is red?"}]
        assert [image.getpixel((0, 0)) for image in row["images"]] == [(255, 0, 0), (0, 0, 255)]
        assert [image.mode for image in row["images"]] == ["RGB", "RGB"]
        assert row["answer"] == "the first"


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_in_each_format_becomes_the_same_rows(folder, name):
    lines = write_lines(folder / "rows.jsonl", [FORMATS[name]])
    assert_plain(load_rows(lines))
    Dataset.from_list([FORMATS[name]]).to_parquet(folder / "rows.parquet")
    plain = load_rows(folder / "rows.parquet", on_error="raise")
    assert_plain(plain)
    assert plain.dataset.features == load_rows(write_lines(folder / "p.jsonl", [FORMATS["plain"]])).dataset.features


def test_images_inside_as_pil_bytes_and_a_declared_feature(folder):
    images = [PIL.Image.open(folder / name) for name in FILES]
    as_bytes = [(folder / name).read_bytes() for name in FILES]
    for values in (images, as_bytes):
        row = {"prompt": [user(*map(inside, values), TEXT)], "answer": "the first"}
        assert_plain(load_rows(Dataset.from_list([row])))
    part = {"type": datasets.Value("string"), "text": datasets.Value("string"), "image": datasets.Image()}
    prompt = datasets.List({"role": datasets.Value("string"), "content": datasets.List(part)})
    features = datasets.Features({"prompt": prompt, "answer": datasets.Value("string")})
    row = {"prompt": [user(*({**inside(each), "text": None} for each in images), {**TEXT, "image": None})]}
    assert_plain(load_rows(Dataset.from_list([{**row, "answer": "the first"}], features=features)))


def test_a_long_conversation_keeps_its_other_turns(folder):
    later = {"role": "user", "content": "Sure?"}
    told = [{"from": "system", "value": "Look."}, {"from": "human", "value": "<image>Colour?"}]
    told += [{"from": "gpt", "value": "Red."}, {"from": "human", "value": "Sure?"}, {"from": "gpt", "value": "yes"}]
    file = write_lines(folder / "rows.jsonl", [{"id": "a", "image": "red.png", "conversations": told}])
    (row,) = load_rows(file).dataset
    first = {"role": "user", "content": "Colour?"}
    assert row["prompt"] == [SYSTEM, first, {"role": "assistant", "content": "Red."}, later]
    assert (row["answer"], row["id"]) == ("yes", "a")


def test_a_column_of_another_name_is_a_conversation_if_it_is_the_answer_too(folder):
    file = write_lines(folder / "rows.jsonl", [{"talk": [ASKED, ANSWER], "images": FILES}])
    assert_plain(load_rows(file, columns={"prompt": "talk", "answer": "talk"}))
    with pytest.raises(DataError, match="no column for answer"):
        load_rows(file, columns={"prompt": "talk"})


def test_a_plain_question_is_read_before_a_conversation(folder):
    file = write_lines(folder / "rows.jsonl", [{**FORMATS["plain"], "messages": [{"role": "user", "content": "?"}]}])
    assert_plain(load_rows(file))
    with pytest.raises(DataError, match=r"prompt could be any of \['messages', 'conversations'\]"):
        load_rows(write_lines(folder / "two.jsonl", [{"messages": [ASKED], "conversations": [], "answer": "1"}]))


BAD = [
    ({"messages": [ASKED]}, "messages", "no answer at the end", "does not end with a message of the assistant"),
    ({"messages": [ANSWER]}, "messages", "empty prompt", "the prompt has no user message"),
    ({"messages": "What?"}, "messages", "no answer at the end", "name a column of answers"),
    ({"messages": [ASKED, ANSWER], "images": FILES[:1]}, "messages", "wrong number of <image>", "2 <image>"),
    ({"messages": [user(inside("no.png"), TEXT), ANSWER], "images": []}, "messages", "missing image file", "no.png"),
    ({"messages": [user(inside("red.png"), TEXT), ANSWER]}, "messages", "images in two places", "hold 1 image(s)"),
    ({"messages": [user({"type": "video", "video": "a"}), ANSWER]}, "messages", "wrong message", "parts of text"),
    (
        {"messages": [ASKED, {"role": "tool_call", "content": "{}"}, ANSWER]},
        "messages",
        "unknown role",
        "the role 'tool_call'; expected one of",
    ),
    ({"messages": [{"from": ["human"], "value": "?"}, ANSWER]}, "messages", "unknown role", "has the role ['human']"),
    (
        {"messages": [ASKED, {"role": "assistant", "content": [inside("red.png"), TEXT]}]},
        "messages",
        "image in the answer",
        "models here answer in text",
    ),
    ({"system": "In Roman numerals."}, "system", "text beside the prompt", "system as a system message"),
    ({"messages": [ASKED, ANSWER, None]}, "messages", "no answer at the end", "message of the assistant"),
    ({"messages": [ASKED, {"role": "assistant"}]}, "messages", "no answer at the end", "message of the assistant"),
]


@pytest.mark.parametrize(("row", "column", "reason", "message"), BAD, ids=[f"{n} {b[2]}" for n, b in enumerate(BAD)])
def test_a_row_that_cannot_be_converted_is_a_problem_of_that_row(folder, row, column, reason, message):
    good = {"images": FILES, "messages": [ASKED, ANSWER]}
    rows = load_rows(write_lines(folder / "rows.jsonl", [good, {**good, **row}, good]))
    assert_plain(rows._replace(problems=[]))
    assert len(rows.dataset) == 2
    problem = next(problem for problem in rows.problems if problem.reason == reason)
    assert (problem.row, problem.column) == (1, column)
    assert message in problem.message


def test_an_answer_beside_a_conversation_that_ends_with_one_is_named(folder):
    row = {"messages": [ASKED, ANSWER], "images": FILES, "solution": "the first"}
    with pytest.raises(DataError, match="prompt ends with an answer.* or name this column for `answer` too"):
        load_rows(write_lines(folder / "rows.jsonl", [row]))


def test_text_beside_an_instruction_is_named_and_a_system_prompt_replaces_a_column(folder):
    row = {"instruction": "Which?", "input": "red or blue", "output": "red", "system": ""}
    columns = {"prompt": "instruction", "answer": "output"}
    with pytest.raises(DataError, match="column 'input': text beside the prompt: it holds 'red or blue'"):
        load_rows(Dataset.from_list([row]), columns=columns)
    assert load_rows(Dataset.from_list([{**row, "input": ""}]), columns=columns).problems == []
    swift = {"messages": [ASKED, ANSWER], "images": FILES, "system": "Look."}
    loaded = load_rows(write_lines(folder / "rows.jsonl", [swift]), system_prompt="Look.")
    assert loaded.dataset[0]["prompt"][0] == SYSTEM


# ---- images inside the text ----

BETWEEN = "Is <image> or\n<image> red?"
PIECES = [{"type": "text", "text": piece} for piece in BETWEEN.split("<image>")]
PLACED = {
    "plain": {"prompt": BETWEEN, "images": FILES, "answer": "the first"},
    "messages": {"prompt": [{"role": "user", "content": BETWEEN}], "images": FILES, "answer": "the first"},
    "trl": {"prompt": [user(PIECES[0], IMAGE, PIECES[1], IMAGE, PIECES[2])], "images": FILES, "answer": "the first"},
    "trl, images inside": {
        "messages": [
            user(PIECES[0], inside(FILES[0]), PIECES[1], inside(FILES[1]), PIECES[2]),
            {"role": "assistant", "content": [{**TEXT, "text": "the first"}]},
        ]
    },
    "LLaVA": {
        "image": FILES,
        "conversations": [{"from": "human", "value": BETWEEN}, {"from": "gpt", "value": "the first"}],
    },
}


@pytest.mark.parametrize("name", PLACED)
def test_images_inside_the_text_keep_their_places(folder, name):
    Dataset.from_list([PLACED[name]]).to_parquet(folder / "rows.parquet")
    for file in (write_lines(folder / "rows.jsonl", [PLACED[name]]), folder / "rows.parquet"):
        rows = load_rows(file, on_error="raise").dataset
        assert rows.features == load_rows(write_lines(folder / "p.jsonl", [FORMATS["plain"]])).dataset.features
        assert rows[0]["prompt"] == [{"role": "user", "content": BETWEEN}]
        assert [image.getpixel((0, 0)) for image in rows[0]["images"]] == [(255, 0, 0), (0, 0, 255)]


def test_marks_go_only_if_all_come_first(folder):
    prompts = ["<image><image>\n<image>?", "Which is red?<image>\n<image>", "<image>\nA. <image> B. it is green"]
    rows = [{"prompt": one, "images": ["red.png"] * one.count("<image>"), "answer": "A"} for one in prompts]
    loaded = load_rows(write_lines(folder / "rows.jsonl", rows), on_error="raise").dataset
    assert [prompt[0]["content"] for prompt in loaded["prompt"]] == ["?", *prompts[1:]]


def test_an_image_of_a_later_message_stays_there(folder):
    told = [
        user(IMAGE, {**TEXT, "text": "Colour?"}),
        {"role": "assistant", "content": "Red."},
        user(IMAGE, TEXT),
        ANSWER,
    ]
    row = load_rows(write_lines(folder / "rows.jsonl", [{"messages": told, "images": FILES}])).dataset[0]
    assert [message["content"] for message in row["prompt"]] == ["<image>Colour?", "Red.", "<image>Which is red?"]


# ---- folders of several kinds ----


def test_a_folder_of_several_kinds_is_refused_with_what_is_there(folder):
    for name in ("a", "b", "c", "d"):
        write_lines(folder / f"{name}.jsonl", [FORMATS["plain"]])
    assert len(load_rows(folder).dataset) == 4
    (folder / "deep").mkdir()
    Dataset.from_list([FORMATS["plain"]]).to_parquet(folder / "deep/e.parquet")
    (folder / "f.csv").write_text("prompt,answer\nWhat?,1\n")
    expected = (
        r"expected one kind: 4 .jsonl \(a.jsonl, b.jsonl, c.jsonl, …\); 1 .parquet \(deep/e.parquet\); 1 .csv \(f"
    )
    with pytest.raises(DataError, match=f"holds files of several kinds, {expected}"):
        load_rows(folder)


def test_a_folder_whose_card_names_its_files_is_read(folder):
    hub = folder / "hub"
    hub.mkdir()
    Dataset.from_list([{"prompt": "What?", "image": png(), "answer": "1"}]).to_parquet(hub / "train.parquet")
    (hub / "notes.json").write_text(json.dumps([{"about": "the images"}]))
    with pytest.raises(DataError, match="1 .json .notes.json.; 1 .parquet .train.parquet."):
        load_rows(hub)
    (hub / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: train.parquet\n---\n")
    assert load_rows(hub).dataset["answer"][:] == ["1"]


def test_a_card_says_which_files_of_lines_are_the_split(folder):
    """Whatever they are called: the rows of a test set named held.jsonl were read for training."""
    hub = folder / "hub"
    hub.mkdir()
    for name in ("rows", "held"):
        write_lines(hub / f"{name}.jsonl", [{"prompt": name, "image": "red.png", "answer": "1"}])
    (hub / "red.png").write_bytes(png())
    files = "\n".join(
        f"  - {{split: {split}, path: {name}.jsonl}}" for split, name in (("train", "rows"), ("test", "held"))
    )
    (hub / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}\n---\n")
    for split, name in (("train", "rows"), ("test", "held")):
        (row,) = load_rows(hub, split=split, on_error="raise").dataset
        assert row["prompt"][0]["content"] == name
    with pytest.raises(DataError, match="validation"):
        load_rows(hub, split="validation")


@pytest.mark.parametrize(("ending", "separator"), [("csv", ","), ("tsv", "\t")])
def test_a_folder_of_csv_keeps_its_texts_as_one_file_does(folder, ending, separator):
    """datasets reads "007" as 7, which another row may be, 0.50 as 0.5, and None as no answer."""
    cells = [("id", "prompt", "answer"), ("007", "How much?", "0.50"), ("7", "Which?", "None")]
    folder = folder / "rows"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / f"{name}.{ending}").write_text("\n".join(map(separator.join, cells[: 3 if name == "train" else 2])))
    rows = load_rows(folder, on_error="raise").dataset
    assert (rows["id"][:], rows["answer"][:]) == (["007", "7"], ["0.50", "None"])
    assert load_rows(folder, split="test").dataset["id"][:] == ["007"]
