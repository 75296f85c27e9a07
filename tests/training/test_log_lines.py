"""The line of each log on the console, and where all metrics are."""

import sys

import pytest
from every_trainer import make, saved_base
from transformers import PrinterCallback, TrainerState

from trl_mmreason.training.log_lines import log_line

STATE = TrainerState(global_step=5, max_steps=100)
MANY = {f"completions/other_{number}": 1.0 for number in range(40)}


@pytest.mark.parametrize(
    ("logs", "chosen", "line"),
    [
        (
            {"kl": 0.0013814, "reward": -1.1992, "loss": 5.25e-6, "acc_t2": 0.07969, "step_time": 1.25, **MANY},
            None,
            "step 5/100  loss 5.25e-06  reward -1.2  acc_t2 0.0797  kl 0.00138  1.25 s",
        ),
        ({"loss": float("nan"), "updates_skipped": 2}, None, "step 5/100  loss nan  updates_skipped 2"),
        (
            {"eval_hard_loss": 0.5, "eval_hard_mine": 0.25, "eval_hard_runtime": 2.0, "epoch": 1.0, **MANY},
            "hard_mine",
            "step 5/100  eval_hard  loss 0.5  mine 0.25",
        ),
        (
            {"eval_loss": 0.5, "eval_mine": 0.25, "eval_runtime": 2.0},
            "eval_mine",
            "step 5/100  eval  loss 0.5  mine 0.25",
        ),
        ({"train_runtime": 7.771, "train_loss": 0.25, "kl": 1.0}, None, "5 steps in 7.77 s, mean loss 0.25"),
        ({"my_own": 3}, None, "step 5/100  my_own 3"),
    ],
)
def test_the_line_has_what_one_reads(logs, chosen, line):
    assert log_line(logs, STATE, chosen) == line


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base("qwen2_5_vl", tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize("disable_tqdm", [False, True])
def test_a_run_shows_a_line_a_log_and_keeps_all_metrics(disable_tqdm, base, tmp_path, capsys):
    asked = {"max_steps": 2, "logging_steps": 1, "disable_tqdm": disable_tqdm, "save_strategy": "no"}
    trainer = make("AdaPOTrainer", base, tmp_path, **asked)
    trainer.train()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    first, second = (entry for entry in trainer.state.log_history if "loss" in entry)
    assert [line.split("  ")[0] for line in lines] == ["step 1/2", "step 2/2"]
    assert f"acc_t2 {first['acc_t2']:.3g}" in lines[0]
    assert f"reward {second['reward']:.3g}" in lines[1]
    assert "rewards/adapo/mean" in first
    assert max(map(len, lines)) < 140


def test_a_printer_of_one_s_own_stays(base, tmp_path, capsys):
    class Mine(PrinterCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            sys.stdout.write(f"mine {list(logs)}\n")

    asked = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no"}
    make("ReflectionSFTTrainer", base, tmp_path, trainer_kwargs={"callbacks": [Mine()]}, **asked).train()
    assert "mine ['loss', 'grad_norm'" in capsys.readouterr().out
