"""Rows of a rollout that are read once, though TRL asks for them many times."""

import pytest
from datasets import Dataset, Image, List
from every_trainer import DPO, TRAINERS, make, rows_of, saved_base
from support import adapo_trainer, drawn_rows, full_but, train_on_anything, untimed
from transformers import Trainer

from trl_mmreason.training.read_once import RowsReadOnce


@pytest.fixture
def read(monkeypatch):
    """Counts the images that are decoded."""
    decoded = []
    decode = Image.decode_example

    def counting(self, value, *args, **kwargs):
        decoded.append(value)
        return decode(self, value, *args, **kwargs)

    monkeypatch.setattr(Image, "decode_example", counting)
    return decoded


@pytest.fixture
def stored():
    """Four rows: with one image, with two, with none, with one."""
    return Dataset.from_list(drawn_rows(4)).cast_column("images", List(Image()))


def test_a_batch_is_what_the_data_set_gives(stored):
    places = [2, 2, 0, 0, 1, 1]
    assert RowsReadOnce(stored).__getitems__(places) == stored.__getitems__(places)
    assert RowsReadOnce(stored)[3] == stored[3]
    assert len(RowsReadOnce(stored)) == 4


def test_a_row_is_read_once_a_batch_and_equal_batches_in_a_row_once(stored, read):
    stored.__getitems__([1])
    twice = len(read)  # as often as `datasets` decodes the two images of one row
    read.clear()
    rows = RowsReadOnce(stored)
    for _ in range(3):
        rows.__getitems__([1, 1, 1, 2, 2, 2])
    assert len(read) == twice
    rows.__getitems__([2, 2, 2, 1, 1, 1])
    assert len(read) == 2 * twice


def test_changing_a_row_changes_no_other(stored):
    rows = RowsReadOnce(stored)
    first, second = rows.__getitems__([0, 0])
    assert first["images"][0] is second["images"][0]
    first["answer"] = "another"
    again, _ = rows.__getitems__([0, 0])
    assert second["answer"] == again["answer"] == stored[0]["answer"]


def test_the_list_of_places_may_be_changed_by_its_owner():
    rows, places = RowsReadOnce(Dataset.from_list([{"n": 0}, {"n": 1}])), [0, 0]
    rows.__getitems__(places)
    places[:] = [1, 1]
    assert rows.__getitems__(places) == [{"n": 1}, {"n": 1}]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_gets_the_batches_of_trls(workers, checkpoints, stored, tmp_path):
    settings = {"steps_per_generation": 2, "num_iterations": 2, "dataloader_num_workers": workers}
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, stored, **settings)
    found = [list(trainer.get_train_dataloader()), list(trainer.get_eval_dataloader(stored))]
    ours, type(trainer)._get_dataloader = type(trainer)._get_dataloader, Trainer._get_dataloader
    try:
        expected = [list(trainer.get_train_dataloader()), list(trainer.get_eval_dataloader(stored))]
    finally:
        type(trainer)._get_dataloader = ours
    assert found == expected
    assert found[0][0] == found[0][3]  # two micro-batches, each trained on twice


def test_a_trainer_decodes_a_rollouts_images_once(checkpoints, stored, read, tmp_path):
    """Four groups of four rows are asked for, in each of the four steps that are trained on them."""
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, stored, steps_per_generation=2, num_iterations=2)
    read.clear()
    stored.__getitems__([0, 1, 2, 3])
    once = len(read)
    read.clear()
    assert [len(batch) for batch in trainer.get_train_dataloader()] == [16] * 4
    assert 0 < len(read) == once


@pytest.mark.parametrize("name", full_but("ReflectionSFTTrainer", [each for each in TRAINERS if each != DPO]))
def test_a_transform_may_read_any_column(name, tmp_path):
    """It gives the images, of a column that trainers do not look at."""
    rows = rows_of(name)
    numbered = rows.remove_columns("images").add_column("number", [*range(len(rows))])
    images = rows["images"][:]
    made = numbered.with_transform(lambda batch: {**batch, "images": [images[each] for each in batch["number"]]})
    base, logged = saved_base("qwen2_5_vl", tmp_path / "base"), []
    for place, each in enumerate((rows, made)):
        trainer = make(name, base, tmp_path / f"{place}", rows=each, max_steps=1, remove_unused_columns=False)
        train_on_anything(trainer)
        logged.append(untimed(trainer.state.log_history[0]))
    assert logged[0] == logged[1]


def test_iterative_dpo_refuses_a_transform(tmp_path):
    rows = rows_of(DPO).with_transform(lambda batch: batch)
    with pytest.raises(ValueError, match="^IterativeDPOTrainer: train_dataset has a transform, .* Fix: apply it with"):
        make(DPO, saved_base("qwen2_5_vl", tmp_path / "base"), tmp_path / "out", rows=rows)
