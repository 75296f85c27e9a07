"""What is exported is what was saved: columns, pictures, parquet, and the Hub by real HTTP against a stub."""

import subprocess
import sys
from pathlib import Path

import pytest
from dataset_hub import DatasetHub
from datasets import Dataset, Features, Image, List, Value, load_dataset
from export_worker import PICTURE_COLUMNS, STAGE, assert_same_samples, picture_rows, sampled
from loopback import serving
from test_hub import TOKEN, client_environment

from trl_mmreason.jobs.export import join_source_columns, to_dataset
from trl_mmreason.jobs.store import Record, Store

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "answers.sqlite") as store:
        store.open_stage(STAGE, {})
        yield store


def save(store, *payloads, start=0):
    store.save(STAGE, [Record(f"row-{start + i:04}", 0, "done", payload) for i, payload in enumerate(payloads)])


# -------------------------------------------------------------------------------------------------------------- columns


def test_missing_columns_are_none_and_failed_units_are_left_out(store, caplog):
    save(store, {"text": "a", "score": None}, {"text": "b", "score": 1}, {"text": "c", "score": 0.5, "tags": ["x"]}, {})
    store.save(STAGE, [Record("row-0009", 0, "failed", {}, "no")])
    dataset = to_dataset(store, STAGE)
    kinds = {"id": Value("string"), "index": Value("int64"), "text": Value("string"), "score": Value("float64")}
    assert dataset.features == Features({**kinds, "tags": List(Value("string"))})
    assert dataset.to_list() == [
        {"id": "row-0000", "index": 0, "text": "a", "score": None, "tags": None},
        {"id": "row-0001", "index": 0, "text": "b", "score": 1.0, "tags": None},
        {"id": "row-0002", "index": 0, "text": "c", "score": 0.5, "tags": ["x"]},
        {"id": "row-0003", "index": 0, "text": None, "score": None, "tags": None},
    ]
    assert "answers: 1 units failed and are left out" in caplog.text


def test_a_column_that_appears_late_or_widens_late_is_kept(store):
    count = 2500  # more than are surveyed or written at once
    save(store, *[{"score": 1, "logprobs": [], "turns": [{"role": "user"}]}] * count)
    save(store, {"score": 0.5, "logprobs": [-0.1], "turns": [{"role": "a", "tool": 1}], "late": "x"}, start=count)
    dataset = to_dataset(store, STAGE)
    assert len(dataset) == count + 1
    first, last = dataset[0], dataset[count]
    del first["id"], last["id"]
    assert first == {"index": 0, "score": 1.0, "logprobs": [], "turns": [{"role": "user", "tool": None}], "late": None}
    assert last == {"index": 0, "score": 0.5, "logprobs": [-0.1], "turns": [{"role": "a", "tool": 1}], "late": "x"}


@pytest.mark.parametrize("distance", [1, 2000])
def test_types_that_no_column_can_hold_are_named(store, distance):
    save(store, *[{"score": 1}] * distance, {"score": "high"})
    with pytest.raises(ValueError, match="the values of 'score' in stage 'answers' do not fit into one column"):
        to_dataset(store, STAGE)


def test_a_stage_without_results_is_an_empty_dataset(store):
    assert to_dataset(store, STAGE).column_names == ["id", "index"]
    joined = to_dataset(store, STAGE, picture_rows())
    assert len(joined) == 0
    assert joined.column_names == ["id", "index", "prompt", "images", "answer", "choices"]


def test_an_export_shows_what_was_saved_since_the_last_one(store):
    save(store, {"text": "a"})
    assert to_dataset(store, STAGE).to_list() == [{"id": "row-0000", "index": 0, "text": "a"}]
    save(store, {"text": "b"}, start=1)
    assert list(to_dataset(store, STAGE)["text"]) == ["a", "b"]


# ----------------------------------------------------------------------------------------------------------------- rows


def test_samples_are_joined_with_their_rows_and_pictures(store):
    rows = picture_rows()
    sampled(store, rows)
    shuffled = rows.shuffle(seed=1)
    dataset = to_dataset(store, STAGE, shuffled)
    names = ["id", "index", "prompt", "images", "answer", "choices", "text", "logprobs"]
    assert dataset.column_names == names
    assert {name: dataset.features[name] for name in PICTURE_COLUMNS} == PICTURE_COLUMNS
    assert_same_samples(dataset, rows)


def test_pictures_are_copied_as_they_are_stored(store, monkeypatch):
    rows = picture_rows()
    sampled(store, rows)

    def refuse(self, *_, **__):
        raise AssertionError("a picture was decoded")

    monkeypatch.setattr(Image, "decode_example", refuse)
    dataset = to_dataset(store, STAGE, rows)
    undecoded = List(Image(mode="RGB", decode=False))
    stored = {row["id"]: row["images"] for row in rows.cast_column("images", undecoded)}
    for sample in dataset.cast_column("images", undecoded):
        assert sample["images"] == stored[sample["id"]]


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


def test_samples_of_other_rows_are_left_out_with_a_warning(store, caplog):
    rows = picture_rows()
    sampled(store, rows)
    some = rows.select([1, 3, 5])
    dataset = to_dataset(store, STAGE, some)
    assert "answers: 6 samples are left out, whose ids are not in rows" in caplog.text
    assert set(dataset["id"]) == set(some["id"])
    assert [sample["text"] for sample in dataset] == [f"{sample['id']} {sample['index']}" for sample in dataset]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([{"id": "row-0000"}], TypeError, "rows is a list; expected a Dataset"),
        (Dataset.from_list([{"name": "a"}]), ValueError, "expected one named 'id'"),
        (Dataset.from_list([{"id": "a"}, {"id": "a"}]), ValueError, "not unique"),
        (Dataset.from_list([{"id": "row-0000", "text": "a"}]), ValueError, r"\['text'\] are columns of rows and"),
    ],
)
def test_rows_that_cannot_be_joined_are_refused(store, rows, error, message):
    save(store, {"text": "a"})
    with pytest.raises(error, match=message):
        to_dataset(store, STAGE, rows)


# ------------------------------------------------------------------------------------------------------ parquet and Hub


def test_parquet_gives_back_what_was_exported(store, tmp_path):
    rows = picture_rows()
    sampled(store, rows)
    dataset = to_dataset(store, STAGE, rows)
    file = tmp_path / "samples.parquet"
    dataset.to_parquet(file)
    again = load_dataset("parquet", data_files=str(file), split="train", cache_dir=str(tmp_path))
    assert again.features == dataset.features
    assert_same_samples(again, rows)


@pytest.mark.full
def test_the_hub_gives_back_what_was_pushed(tmp_path):
    """By a process of its own, as the client reads its settings when it is imported."""
    with serving(DatasetHub("tester", TOKEN)) as hub:
        worker = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("export_worker.py")), str(tmp_path / "pushed.sqlite")],
            env=client_environment(hub.url, tmp_path / "home"),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert worker.returncode == 0, worker.stderr
    assert "data/train-00000-of-00001.parquet" in hub.repos["tester/samples"].files
    assert [request for request in hub.unknown if "tester" in request] == []
