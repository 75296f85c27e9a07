"""Micro-batches by tokens: bounded passes, as many in every process, and the update of any other micro-batches."""

import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from processes import outcomes
from support import (
    ParityGrader,
    adapo_config,
    adapo_trainer,
    assert_weights,
    changed_weights,
    drawn_rows,
    full_but,
    weights_of,
)
from test_padding import DropsEveryThird

from trl_mmreason.training.token_bound import _of_all_parts, batches_by_tokens, loss_by_parts, split_by_tokens

BOUND = 160


@pytest.mark.parametrize(
    ("most", "at_least", "expected"),
    [
        (12, 1, [[1], [2, 3], [0]]),  # 10; (2 + 4) · 2 = 12; 3
        (13, 1, [[1], [2, 3], [0]]),  # (2 + 4) · 3 = 18
        (30, 1, [[1, 2, 3], [0]]),  # (2 + 8) · 3 = 30
        (5, 1, [[1], [2], [3], [0]]),  # longer rows stand alone
        (40, 1, [[1, 2, 3, 0]]),
        (40, 3, [[1], [2], [3, 0]]),
        (40, 9, [[1], [2], [3], [0]]),
    ],
)
def test_batches_hold_as_many_rows_as_fit(most, at_least, expected):
    assert batches_by_tokens([(2, 1), (2, 8), (2, 4), (1, 3)], most, at_least) == expected


def test_every_row_is_in_one_batch_within_the_bound():
    draw = random.Random(0)
    for _ in range(200):
        sizes = [(draw.randint(1, 9), draw.randint(0, 30)) for _ in range(draw.randint(1, 20))]
        most, at_least = draw.randint(1, 200), draw.randint(1, 25)
        batches = batches_by_tokens(sizes, most, at_least)
        assert sorted(row for batch in batches for row in batch) == list(range(len(sizes)))
        assert len(batches) >= min(at_least, len(sizes))
        for batch in batches:
            width = max(sizes[row][0] for row in batch) + max(sizes[row][1] for row in batch)
            assert len(batch) == 1 or len(batch) * width <= most


def test_a_metric_of_parts_is_that_of_one_pass():
    counts = [[6, 2, 0], [2, 2, 0], [4, 0, 0]]  # of three parts, of which the last has no token: all, and of two turns
    assert _of_all_parts("kl", [1.0, 5.0], counts) == [2.0]  # (6 · 1 + 2 · 5) / 8
    assert _of_all_parts("kl_t1", [1.0, 5.0], counts) == [3.0]
    assert _of_all_parts("kl_t2", [1.0], counts) == [1.0]
    assert _of_all_parts("clip_ratio/low_min", [0.25, 0.5], counts) == [0.25]
    assert _of_all_parts("clip_ratio/high_max", [0.25, 0.5], counts) == [0.5]
    assert _of_all_parts("another", [7.0], counts) == [7.0]


class TwoProcesses:
    """The other of two processes has so many batches."""

    num_processes, device = 2, "cpu"

    def __init__(self, other):
        self.other = other

    def gather(self, own):
        return torch.cat([own, torch.tensor([self.other])])


@pytest.mark.parametrize(("other", "expected"), [(1, [[0, 1]]), (2, [[0], [1]]), (4, [[0], [1], [1], [1]])])
def test_there_are_as_many_passes_as_in_the_process_that_has_most(other, expected):
    parts, own = split_by_tokens([(1, 2), (1, 1)], 10, TwoProcesses(other))
    assert (parts, own) == (expected, min(len(expected), 2))


def gathered_by_parts():
    """What a process gathers of each part, as TRL does of rows' clipped ratios, with bounds of ten tokens."""
    accelerator, gathered = Accelerator(cpu=True), []
    lengths = torch.tensor([[8, 1, 1, 1], [4, 4, 4, 4]][accelerator.process_index])  # and prompts of one token
    mask = (torch.arange(8) < lengths.unsqueeze(1)).long()
    rows = {"completion_mask": mask, "tool_mask": mask, "prompt_mask": torch.ones(4, 1, dtype=torch.long)}
    model = torch.nn.Linear(1, 1)

    def loss_of(model, part):
        gathered.append(accelerator.gather(part["completion_mask"].sum(1).float()).tolist())
        assert accelerator.gather(torch.tensor(1.0)).tolist() == [1.0, 1.0]
        return model.weight.sum() * len(part["completion_mask"])

    metrics = {"train": defaultdict(list)}
    trainer = SimpleNamespace(accelerator=accelerator, loss_type="grpo", max_turns=1, _metrics=metrics, _mode="train")
    loss_by_parts(trainer, model, rows, 10, loss_of)
    return {"gathered": gathered, "metrics": dict(metrics["train"])}


def test_parts_of_processes_may_have_different_numbers_of_rows():
    for found in outcomes(gathered_by_parts, 2):
        present = [[value for value in part if value == value] for part in found["gathered"]]
        assert present == [[8, 4, 4], [1, 1, 1, 4, 4]]  # one row here and two there, then three and two
        assert {len(part) for part in found["gathered"]} == {8}


class Counts(DropsEveryThird):
    """Keeps the rows and columns of each pass, and whether it leads to gradients."""

    def __init__(self, *args, **kwargs):
        self.passes = []
        super().__init__(*args, **kwargs)
        self.passes.clear()  # those of the check at the start

    def count(self, model, args, inputs):
        super().count(model, args, inputs)
        self.passes.append((*inputs["input_ids"].shape, torch.is_grad_enabled()))


def trained(model, folder, **settings):
    shared = {"optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0, "beta": 0.04, "num_generations": 4}
    shared |= {"filter_zero_advantage": False, "max_steps": 2, "num_iterations": 2}
    args = adapo_config(folder, **shared, **settings)
    rows = Dataset.from_list(drawn_rows(24))
    trainer = Counts(model, args=args, train_dataset=rows, grader=ParityGrader())
    before = weights_of(trainer.model)
    trainer.train()
    assert changed_weights(trainer.model, before)
    return trainer


@pytest.mark.parametrize(
    "settings",
    full_but(
        {"loss_type": "grpo"},
        [{"loss_type": name} for name in ("grpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")]
        + [{"loss_type": "grpo", "importance_sampling_level": "sequence"}],
    ),
    ids=lambda settings: "-".join(settings.values()),
)
def test_the_update_is_that_of_micro_batches_by_rows(settings, checkpoints, tmp_path):
    """With rewards, filters and KL of AdaPO, on rows with one image, two or none, and two updates from a rollout."""
    model = checkpoints("qwen2_5_vl")
    by_rows = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    by_tokens = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    one = trained(model, tmp_path / "one", **by_rows, **settings)
    other = trained(model, tmp_path / "other", **by_tokens, max_tokens_per_micro_batch=BOUND, **settings)
    assert_weights(other.model, one.model, atol=1e-6)
    taught = [[rows * columns for rows, columns, gradients in each.passes if gradients] for each in (one, other)]
    assert len(taught[1]) < len(taught[0])
    scored = [rows * columns for rows, columns, gradients in other.passes[-2 * len(taught[1]) :] if not gradients]
    assert scored
    assert max(*taught[1], *scored) <= BOUND
    whole = trained(model, tmp_path / "whole", **by_tokens, **settings)  # in one pass
    for first, second in zip(whole.state.log_history, other.state.log_history, strict=True):
        for name in ("kl", "kl_t1", "kl_t2", "entropy") if "kl_t1" in first else ():
            assert second[name] == pytest.approx(first[name], rel=1e-3, abs=1e-6), name
    assert other.state.log_history[0]["micro_batches"] == len(taught[1]) / 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"loss_type": "bnpo"}, "the loss is a mean over the micro-batch"),
        ({"top_entropy_quantile": 0.5}, "the loss is a mean over the micro-batch"),
    ],
)
def test_a_loss_of_a_whole_micro_batch_is_refused(settings, reason, checkpoints, rows, tmp_path):
    with pytest.raises(ValueError, match=f"^AdaPOTrainer: max_tokens_per_micro_batch=64, but {reason}"):
        adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, max_tokens_per_micro_batch=64, **settings)


def test_a_bound_without_tokens_is_refused(tmp_path):
    with pytest.raises(ValueError, match="max_tokens_per_micro_batch=0, expected 1 or more"):
        adapo_config(tmp_path, max_tokens_per_micro_batch=0)
