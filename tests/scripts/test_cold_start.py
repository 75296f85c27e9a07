"""Supervised start: where it ends, and that processes share it."""

import gc

import pytest
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from processes import one_and_two
from torch.nn.parallel import DistributedDataParallel

from trl_mmreason.adapo.recipe import two_answers
from trl_mmreason.chain_of_step.miniature import PLAIN_ANSWERS
from trl_mmreason.miniature.lessons import Lessons, demonstrations
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import plain
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.scripts import cold_start as module
from trl_mmreason.scripts.cold_start import cold_start, teach


def test_it_is_measured_every_so_many_steps_until_the_target_is_reached(tmp_path):
    model, processor = build_model("qwen2_5_vl", "test")
    rows = demonstrations(make_problems(["adding"], 8), PLAIN_ANSWERS)
    measured = [0.2, 0.5, 0.9, 1.0]
    every = {"measure_every_steps": 4, "target_accuracy": 0.8}
    path = teach(model, processor, rows, tmp_path / "taught", measure=lambda _: measured.pop(0), **every)
    assert measured == [1.0]
    assert (path / "model.safetensors").exists()
    assert Accelerator(cpu=True, mixed_precision="bf16").mixed_precision == "bf16"  # the next stage's own
    AcceleratorState._reset_state()


@pytest.mark.full
def test_it_is_measured_after_the_last_step_too(tmp_path, monkeypatch, capsys):
    """Five steps, looked at every four: after the fourth and after the last."""
    model, processor = build_model("qwen2_5_vl", "test")
    monkeypatch.setattr(module, "_MAX_STEPS", 5)
    rows = demonstrations(make_problems(["adding"], 8), PLAIN_ANSWERS)
    measured = [0.2, 0.9]
    every = {"measure_every_steps": 4, "target_accuracy": 0.8}
    teach(model, processor, rows, tmp_path / "taught", measure=lambda _: measured.pop(0), **every)
    assert not measured
    assert "Supervised start, until 80% are right: " in capsys.readouterr().err  # the label of its bar


def two_steps(_, folder, __):
    """What two steps of supervised training add to the weights."""
    model, processor = build_model("qwen2_5_vl", "test")
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    rows = demonstrations(make_problems(["adding"], 64), PLAIN_ANSWERS)
    searched = []

    def measure(_):
        wrapped = [each for each in gc.get_objects() if type(each) is DistributedDataParallel]
        searched.extend(each.find_unused_parameters for each in wrapped)
        return 1.0

    teach(model, processor, rows, folder, measure=measure, measure_every_steps=2, target_accuracy=0.5)
    moved = torch.cat([(weight - before[name]).flatten() for name, weight in model.named_parameters()])
    return {"world_size": PartialState().num_processes, "moved": moved.detach(), "searched": searched}


@pytest.mark.full
def test_two_processes_share_each_batch(tmp_path):
    alone, pair = one_and_two(two_steps, None, tmp_path, 2)
    assert alone["moved"].abs().max() > 4e-5
    assert [part["searched"] for part in pair] == [[False], [False]]  # for weights that no row reaches
    for part in pair:  # all but a few: Adam makes whole steps of rounding errors where a gradient is 0
        assert torch.isclose(part["moved"], alone["moved"], rtol=0, atol=2e-6).float().mean() > 0.95


@pytest.mark.full
def test_it_saves_what_reached_the_target_and_refuses_what_did_not(tmp_path, monkeypatch):
    model, processor = build_model("qwen2_5_vl", "test")
    monkeypatch.setattr(module, "_MAX_STEPS", 4)  # the real bound is 1500
    settings = {"lessons": two_answers("Check it."), "problems": 40}
    cold_start(model, processor, ["adding"], tmp_path / "reached", target_accuracy=0.0, **settings)
    assert (tmp_path / "reached" / "model.safetensors").exists()
    with pytest.raises(RuntimeError, match="after 4 steps, expected 1.00"):
        cold_start(model, processor, ["adding"], tmp_path / "missed", target_accuracy=1.0, **settings)
    assert not (tmp_path / "missed" / "model.safetensors").exists()


def test_far_below_the_target_few_rows_are_asked(monkeypatch, tmp_path):
    """Target 0.5: 0.24 of 50 rows is all that is measured, at 0.25 all 200 rows are."""
    asked = []
    found = iter([0.24, 0.25, 0.6])
    monkeypatch.setattr(module, "greedy_accuracy", lambda _, __, rows, **___: asked.append(len(rows)) or next(found))
    monkeypatch.setattr(module, "teach", lambda *_, measure, **__: (measure(None), measure(None)))
    lessons = Lessons(plain, answer_tokens=16)
    measured = cold_start(None, None, ["adding"], tmp_path, lessons=lessons, target_accuracy=0.5, problems=4)
    assert measured == (0.24, 0.6)
    assert asked == [50, 50, 200]
