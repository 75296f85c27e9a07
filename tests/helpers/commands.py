"""What the tests of several commands share: questions in a file, and the rows that were written."""

import json

import datasets
from PIL import Image


def write_questions(folder, questions):
    """A file with these questions, id → text, each with an image whose green is its number; the answer is 7."""
    rows = []
    for index, (id_, text) in enumerate(questions.items()):
        path = folder / f"{index}.png"
        Image.new("RGB", (4, 4), (0, index, 0)).save(path)
        rows.append({"id": id_, "question": text, "image": str(path), "solution": "7"})
    path = folder / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def rows_of(parquet):
    """What a command wrote."""
    return datasets.Dataset.from_parquet(str(parquet), cache_dir=f"{parquet}.cache")
