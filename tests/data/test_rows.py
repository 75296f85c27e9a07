"""Every mistake that a row can have, and the images that reach the trainer."""

import base64
import logging
import os
from pathlib import Path

import datasets
import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Features, List, Value, load_dataset
from image_kinds import make_frames, make_images, saved
from support import png, write_lines

from trl_mmreason.data.images import images_of
from trl_mmreason.data.row_loading import DataError, RowProblem, load_rows

pytestmark = pytest.mark.usefixtures("own_cache")


def test_answers_and_choices_survive_parquet_and_map(tmp_path):
    rows = [
        {"prompt": "a", "answer": "7", "choices": None},  # Json would make the number 7 of it
        {"prompt": "b", "answer": ["false", "none"], "choices": None},
        {"prompt": "c", "answer": 0.5, "choices": {}},
        {"prompt": "d", "answer": "(C)", "choices": ["x", "y", 3.0]},
        {"prompt": "e", "answer": "true", "choices": {"B": "true", "D": "不"}},
        {"prompt": "f", "answer": "V", "choices": ["V", "W"]},  # the text of a choice, not its letter
    ]
    first = load_rows(write_lines(tmp_path / "r.jsonl", rows), on_error="raise").dataset
    answers = [["7"], ["false", "none"], ["0.5"], ["(C)"], ["true"], ["V"]]
    choices = [None, None, None, {"A": "x", "B": "y", "C": "3"}, {"B": "true", "D": "不"}, {"A": "V", "B": "W"}]
    first.to_parquet(tmp_path / "saved.parquet")
    saved = load_dataset("parquet", data_files=str(tmp_path / "saved.parquet"), split="train")
    for dataset in (first, saved, saved.map(dict), load_rows(saved).dataset):
        assert (dataset["answer"][:], dataset["choices"][:]) == (answers, choices)
    # one answer in every row: plain strings
    plain = load_rows(write_lines(tmp_path / "s.jsonl", [rows[0], *rows[2:]])).dataset
    plain.to_parquet(tmp_path / "plain.parquet")
    for dataset in (plain, load_rows(tmp_path / "plain.parquet").dataset.map(dict)):
        assert (dataset["answer"][:], dataset["choices"][:]) == (["7", "0.5", "(C)", "true", "V"], choices[1:])


def test_choices_of_an_arrow_table_keep_the_letters_of_their_row():
    # Arrow's struct gives both rows the letters A, B and C, with None where a row has none
    rows = [{"prompt": "p", "answer": "A", "choices": choices} for choices in ({"A": "x"}, {"A": "y", "C": "z"})]
    assert load_rows(Dataset.from_list(rows)).dataset["choices"][:] == [{"A": "x"}, {"A": "y", "C": "z"}]


def test_choices_that_no_prompt_lists_are_warned_of_once(tmp_path, caplog):
    hidden = {"prompt": "Which is blue?", "answer": "B", "choices": ["red", "blue"]}  # as ScienceQA stores it
    listed = ["Which?\n(A) x\n(B) y", "Is it Red or blue?", "Choose from A, B and C in the image."]
    rows = [{**hidden, "prompt": prompt} for prompt in listed] + [{"prompt": "p", "answer": "a", "choices": None}]
    load_rows(write_lines(tmp_path / "listed.jsonl", rows))
    assert not caplog.records
    file = write_lines(tmp_path / "r.jsonl", [*rows, hidden, {**hidden, "answer": ""}, hidden])
    for _ in range(2):  # checked, and read again
        caplog.clear()
        load_rows(file)
        (warning,) = [one.getMessage() for one in caplog.records if "list the `choices`" in one.getMessage()]
        assert "r: 2 of 6 prompts, the first that of 'r-4', do not list the `choices` of their rows" in warning


def test_a_context_that_the_model_never_sees_is_warned_of(tmp_path, caplog):
    # ScienceQA and MMBench keep what a question rests on in `hint`
    rows = [{"question": "Who wins?", "answer": "Ann", "hint": "Ann is faster.", "meta": {"context": "x", "page": 1}}]
    file = write_lines(tmp_path / "r.jsonl", rows)
    load_rows(file, keep_columns=["hint", "meta"])
    assert not caplog.records
    load_rows(file, columns={"category": "meta.page"})
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(
        "r: left out is what a question may need, in ['hint', 'meta.context']. Fix: write it into"
    )


def test_customary_names_are_read_in_capitals_too(tmp_path):
    file = write_lines(tmp_path / "r.jsonl", [{"Question": "1 + 1?", "ANSWER": "2", "answers": ["3"], "Id": "a"}])
    loaded = load_rows(file)
    assert loaded.columns == {"prompt": "Question", "answer": "ANSWER", "id": "Id"}
    both = write_lines(tmp_path / "both.jsonl", [{"Question": "no", "question": "yes", "answer": "2"}])
    assert load_rows(both).columns["prompt"] == "question"
    with pytest.raises(DataError, match=r"prompt could be any of \['Problem', 'PROBLEM'\]"):
        load_rows(write_lines(tmp_path / "two.jsonl", [{"Problem": "no", "PROBLEM": "yes", "answer": "2"}]))


def test_the_pages_script_for_choices_by_number(monkeypatch):
    columns = {"image": datasets.Image(), "answer": Value("int8"), "choices": List(Value("string"))}
    features = Features({**columns, **dict.fromkeys(("question", "hint"), Value("string"))})
    image = PIL.Image.new("RGB", (32, 32))
    rows = [
        {"image": image, "question": "Which?", "choices": ["red", "blue", "green"], "answer": 1, "hint": "Look."},
        {"image": None, "question": "What?", "choices": ["x", "y"], "answer": 0, "hint": ""},
    ]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: Dataset.from_list(rows, features=features))
    page = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")
    code = page.partition("### Choices by number")[2].partition("```python\n")[2].partition("```")[0]
    exec(code, names := {})
    loaded = names["rows"].dataset
    prompts = [one[0]["content"] for one in loaded["prompt"]]
    assert prompts == ["Look.\nWhich?\nA. red\nB. blue\nC. green", "What?\nA. x\nB. y"]
    assert loaded["answer"][:] == ["B", "A"]
    assert [len(images) for images in loaded["images"]] == [1, 0]


def test_letters_of_choices_that_the_model_never_sees_are_warned_of_once(tmp_path, caplog):
    # MMBench and VLMEvalKit keep each choice in a column of its letter, PMC-VQA in "Choice A"
    choices = {"A": "red", "B": "blue", "C": "nan"}
    rows = [
        {"question": "Which colour?", **choices, "answer": r"\boxed{B}"},
        {"question": "Which colour?\nA. red\nB. blue", **choices, "answer": "B"},
        {"question": "Which of the points A, B and C is in the middle?", **choices, "answer": "(B)"},
        {"question": "Which colour?", **choices, "answer": "blue"},
        {"question": "Which colour?", **choices, "answer": "C"},
    ]
    loaded = load_rows(write_lines(tmp_path / "r.jsonl", rows))
    assert (len(loaded.dataset), loaded.left_out) == (5, ["A", "B", "C"])
    (warning,) = [record.getMessage() for record in caplog.records]
    assert (
        "r: 2 of 5 answers, the first that of 'r-0', are the letter of a choice, and neither their prompts" in warning
    )
    caplog.clear()
    load_rows(write_lines(tmp_path / "listed.jsonl", rows[1:4]))
    load_rows(write_lines(tmp_path / "none.jsonl", rows), columns={"answer": None})
    assert not caplog.records


@pytest.mark.parametrize("answer", ["a", "(A)", "A. 0.5", "AB", "1/2", "0.50", "B) two"])
def test_an_answer_that_names_a_choice_is_read(answer):
    row = {"prompt": "p", "answer": answer, "choices": ["0.5", "two"]}
    assert load_rows(Dataset.from_list([row])).problems == []


def test_numbers_of_choices_as_text_are_refused_also_where_they_are_the_text_of_another(tmp_path):
    # lmms-lab/ai2d: options, and the number of the right one, from 0, as text
    rows = [
        {"question": "How many?\nA. 2\nB. 3\nC. 1", "options": ["2", "3", "1"], "answer": "1"},  # B, and not C
        {"question": "Which?\nA. cat\nB. dog", "options": ["cat", "dog"], "answer": "1"},
        {"question": "Two?", "options": None, "answer": "2"},
    ]
    loaded = load_rows(write_lines(tmp_path / "r.jsonl", rows))
    assert loaded.dataset["answer"][:] == ["2"]
    assert [(one.row, one.column, one.reason) for one in loaded.problems] == [
        (0, "answer", "answer is a number"),
        (1, "answer", "answer is a number"),
    ]
    assert "but other answers of this source are numbers of choices" in loaded.problems[0].message
    # one that is wrong among texts that are numbers costs itself alone, and so it does where another answer is a word
    counts = [{**rows[0], "answer": "2"}] * 21
    assert [one.row for one in load_rows(write_lines(tmp_path / "n.jsonl", [*counts, rows[1]])).problems] == [21]
    words = [rows[0], rows[1], {**rows[1], "answer": "dog"}]
    assert [one.row for one in load_rows(write_lines(tmp_path / "w.jsonl", words)).problems] == [1]


@pytest.mark.parametrize(
    ("choices", "read"),
    [
        ("['red', \"blue's\"]", {"A": "red", "B": "blue's"}),  # MMMU
        ('["red", "blue"]', {"A": "red", "B": "blue"}),
        ("{'A': 'red', 'B': 'blue'}", {"A": "red", "B": "blue"}),
        (r"['\\frac{1}{2}', '1']", {"A": r"\frac{1}{2}", "B": "1"}),
        ("[]", None),
    ],
)
def test_choices_written_as_text_are_read(choices, read):
    row = {"prompt": "p A. B.", "answer": "B" if read else "7", "choices": choices}
    assert load_rows(Dataset.from_list([row]), on_error="raise").dataset["choices"][:] == [read]


@pytest.mark.parametrize("answer", ["B", "blue", "B. blue", "(B)"])
def test_choices_with_their_letters_inside(answer):
    row = {"prompt": "p A. B.", "answer": answer, "options": ["A. red", "B. blue"]}  # Video-R1
    assert load_rows(Dataset.from_list([row])).problems == []


@pytest.mark.parametrize(
    "row",
    [
        *({"answer": text} for text in ("[1, 2]", "(0, 3]", "[3, 4)", "[5', 6']", "[x]", "{'a'}", "['a'] or [b]")),
        {"answer": ["['a', 'b']"]},  # in a list the text is meant, such as what a program prints
        {"answer": "['a', 'b']", "choices": ["['a', 'b']", "['a']"]},
        *({"answer": text, "choices": ["C", "A", "B"]} for text in ("(A)", "B. A", "A. C")),
        {"answer": "A", "choices": ["A", "C"]},
    ],
    ids=lambda row: str(row["answer"]),
)
def test_lists_and_letters_that_are_answers_are_read(row):
    loaded = load_rows(Dataset.from_list([{"prompt": "p", **row}]))
    answer = row["answer"]
    assert (loaded.problems, loaded.dataset["answer"][:]) == ([], [answer if isinstance(answer, str) else answer[0]])


# ---- values that are bad ----

GOOD = {"prompt": "p", "images": [], "answer": "a", "choices": None, "id": "good", "category": None}
AB = {"A": "x", "B": "y"}
PARTS = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "p"}]}]
TURN = [{"role": "user", "content": "p"}]
BAD = [
    (
        "images",
        ["absent.png"],
        "missing image file",
        "absent.png' does not exist; fix the path, or give the folder that relative ",
    ),
    ("images", ["corrupt.png"], "unreadable image", "corrupt.png cannot be decoded"),
    ("images", ["chunk.png"], "unreadable image", "chunk.png cannot be decoded (broken PNG file"),
    ("images", ["cut.jpg"], "unreadable image", "cut.jpg cannot be decoded"),
    ("images", ["depth.tiff"], "unreadable image", "its pixels have 32 bits (mode 'F')"),
    ("images", ["long.png"], "image too long", "long.png is 201×1 pixels"),
    ("images", ["https://example.com/a.png"], "image is a link", "download the images first"),
    ("images", [base64.b64encode(bytes(2000)).decode()], "image is base64", "save it as a file and give its path"),
    ("images", [base64.b64encode(bytes(200)).decode()], "image is base64", "got 'AAAA"),
    ("images", ["鳥" * 100 + ".png"], "missing image file", "does not exist"),  # 304 bytes in UTF-8
    ("images", 7, "wrong type", "got 7 (int); expected a path"),
    ("images", [{"image": "a.png"}], "wrong type", 'the keys [\'image\']; expected "bytes" or "path" among them'),
    ("images", [{"url": "a.png", "path": None}], "wrong type", "a dictionary with the keys ['path', 'url']"),
    ("images", ["file:///no/a.png"], "missing image file", "'/no/a.png' does not exist"),
    ("images", ["bomb.png"], "unreadable image", "; shrink it"),
    ("images", ["empty.png"], "unreadable image", "empty.png cannot be decoded"),
    ("images", [None, "whole.png"], "missing image", "the row has no image 1 of 2 (it is None)"),
    ("images", ["whole.png", ""], "missing image", "no image 2 of 2 (it is ''); put it there"),
    ("answer", "<image>3", "image in the answer", "models here answer in text"),
    ("answer", "  ", "empty answer", "the answer is '  '; give a string"),
    ("answer", [], "empty answer", "the answer is []"),
    ("answer", None, "empty answer", "the answer is None"),
    ("answer", r"\frac{1}{", "unusable answer", "cannot be graded: its braces are not balanced"),
    ("answer", "1/0", "unusable answer", "cannot be graded: its value is undefined"),
    ("answer", "['pony tail', 'bun']", "list written as text", "the text \"['pony tail', 'bun']\"; give a list itself"),
    ("answer", '["10", 20]', "list written as text", "; or a list of this text alone"),
    ("answer", """[1,\n "it's"\n 'b']""", "list written as text", "give a list itself"),
    (
        "answer",
        [10, 20.5],
        "list of numbers",
        'write \'[10, 20.5]\' if it is one answer, such as a box, or ["10", "20.5"] if',
    ),
    ("answer", True, "wrong type", "got True (bool); expected a string or a finite number"),
    ("answer", float("nan"), "wrong type", "got nan (float)"),
    ("choices", "A. x B. y", "wrong type", "got 'A. x B. y' (str); expected a dictionary letter → string"),
    ("choices", "['x' 'y']", "wrong type", "got \"['x' 'y']\" (str)"),  # of numpy; Python would read 'xy'
    ("choices", r"['\frac{1}{2}', '1']", "wrong type", "expected a dictionary"),  # Python would read a form feed
    ("choices", {"first": "x"}, "wrong choices", "the choices are named ['first']; expected capital letters"),
    ("choices", {"A": ""}, "wrong choices", "one of them is empty"),
    ("choices", "{'A': 'x', 'A': 'y'}", "wrong choices", "one letter comes twice"),
    ("prompt", " <image>\n", "empty prompt", "the prompt has no text"),
    ("prompt", [], "empty prompt", "the prompt has no user message"),
    ("prompt", 5, "wrong type", "got 5 (int); expected a string or a list of messages"),
    ("prompt", ["p"], "wrong type", "got 'p' (str); expected a message with 'role' and 'content'"),
    (
        "prompt",
        [{"role": "user", "content": "p"}, {"role": "assistant", "content": "7"}],
        "prompt ends with an answer",
        "the policy is to write that one",
    ),
    ("prompt", [{"role": "ai", "content": "p"}], "unknown role", "the role 'ai'; expected one of ('system',"),
    ("prompt", [{"from": "bing", "value": "p"}], "unknown role", "or LLaVA's 'human' and 'gpt'"),
    ("prompt", [{"role": "user", "value": "p"}], "wrong message", "a message has the keys ['role', 'value']"),
    ("prompt", [{"role": "user", "content": [{"type": "video"}]}], "wrong message", "a string, or parts of text"),
    ("prompt", PARTS, "wrong number of <image>", "1 <image> placeholder(s) and the row 0 image(s)"),
    ("prompt", "Is <image> red?", "wrong number of <image>", "1 <image> placeholder(s) and the row 0 image(s)"),
    (
        "prompt",
        [{"role": "system", "content": "Look at <image>."}, *TURN],
        "misplaced <image>",
        "<image> stands in a message of the system, but models here see images of the user alone; put it into a",
    ),
    (
        "prompt",
        [*TURN, {"role": "assistant", "content": "<image>"}, *TURN],
        "misplaced <image>",
        "in a message of the assistant",
    ),
    *(
        ("prompt", f"{mark}\nRed?", "prompt in a chat template", f"the prompt begins with {mark.strip()!r}, so that it")
        for mark in (" <|im_start|>", "<s>[INST]", "<bos><start_of_turn>", "<|start_header_id|>", "<|user|>")
    ),
    (
        "prompt",
        [{"role": "system", "content": "<|im_start|>"}, *TURN],
        "prompt in a chat template",
        "would be put into",
    ),
    ("prompt", "<image> Red?", "wrong number of <image>", "1 <image> placeholder(s) and the row 0 image(s)"),
    ("category", ["geo"], "wrong type", "got ['geo'] (list); expected a string"),
    ("id", {"n": 1}, "wrong type", "got {'n': 1} (dict); expected a string"),
]


@pytest.fixture
def bad_images(tmp_path):
    (tmp_path / "corrupt.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    PIL.Image.fromarray(noise).save(tmp_path / "whole.png")
    chunk = bytearray((tmp_path / "whole.png").read_bytes())
    chunk[33:37] = bytes([0, 0, 1, 0])  # the length of the first chunk of pixels: Pillow raises SyntaxError
    (tmp_path / "chunk.png").write_bytes(chunk)
    PIL.Image.fromarray(noise).save(tmp_path / "whole.jpg")
    whole = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    PIL.Image.new("F", (2, 2)).save(tmp_path / "depth.tiff")
    PIL.Image.new("1", (20_000, 10_000)).save(tmp_path / "bomb.png")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "long.png").write_bytes(png(size=(201, 1)))
    return tmp_path


@pytest.mark.parametrize(("column", "value", "reason", "message"), BAD, ids=[f"{b[0]}-{b[2]}" for b in BAD])
def test_a_bad_value_costs_its_row_only(bad_images, caplog, column, value, reason, message):
    file = write_lines(bad_images / "r.jsonl", [GOOD, {**GOOD, "id": "bad", column: value}, GOOD])
    rows = load_rows(file)
    assert rows.dataset["answer"][:] == ["a", "a"]
    (problem,) = rows.problems
    row_id = "r-1" if column == "id" else "bad"
    assert problem == RowProblem(1, row_id, column, reason, problem.message)
    assert message in problem.message
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"1 of 3 rows cannot be used and were left out (1 × {reason})" in warning
    assert f"row 1 (id '{row_id}'), column '{column}': {reason}: " in warning
    with pytest.raises(DataError) as raised:
        load_rows(file, on_error="raise")
    assert raised.value.problems == rows.problems
    assert str(problem) in str(raised.value)


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        ([b""], "unreadable image"),  # such as a download that failed
        ([{"bytes": b"", "path": None}], "unreadable image"),
        ([png(), b""], "unreadable image"),
        ([png(), None], "missing image"),
        ([{"bytes": png(), "path": None}, {"bytes": None, "path": None}], "missing image"),
    ],
)
def test_an_image_without_bytes_costs_its_row(images, reason):
    rows = [{"prompt": "p", "images": value, "answer": "a"} for value in (images, [])]
    loaded = load_rows(Dataset.from_list(rows))
    assert [(one.row, one.column, one.reason) for one in loaded.problems] == [(0, "images", reason)]
    with pytest.raises((ValueError, OSError)):
        images_of(rows[0])


def test_empty_bytes_beside_a_path_are_no_image_of_their_own(tmp_path):
    (tmp_path / "a.png").write_bytes(png(size=(4, 3)))
    file = tmp_path / "r.parquet"
    Dataset.from_list([{"prompt": "p", "images": [{"bytes": b"", "path": "a.png"}], "answer": "a"}]).to_parquet(file)
    assert load_rows(file).dataset[0]["images"][0].size == (4, 3)
    (tmp_path / "a.png").write_bytes(png(size=(5, 3)))
    os.utime(tmp_path / "a.png", (1, 1))
    assert load_rows(file).dataset[0]["images"][0].size == (5, 3)  # its file belongs to the key of the kept rows
    (tmp_path / "a.png").unlink()
    with pytest.raises(DataError, match="missing image file"):
        load_rows(file)


@pytest.mark.parametrize(
    ("changes", "reason", "column"),
    [
        ({"answer": "C", "choices": AB}, "letter not among the choices", "answer"),
        ({"answer": "z", "choices": AB}, "answer not among the choices", "answer"),
        ({"answer": "0", "choices": AB}, "answer is a number", "answer"),
        ({"answer": "A or B", "choices": AB}, "answer not among the choices", "answer"),
        ({"answer": "A", "choices": ["C", "A", "B"]}, "letter and text of two choices", "answer"),
        ({"answer": ["(A)", "B"], "choices": ["B", "A"]}, "letter and text of two choices", "answer"),
        ({"answer": 1, "choices": AB}, "answer is a number", "answer"),  # an index? from 0 or from 1?
        (
            {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "p"}]},
            "two system messages",
            "prompt",
        ),
    ],
)
def test_values_that_contradict_each_other(tmp_path, changes, reason, column):
    file = write_lines(tmp_path / "r.jsonl", [GOOD, {**GOOD, **changes}])
    (problem,) = load_rows(file, system_prompt="s").problems
    assert (problem.row, problem.column, problem.reason) == (1, column, reason)


def test_a_row_reports_all_its_problems_and_none_left_is_an_error(tmp_path):
    file = write_lines(tmp_path / "r.jsonl", [{"problem": "", "image": "no.png", "solution": ""}] * 12)
    with pytest.raises(DataError, match="r: 12 of 12 rows cannot be used") as raised:
        load_rows(file)
    assert [(p.row, p.column) for p in raised.value.problems[:4]] == [
        (0, "image"),
        (0, "problem"),
        (0, "solution"),
        (1, "image"),
    ]
    assert str(raised.value).endswith("… and 16 more")  # 36 problems, 20 of them listed


# ---- images become RGB ----


def test_images_reach_the_trainer_in_rgb(tmp_path):
    expected = make_images(tmp_path)
    rows = [{"prompt": "p", "image": name, "answer": "a", "id": name} for name in expected]
    dataset = load_rows(write_lines(tmp_path / "r.jsonl", rows), on_error="raise").dataset
    dataset.to_parquet(tmp_path / "saved.parquet")
    again = load_dataset("parquet", data_files=str(tmp_path / "saved.parquet"), split="train")
    for row in [*dataset, *again]:
        (image,) = row["images"]
        assert (image.mode, image.size) == ("RGB", (2, 1)), row["id"]
        assert [image.getpixel((x, 0)) for x in range(2)] == expected[row["id"]], row["id"]


def test_several_images_in_a_cell_of_csv_are_a_list_written_as_text(tmp_path):
    for name, color in (("a.png", "red"), ("b 2.png", "blue"), ("[1]", "lime")):
        (tmp_path / name).write_bytes(png(color))
    cells = ["['a.png', 'b 2.png']", '["b 2.png"]', "[]", "[1]", "['a.png', None]"]
    lines = [f'"p","{cell.replace(chr(34), chr(34) * 2)}",3' for cell in cells]
    (tmp_path / "r.csv").write_text("\n".join(["prompt,images,answer", *lines]))
    rows = load_rows(tmp_path / "r.csv")
    colors = [[image.getpixel((0, 0)) for image in images] for images in rows.dataset["images"]]
    assert colors == [[(255, 0, 0), (0, 0, 255)], [(0, 0, 255)], []]
    assert [(one.row, one.reason) for one in rows.problems] == [(3, "wrong type"), (4, "missing image")]


def test_an_image_of_several_frames_costs_its_row_and_a_photograph_with_a_preview_does_not(tmp_path):
    names = make_frames(tmp_path)
    first, second = PIL.Image.new("RGB", (2, 2), "red"), PIL.Image.new("RGB", (2, 2), "blue")
    saved(first, tmp_path / "camera.mpo", save_all=True, append_images=[second])
    rows = [{"prompt": "p", "image": name, "answer": "a", "id": name} for name in [*names, "camera.mpo"]]
    loaded = load_rows(write_lines(tmp_path / "r.jsonl", rows))
    assert loaded.dataset["id"][:] == ["camera.mpo"]
    assert [(one.id, one.reason) for one in loaded.problems] == [(name, "several frames") for name in names]
    assert all("it has 2 frames or pages, of which" in one.message for one in loaded.problems)


def test_only_images_that_must_change_are_stored_anew(tmp_path):
    names = list(make_images(tmp_path))
    rows = [{"prompt": "p", "image": name, "answer": "a", "id": name} for name in names]
    dataset = load_rows(write_lines(tmp_path / "r.jsonl", rows)).dataset
    stored = dataset.cast_column("images", datasets.List(datasets.Image(decode=False)))
    changed = {row["id"] for row in stored if row["images"][0]["bytes"] is not None}
    assert changed == {
        "rgba.png", "rgba.webp", "palette-transparent.png", "palette.gif", "ink.png", "ink.gif", "grey-alpha.png",
        "deep.png",
    }  # fmt: skip
