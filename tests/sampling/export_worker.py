"""Rows with pictures, what is sampled from them, and a process that pushes it: `python export_worker.py PATH`."""

import sys

from datasets import Dataset, Features, Image, Json, List, Value, load_dataset

from trl_mmreason.jobs.export import to_dataset
from trl_mmreason.jobs.store import Record, Store
from trl_mmreason.miniature.tasks import make_problems, problems_dataset

STAGE = "answers"
MESSAGES = List({"role": Value("string"), "content": Value("string")})
OF_TEXT = {"answer": Value("string"), "choices": Json(), "id": Value("string")}
PICTURE_COLUMNS = Features({"prompt": MESSAGES, "images": List(Image(mode="RGB")), **OF_TEXT})


def picture_rows():
    """Rows with one picture, with two, and without any; some with choices, each with letters of its own."""
    problems = make_problems(["adding", "counting"], 6, seed=0)
    rows = problems_dataset(problems).select_columns(["prompt", "answer", "id"]).to_list()
    choices = [None, {"A": "7", "B": "8"}, {"C": "null"}, None, {"A": "x"}, None]
    for number, row in enumerate(rows):
        row["choices"] = choices[number]
        row["images"] = [[problems[number].image], [problems[number].image, problems[number - 1].image], []][number % 3]
    return Dataset.from_list(rows, features=PICTURE_COLUMNS).select_columns(list(PICTURE_COLUMNS))


def sampled(store, rows):
    units = [(id_, index) for id_ in rows["id"] for index in range(2)]
    payloads = [{"text": f"{id_} {index}", "logprobs": [-0.5] * index} for id_, index in units]
    store.save(STAGE, [Record(*unit, "done", payload) for unit, payload in zip(units, payloads, strict=True)])


def pixels(images):
    return [(image.mode, image.size, image.tobytes()) for image in images]


def assert_same_samples(dataset, rows):
    """Each sample has its own row's prompt, pictures, answer and choices."""
    by_id = {row["id"]: row for row in rows}
    assert list(dataset["id"]) == [id_ for id_ in sorted(by_id) for _ in range(2)]
    assert {len(row["images"]) for row in rows} == {0, 1, 2}
    for sample in dataset:
        row = by_id[sample["id"]]
        assert sample["text"] == f"{sample['id']} {sample['index']}"
        assert sample["logprobs"] == [-0.5] * sample["index"]
        assert pixels(sample["images"]) == pixels(row["images"])
        for key in ("prompt", "answer", "choices"):
            assert sample[key] == row[key]


def push(path):
    """Push to the Hub that the environment names, and load again."""
    rows = picture_rows()
    with Store(path) as store:
        store.open_stage(STAGE, {})
        sampled(store, rows)
        dataset = to_dataset(store, STAGE, rows)
    dataset.push_to_hub("tester/samples")
    again = load_dataset("tester/samples", split="train")
    assert again.features == dataset.features
    assert_same_samples(again, rows)


if __name__ == "__main__":
    push(sys.argv[1])
