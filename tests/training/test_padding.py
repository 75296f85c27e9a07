"""Rows of similar length share a micro-batch, and padding is left out: scores and updates are TRL's own."""

from functools import partial

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from support import (
    ParityGrader,
    adapo_config,
    adapo_trainer,
    assert_weights,
    drawn_rows,
    full_but,
    prepared_batch,
    weights_of,
    whole,
)
from trl import GRPOTrainer

from trl_mmreason import AdaPOTrainer
from trl_mmreason.training import grpo
from trl_mmreason.training.padding import carries_loss, cut_to_longest, model_inputs, score_by_length, sort_by_length

LENGTHS = [3, 9, 4, 8, 2, 7, 5, 6]


def micro_batches(lengths, size):
    """Rows of these lengths, one token of it the prompt's; with what TRL keeps beside them."""
    masks = [(torch.arange(9) < length).long() for length in lengths]
    return [
        {
            "prompt_mask": torch.stack(masks[start : start + size])[:, :1],
            "completion_mask": torch.stack(masks[start : start + size])[:, 1:],
            "fields": [{"image": {"pixels": torch.tensor([length])}} for length in lengths[start : start + size]],
            "num_items_in_batch": torch.tensor(7),
            "tool_mask": None,
        }
        for start in range(0, len(lengths), size)
    ]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (4, [[9, 8], [7, 6], [5, 4], [3, 2]]),
        (2, [[9, 8], [4, 3], [7, 6], [5, 2]]),
        (1, [[9, 3], [8, 4], [7, 2], [6, 5]]),
    ],
)
def test_the_longest_rows_of_an_optimizer_step_come_first(window, expected):
    made = sort_by_length(micro_batches(LENGTHS, 2), window, Accelerator(cpu=True))
    assert [(each["prompt_mask"].sum(1) + each["completion_mask"].sum(1)).tolist() for each in made] == expected
    for each, lengths in zip(made, expected, strict=True):
        assert [row["image"]["pixels"].tolist() for row in each["fields"]] == [[length] for length in lengths]
        assert (each["num_items_in_batch"], each["tool_mask"]) == (7, None)


def test_rows_that_carry_no_loss_come_last():
    """The lengths are 9, 8, 7 and 6; the filter has left nothing of the first two."""
    (batch,) = micro_batches([9, 8, 7, 6], 4)
    batch["tool_mask"] = torch.tensor([0, 0, 1, 1]).unsqueeze(1).expand_as(batch["completion_mask"])
    (made,) = sort_by_length([batch], 1, Accelerator(cpu=True))
    assert (made["prompt_mask"].sum(1) + made["completion_mask"].sum(1)).tolist() == [7, 6, 9, 8]
    assert carries_loss(made).tolist() == [True, True, False, False]
    assert carries_loss({**made, "tool_mask": None}).all()


@pytest.mark.parametrize(
    ("rows", "scored"), [([0, 1, 0, 1], [1, 3]), ([0, 0, 0, 0], [3]), ([1, 1, 1, 1], [0, 1, 2, 3])]
)
@pytest.mark.parametrize("otherwise", [None, torch.full((4, 2), -5.0)])
def test_some_rows_are_scored_alone(rows, scored, otherwise):
    """A row's log-probabilities are its number here; the last one is the shortest."""
    ids = torch.arange(4).unsqueeze(1).expand(4, 4)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]])
    weight, passes = torch.ones((), requires_grad=True), []

    def score(fields, ids, mask, kept, **_):
        passes.append(sorted(ids[:, 0].tolist()))
        return ids[:, -kept:] * weight, ids[:, -kept:] * 2.0, None

    asked = {
        "fields": [{"token": {}, "image": {}}] * 4,
        "rows": torch.tensor(rows).bool(),
        "otherwise": otherwise,
        "compute_entropy": True,
    }
    logps, entropies, _ = score_by_length(score, ids, mask, 2, **asked)
    assert passes == [scored]
    rest = 0.0 if otherwise is None else -5.0
    assert logps.tolist() == [[float(row) if row in scored else rest] * 2 for row in range(4)]
    assert entropies.tolist() == [[2.0 * row if row in scored else 0.0] * 2 for row in range(4)]
    logps.sum().backward()
    assert weight.grad == 2 * sum(scored)


def test_columns_that_are_padding_in_every_row_are_cut_away():
    """Two prompts of 1 and 2 tokens of 4, completions of 1 and 2 of 3."""
    mask = torch.tensor([[0, 0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 0]])
    ids = torch.arange(14).view(2, 7)
    ids, mask, kept = cut_to_longest(ids, mask, 3)
    assert kept == 2
    assert ids.tolist() == [[2, 3, 4, 5], [9, 10, 11, 12]]
    assert mask.tolist() == [[0, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize(("multiple", "left", "kept"), [(1, [3, 4, 5, 6], 1), (2, [2, 3, 4, 5, 6, 7], 2)])
def test_columns_stay_a_multiple(multiple, left, kept):
    """Three tokens of a prompt, padded to 6, and one of a completion, padded to 4."""
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 0, 0, 0]])
    ids, _, columns = cut_to_longest(torch.arange(10).view(1, 10), mask, 4, multiple)
    assert (ids.tolist(), columns) == ([left], kept)


def test_passes_are_padded_to_a_multiple_if_that_is_asked_for(checkpoints, rows, tmp_path):
    trainer, widths = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, pad_to_multiple_of=16), []
    batch = prepared_batch(trainer, rows[:8])
    hook = partial(lambda model, args, kwargs: widths.append(kwargs["input_ids"].shape[1]))
    trainer.model.register_forward_pre_hook(hook, with_kwargs=True)
    trainer.compute_loss(trainer.model, batch)
    assert [width % 16 for width in widths] == [0]


def test_fields_stand_where_their_tokens_do_and_images_follow_each_other():
    """The second row has text alone; the first one's completion was masked after its first token."""
    mask = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    image = torch.tensor([[0.5]])
    rows = [{"token": {"types": [1, 2, 3, 4]}, "image": {"pixels": image}}, {"token": {}, "image": {}}]
    found = model_inputs(rows, mask)
    assert found["types"].tolist() == [[0, 1, 2, 3, 0], [0] * 5]
    assert model_inputs([rows[0]] * 2, mask)["pixels"].tolist() == [[0.5], [0.5]]
    assert model_inputs([rows[1]], mask[1:]) == {}


def test_a_column_of_completions_stays():
    """Such as where all completions were cut by the bound, and TRL masks them."""
    mask = torch.tensor([[0, 1, 1, 1, 0, 0]])
    ids, _, kept = cut_to_longest(mask, mask, 2)
    assert (ids.shape[1], kept) == (4, 1)


def test_scores_are_those_of_trl_in_passes_of_any_size(family, checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows)
    batch = prepared_batch(trainer, rows[:8])  # one image, two, none, one, two, none, one, two
    (ids, mask), fields = whole(batch), batch["fields"]
    kept, columns = batch["completion_mask"].shape[1], []

    def score(fields, ids, *args, **kwargs):
        columns.append(ids.numel())
        model = partial(trainer.model, **fields)
        return GRPOTrainer._get_per_token_logps_and_entropies(trainer, model, ids, *args, **kwargs)

    with torch.no_grad():
        expected = score(model_inputs(fields, mask), ids, mask, kept, compute_entropy=True)
        columns.clear()
        for size in (None, 3, 1):
            found = score_by_length(score, ids, mask, kept, size, compute_entropy=True, fields=fields)
            for mine, theirs in zip(found[:2], expected[:2], strict=True):
                assert mine.shape == theirs.shape
                torch.testing.assert_close(
                    mine * batch["completion_mask"], theirs * batch["completion_mask"], atol=1e-5, rtol=0
                )
    assert columns[-8:] == sorted(mask.sum(1).tolist(), reverse=True)  # one row at a time has no padding at all
    assert sum(columns[1:4]) < columns[0] <= ids.numel()


class DropsEveryThird(AdaPOTrainer):
    """AdaPO with a filter more; counts the rows of passes that lead to gradients."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rows = 0
        self.model.register_forward_pre_hook(self.count, with_kwargs=True)

    def count(self, model, args, inputs):
        self.rows += len(inputs["input_ids"]) * torch.is_grad_enabled()

    def score_groups(self, rewards):
        outcome = super().score_groups(rewards)
        outcome.keep[::3] = False
        return outcome


class OfTRL(DropsEveryThird):
    """The same with TRL's own micro-batches and forward passes, of all rows."""

    _prepare_inputs = GRPOTrainer._prepare_inputs

    def _get_per_token_logps_and_entropies(self, model, ids, mask, *args, batch_size=None, **kwargs):
        model = partial(model, **model_inputs(self._fields, mask))
        flags = {name: value for name, value in kwargs.items() if value is not None}
        outputs = GRPOTrainer._get_per_token_logps_and_entropies(self, model, ids, mask, *args, **flags)
        self._policy_logps = outputs[0]
        return outputs


@pytest.mark.parametrize(
    "case", full_but(("grpo", 4), [("grpo", 4), ("dapo", 4), ("dapo", 2), ("dr_grpo", 2), ("grpo", 8)])
)
def test_an_update_is_that_of_trls_own_micro_batches(case, checkpoints, tmp_path):
    """With rewards, filters and KL of AdaPO; one, two and half a generation batch in a step."""
    loss_type, accumulated = case
    settings = {"per_device_train_batch_size": 2, "steps_per_generation": 4, "num_generations": 4, "max_steps": 2}
    settings |= {"gradient_accumulation_steps": accumulated, "loss_type": loss_type, "optim": "sgd", "beta": 0.04}
    settings |= {"learning_rate": 1.0, "max_grad_norm": 0.0, "filter_zero_advantage": False}
    found, computed = [], []
    for trainer_class in (DropsEveryThird, OfTRL):
        args = adapo_config(tmp_path, **settings)
        rows = Dataset.from_list(drawn_rows(24))
        trainer = trainer_class(checkpoints("qwen2_5_vl"), args=args, train_dataset=rows, grader=ParityGrader())
        before = weights_of(trainer.model)
        trainer.train()
        found.append(weights_of(trainer.model))
        computed.append(trainer.rows)
    assert any((found[0][name] != weight).any() for name, weight in before.items())
    assert computed[0] < computed[1]
    assert_weights(found[0], found[1], atol=1e-5)


@pytest.mark.parametrize(
    "settings", full_but({"loss_type": "bnpo"}, [{"loss_type": "bnpo"}, {"top_entropy_quantile": 0.5}])
)
def test_a_loss_that_depends_on_the_micro_batch_keeps_trls(settings, checkpoints, rows, tmp_path, monkeypatch):
    def sort(*_):
        raise AssertionError("The rows were shared out anew.")

    monkeypatch.setattr(grpo, "sort_by_length", sort)
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, max_steps=1, **settings)
    trainer.train()
    with pytest.raises(AssertionError, match="shared out"):
        adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, max_steps=1).train()
