"""What was made of rows stands beside them, and their pictures are copied as they are stored."""

import pytest
from datasets import Dataset, Features, Image, List, Value

from trl_mmreason.miniature.tasks import make_dataset
from trl_mmreason.sampling.joining import join_source_columns


def picture_rows():
    """Rows with one picture, with two, and without any."""
    (first,), (second,) = make_dataset(["adding"], 2)["images"][:]
    columns = {"id": list("xyz"), "images": [[first], [first, second], []]}
    return Dataset.from_dict(columns, features=Features({"id": Value("string"), "images": List(Image(mode="RGB"))}))


@pytest.mark.parametrize("positions", [[2, 0, 2], [1], [0, 1, 2], []])
def test_what_was_made_of_rows_stands_beside_them(positions, monkeypatch):
    rows = picture_rows()
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
