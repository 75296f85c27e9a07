"""Supervised training: rows of like length share a micro-batch, padding is left out, and the update stays as it is."""

import pytest
import torch
from datasets import IterableDataset
from PIL import Image
from support import (
    FAMILY_NAMES,
    SUPERVISED_RUN,
    assert_weights,
    changed_weights,
    drawn_rows,
    full_but,
    losses_of,
    maker,
    sft_trainer,
    weights_of,
)

from trl_mmreason import OffPolicyRewardConfig, OffPolicyRewardTrainer
from trl_mmreason.like_length import join_rows, sort_rows

RUN = {**SUPERVISED_RUN, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
off_policy_trainer = maker(OffPolicyRewardTrainer, OffPolicyRewardConfig, **RUN)
REFLECTION = "<think>a</think> <answer>7</answer> <reflection>{}</reflection> <answer>7</answer>"


def long_and_short(n=16):
    """Rows with one picture, two pictures or none, one of them wide, and completions of very different lengths."""
    rows = drawn_rows(n)
    rows[3]["images"] = [Image.new("RGB", (168, 56), "red")]
    return [
        {
            **{name: row[name] for name in ("prompt", "images")},
            "completion": REFLECTION.format("so " * (1 + number**2 % 61)),
            "reward": [1.0, -0.5, 2.0][number % 3],
            "behavior_logps": [-1.0 - number],
        }
        for number, row in enumerate(rows)
    ]


def batch_of(lengths):
    """A micro-batch of rows of these lengths, as they are collated one by one."""
    return [{"input_ids": torch.full((1, length), length), "reward": torch.tensor([length])} for length in lengths]


def test_the_longest_rows_of_an_optimizer_step_come_first():
    made = sort_rows([batch_of([3, 9, 4]), batch_of([8, 2, 7]), batch_of([5])], {"input_ids": -1})
    assert [batch["reward"].tolist() for batch in made] == [[9, 8, 7], [5, 4, 3], [2]]
    assert made[1]["input_ids"].tolist() == [[5] * 5, [4] * 4 + [-1], [3] * 3 + [-1] * 2]


@pytest.mark.parametrize("family", full_but("qwen2_5_vl", FAMILY_NAMES))
def test_joined_rows_are_what_the_collator_makes_of_them(family, checkpoints, tmp_path):
    settings = {"importance_sampling": "sequence", "sequence_reduction": "sum"}
    trainer = off_policy_trainer(checkpoints(family), tmp_path, long_and_short(), **settings)
    rows = list(trainer.train_dataset)[:6]
    expected = trainer.data_collator(rows)
    padding = {"input_ids": trainer.processing_class.tokenizer.pad_token_id, **trainer._padding}
    found = join_rows([trainer.data_collator([row]) for row in rows], padding)
    assert found.keys() == expected.keys() >= {"labels", "pixel_values", "rewards", "behavior_logps", "shift_labels"}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("make", full_but(off_policy_trainer, [off_policy_trainer, sft_trainer]))
def test_the_update_is_that_of_rows_in_any_order(make, checkpoints, tmp_path, monkeypatch):
    """Both get the rows of an optimizer step; what is sorted pads less."""
    found, computed = {}, {}
    for way in ("as they come", "sorted"):
        trainer = make(checkpoints("qwen2_5_vl"), tmp_path / way, long_and_short(), **RUN)
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
    assert padded["sorted"] < 0.9 * padded["as they come"]
    assert losses_of(found["sorted"]) == pytest.approx(losses_of(found["as they come"]), rel=1e-6)
    assert_weights(found["sorted"].model, found["as they come"].model, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "sorts"),
    [
        ({}, True),
        ({"gradient_accumulation_steps": 1}, False),  # no other micro-batch to share rows with
        ({"per_device_train_batch_size": 1}, False),  # no padding
        ({"label_smoothing_factor": 0.1}, False),  # which averages over a micro-batch
        ({"trainer_kwargs": {"compute_loss_func": lambda outputs, labels, num_items_in_batch: outputs.loss}}, False),
        ({"trainer_kwargs": {"data_collator": list}}, False),  # nobody knows what it makes of a row
    ],
)
def test_where_rows_are_sorted(settings, sorts, checkpoints, tmp_path):
    trainer = sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, long_and_short(), **{**RUN, **settings})
    assert trainer._sorts_rows() == sorts


def test_a_stream_stays_as_it_comes(checkpoints, tmp_path):
    rows = IterableDataset.from_generator(lambda: iter(long_and_short()))
    trainer = sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, **RUN)
    assert not trainer._sorts_rows()
    trainer.train()
    assert len(losses_of(trainer)) == 2
