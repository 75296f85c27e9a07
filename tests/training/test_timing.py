"""Where the time of a run goes."""

from __future__ import annotations

import itertools

import pytest
import torch
from datasets import Dataset
from support import ParityGrader, adapo_trainer

from trl_mmreason.training.timing import Stopwatch, device_clock, format_seconds


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_part_within_another_takes_its_time_from_that():
    clock = Clock()
    watch = Stopwatch(clock)
    with watch.part("rest"):
        clock.now += 1
        with watch.part("update"):
            clock.now += 2
            with watch.part("scoring"):
                clock.now += 4
                with watch.part("generation"):
                    clock.now += 8
                with watch.part("rewards"):
                    clock.now += 16
            clock.now += 32
        with watch.part("update"):
            clock.now += 64
    assert watch.seconds == {"generation": 8, "rewards": 16, "scoring": 4, "update": 2 + 32 + 64, "rest": 1}


def test_a_part_that_fails_is_counted():
    clock = Clock()
    watch = Stopwatch(clock)

    def fail() -> None:
        with watch.part("rewards"):
            clock.now += 3
            raise KeyError

    with watch.part("rest"):
        with pytest.raises(KeyError):
            fail()
        clock.now += 1
    assert watch.seconds == {"rewards": 3, "rest": 1}


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_clock_waits_for_a_gpu_that_is_in_use(on_gpu, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: on_gpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(1))
    assert device_clock() <= device_clock()
    assert len(waited) == 2 * on_gpu


def test_the_table_adds_up():
    lines = format_seconds({"generation": 6.0, "update": 1.5, "rest": 0.5}).splitlines()
    assert [line.split() for line in lines] == [
        ["time", "seconds", "share"],
        ["generation", "6.0", "75%"],
        ["update", "1.5", "19%"],
        ["rest", "0.5", "6%"],
        ["whole", "8.0", "100%"],
    ]


@pytest.mark.full
def test_a_run_logs_each_part_and_prints_the_table(checkpoints, rows, tmp_path, capsys, monkeypatch):
    """By a clock that counts how often it is read: every part has begun and ended, and the table holds all of it."""
    ticks = itertools.count()
    monkeypatch.setattr("trl_mmreason.training.timing.Stopwatch", lambda: Stopwatch(lambda: float(next(ticks))))
    settings = {"max_steps": 2, "logging_steps": 1, "disable_tqdm": False, "eval_strategy": "steps", "eval_steps": 2}
    arguments = {"grader": ParityGrader(), "eval_dataset": Dataset.from_list(rows)}
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, trainer_kwargs=arguments, **settings)
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(steps) == 2
    for entry in steps:
        assert all(entry[f"time/{part}"] > 0 for part in ("generation", "rewards", "scoring", "update"))
    (measured,) = (entry for entry in trainer.state.log_history if "eval_time/generation" in entry)
    assert measured["eval_time/rewards"] > 0
    table = capsys.readouterr().out.split("time  ", 1)[1].splitlines()[1:]
    seconds = {line.rsplit(maxsplit=2)[0]: float(line.split()[-2]) for line in table if line.endswith("%")}
    parts = ["generation", "rewards", "scoring", "update"]
    assert {*parts, *(f"evaluation: {part}" for part in parts[:3]), "rest", "whole"} == seconds.keys()
    assert sum(seconds.values()) == 2 * seconds["whole"] == 2 * (next(ticks) - 1)
