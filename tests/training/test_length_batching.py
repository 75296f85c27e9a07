"""Length batching in supervised training: padding is left out, and the update stays as it is."""

import pytest
import torch
from datasets import Dataset, IterableDataset
from every_trainer import LEARNT, make
from PIL import Image
from support import (
    FAMILY_NAMES,
    assert_weights,
    changed_weights,
    drawn_rows,
    full_but,
    losses_of,
    weights_of,
)

from trl_mmreason.training.length_batching import ROW_SIZES, Layout, collate_rows, sort_rows

TRAINERS = ["OffPolicyRewardTrainer", "ReflectionSFTTrainer", "ProcessRewardTrainer"]
SORTING = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
SGD = {"optim": "sgd", "learning_rate": 0.01, "max_grad_norm": 0.0}


def long_and_short(name, n=16):
    """Rows with one image, two images or none, one of them wide, and completions of very different lengths."""
    rows = drawn_rows(n)
    rows[3]["images"] = [Image.new("RGB", (168, 56), "red")]
    return [
        {
            **{column: row[column] for column in ("prompt", "images")},
            **LEARNT[name](number if name == "ProcessRewardTrainer" else number**2 % 61),
            "behavior_logps": [-1.0 - number],
        }
        for number, row in enumerate(rows)
    ]


def trainer_for(name, model, folder, **settings):
    rows = settings.pop("rows", None) or Dataset.from_list(long_and_short(name))
    return make(name, model, folder, rows=rows, **{**SORTING, **settings})


def collate_one(rows):
    """A row of so many tokens; an image of two patches in those of even length."""
    (length,) = rows
    row = {"input_ids": torch.full((1, length), length), "attention_mask": torch.ones(1, length, dtype=torch.long)}
    row["labels"] = torch.full((1, length // 2), length)
    return row if length % 2 else {**row, "pixel_values": torch.full((2, 3), length)}


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_longest_rows_of_an_optimizer_step_come_first(side):
    layout = Layout(-1, side, others={"labels": -100})
    batches = [collate_rows(collate_one, layout, lengths) for lengths in ([3, 9, 4], [8, 1, 7], [5])]
    assert batches[2]["input_ids"].tolist() == [[5] * 5]
    made = sort_rows(batches, layout)
    assert [batch["input_ids"].amax(1).tolist() for batch in made] == [[9, 8, 7], [5, 4, 3], [1]]
    padded = {
        "left": [[5] * 5, [-1] + [4] * 4, [-1] * 2 + [3] * 3],
        "right": [[5] * 5, [4] * 4 + [-1], [3] * 3 + [-1] * 2],
    }
    assert made[1]["input_ids"].tolist() == padded[side]
    assert made[1]["attention_mask"].sum(1).tolist() == [5, 4, 3]
    assert [batch["pixel_values"][:, 0].tolist() for batch in made[:2]] == [[8, 8], [4, 4]]
    assert "pixel_values" not in made[2]  # its row has no image
    assert [row[row != -100].tolist() for row in made[1]["labels"]] == [[5, 5], [4, 4], [3]]


def test_images_that_lie_side_by_side_in_one_tensor_stay_with_their_rows():
    """Of the row with t tokens, (1, 3, t) pixels of value t."""

    def collate(rows):
        return {**collate_one(rows), "pixel_values": torch.full((1, 3, rows[0]), rows[0])}

    layout = Layout(-1, others={"labels": -100}, axes={"pixel_values": 2})
    made = sort_rows([collate_rows(collate, layout, lengths) for lengths in ([1, 3], [2])], layout)
    assert [batch["pixel_values"][0, 0].tolist() for batch in made] == [[3, 3, 3, 2, 2], [1]]


@pytest.mark.parametrize("family", full_but("qwen2_5_vl", FAMILY_NAMES))
@pytest.mark.parametrize("name", TRAINERS)
def test_rows_by_themselves_make_the_batch_that_the_collator_makes(name, family, checkpoints, tmp_path):
    """Whole, and taken apart and joined again in another order."""
    own = {"importance_sampling": "sequence", "sequence_reduction": "sum"} if name == "OffPolicyRewardTrainer" else {}
    trainer = trainer_for(name, checkpoints(family), tmp_path, **own)
    rows = list(trainer.train_dataset)[:6]
    layout = trainer.batch_layout()
    batch = collate_rows(trainer.data_collator, layout, rows)
    lengths = batch["attention_mask"].sum(1).tolist()
    order = sorted(range(6), key=lambda row: -lengths[row])
    assert order != sorted(order)
    (sorted_batch,) = sort_rows([batch], layout)
    assert batch.pop(ROW_SIZES).keys() == batch.keys()
    for found, expected in (
        (batch, trainer.data_collator(rows)),
        (sorted_batch, trainer.data_collator([rows[row] for row in order])),
    ):
        assert found.keys() == expected.keys() >= {"labels", "pixel_values"}
        for field, value in expected.items():
            torch.testing.assert_close(found[field], value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", full_but("OffPolicyRewardTrainer", TRAINERS))
def test_the_update_is_that_of_rows_in_any_order(name, checkpoints, tmp_path, monkeypatch):
    """Both get the rows of an optimizer step; what is sorted pads less."""
    found, computed = {}, {}
    for way in ("as they come", "sorted"):
        trainer = trainer_for(name, checkpoints("qwen2_5_vl"), tmp_path / way, **SGD)
        before, sizes = weights_of(trainer.model), []
        if way == "as they come":
            monkeypatch.setattr(trainer, "_sorts_rows", lambda: False)
        trainer.model.register_forward_pre_hook(
            lambda model, args, kwargs, sizes=sizes: sizes.append(kwargs["input_ids"].shape), with_kwargs=True
        )
        trainer.train()
        assert changed_weights(trainer.model, before)
        found[way], computed[way] = trainer, sizes
    assert [shape[0] for shape in computed["sorted"]] == [2] * 8  # two steps of four micro-batches
    assert computed["sorted"][:4] == sorted(computed["sorted"][:4], reverse=True)
    padded = {way: sum(shape.numel() for shape in shapes) for way, shapes in computed.items()}
    assert padded["sorted"] < 0.95 * padded["as they come"]
    assert losses_of(found["sorted"]) == pytest.approx(losses_of(found["as they come"]), rel=1e-6)
    assert_weights(found["sorted"].model, found["as they come"].model, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "sorts"),
    [
        ({}, True),
        ({"gradient_accumulation_steps": 1}, False),  # no other micro-batch to share rows with
        ({"per_device_train_batch_size": 1}, False),  # no padding
        ({"train_sampling_strategy": "batch_rebalance"}, False),  # sizes follow from lengths
        ({"accelerator_config": {"dispatch_batches": True}}, False),  # cuts batches by their first dimension
        ({"trainer_kwargs": {"compute_loss_func": lambda outputs, labels, num_items_in_batch: outputs.loss}}, False),
    ],
)
def test_where_rows_are_sorted(settings, sorts, checkpoints, tmp_path):
    trainer = trainer_for("ReflectionSFTTrainer", checkpoints("qwen2_5_vl"), tmp_path, **settings)
    assert trainer._sorts_rows() == sorts


@pytest.mark.parametrize(("said", "value"), [("loss_is_scaled_for_ga", False), ("aux_loss_enabled", True)])
def test_a_loss_that_is_a_mean_over_the_micro_batch_leaves_rows_as_they_come(said, value, checkpoints, tmp_path):
    """As a subclass says of its own, and TRL of the auxiliary loss of a mixture of experts."""
    trainer = trainer_for("ReflectionSFTTrainer", checkpoints("qwen2_5_vl"), tmp_path)
    setattr(trainer, said, value)
    assert not trainer._sorts_rows()


@pytest.mark.parametrize("kind", ["stream", "collator"])
def test_what_nobody_can_take_apart_stays_as_it_comes(kind, checkpoints, tmp_path):
    name, path = "ReflectionSFTTrainer", checkpoints("qwen2_5_vl")
    if kind == "stream":
        stream = IterableDataset.from_generator(lambda: iter(long_and_short(name)))
        trainer = trainer_for(name, path, tmp_path, rows=stream)
    else:
        plain = trainer_for(name, path, tmp_path / "plain")
        trainer = trainer_for(name, path, tmp_path, trainer_kwargs={"data_collator": plain.data_collator})
    assert ROW_SIZES not in next(iter(trainer.get_train_dataloader()))
    trainer.train()
    assert len(losses_of(trainer)) == 2
