"""Results joined with the rows that they were made of, whose images are copied as they are stored."""

import pytest
from datasets import Dataset, Features, Image, Json, List, Value

from trl_mmreason.jobs.source_rows import JoinedRows, join_source_columns
from trl_mmreason.miniature.tasks import make_problems, problems_dataset

pytestmark = pytest.mark.usefixtures("own_cache")

MESSAGES = List({"role": Value("string"), "content": Value("string")})
OF_TEXT = {"answer": Value("string"), "choices": Json(), "id": Value("string")}
IMAGE_COLUMNS = Features({"prompt": MESSAGES, "images": List(Image(mode="RGB")), **OF_TEXT})


def image_rows():
    """Rows with one image, with two, and without any; some with choices, each with letters of its own."""
    problems = make_problems(["adding", "counting"], 6, seed=0)
    rows = problems_dataset(problems).select_columns(["prompt", "answer", "id"]).to_list()
    choices = [None, {"A": "7", "B": "8"}, {"C": "null"}, None, {"A": "x"}, None]
    for number, row in enumerate(rows):
        row["choices"] = choices[number]
        row["images"] = [[problems[number].image], [problems[number].image, problems[number - 1].image], []][number % 3]
    return Dataset.from_list(rows, features=IMAGE_COLUMNS).select_columns(list(IMAGE_COLUMNS))


@pytest.mark.parametrize("positions", [[2, 0, 2], [1], [0, 1, 2], []])
def test_what_was_made_of_rows_stands_beside_them(positions, monkeypatch):
    rows = image_rows()
    images = rows.with_format("arrow")["images"][:].to_pylist()
    made = Dataset.from_dict({"text": list("abc")[: len(positions)]}, features=Features({"text": Value("string")}))
    monkeypatch.setattr(Image, "decode_example", None)  # would raise
    monkeypatch.setattr(Image, "encode_example", None)
    joined = join_source_columns(made, rows, positions, ["id", "text", "images", "none"])
    assert joined.column_names == ["id", "text", "images"]
    assert joined["id"][:] == [rows["id"][k] for k in positions]
    assert joined["text"][:] == made["text"][:]
    assert joined.with_format("arrow")["images"][:].to_pylist() == [images[k] for k in positions]
    assert joined.features["images"] == rows.features["images"]
    assert join_source_columns(made, rows, positions, ["text", "none"]).column_names == ["text"]


def test_joined_rows_have_their_own_columns_and_those_of_their_rows():
    rows = Dataset.from_dict({"id": ["a", "b"], "answer": ["1", "2"], "images": [None, None]})
    steps = JoinedRows(rows, [1, 0, 1], {"id": ["b0", "a0", "b1"], "step": [0, 0, 1]})
    assert steps[2] == {"id": "b1", "answer": "2", "images": None, "step": 1}
    assert steps.select_columns(["answer", "id"]).to_dict() == {"answer": ["2", "1", "2"], "id": ["b0", "a0", "b1"]}
    assert steps.select_columns(["id"]).to_dict() == {"id": ["b0", "a0", "b1"]}
    assert steps.select_columns(["answer"]).to_dict() == {"answer": ["2", "1", "2"]}
