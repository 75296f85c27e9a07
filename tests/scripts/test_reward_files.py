"""Reward functions that a recipe names: what is loaded, that they pay, and what is refused."""

import json

import pytest
from example_runs import save_base, train_here

from trl_mmreason.chain_of_step.recipe import ChainOfStepArguments
from trl_mmreason.scripts.refusals import WrongArgument
from trl_mmreason.scripts.reward_files import load_rewards
from trl_mmreason.scripts.sections import DataArguments

FILE = """
LOADED = []
LOADED.append(1)


def short(completion_ids, **columns):
    return [1.0 / len(ids) for ids in completion_ids]


def spread(completion_ids, **columns):
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def loaded(completions, **columns):
    return [float(len(LOADED))] * len(completions)
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "my_rewards.py").write_text(FILE)
    return tmp_path / "my_rewards.py"


def test_functions_of_one_file_which_is_executed_once(file):
    short, loaded = load_rewards([f"{file}:short", f"{file}:loaded"])
    assert short(completion_ids=[[1, 2], [1, 2, 3, 4]]) == [0.5, 0.25]
    assert loaded(completions=["a", "b"]) == [1.0, 1.0]
    assert load_rewards([]) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}", "expected file.py:function, such as my_rewards.py:short"),
        ("{file}:", "expected file.py:function"),
        ("no.py:short", "there is no file no.py"),
        ("{file}:shrt", "has no function shrt; did you mean `short`?"),
        ("{file}:x", "has no function x; it has short, spread, loaded"),
        ("{file}:LOADED", "LOADED in .* is .*, expected a function"),
    ],
)
def test_what_is_no_reward_is_refused(file, name, message):
    with pytest.raises(WrongArgument, match=message.replace("?", "\\?")):
        load_rewards([name.format(file=file)])


def test_two_of_one_name_are_refused(file, tmp_path):
    (tmp_path / "other.py").write_text(FILE)
    with pytest.raises(WrongArgument, match="two functions are called short"):
        load_rewards([f"{file}:short", f"{tmp_path}/other.py:short"])


def test_a_recipe_names_one_or_several_and_staged_methods_none():
    assert DataArguments("x", reward_funcs="a.py:f").reward_funcs == ["a.py:f"]
    with pytest.raises(ValueError, match=r"reward_funcs=\['a.py:f'\] is for methods of one stage"):
        ChainOfStepArguments("x", eval_dataset_name="y", reward_funcs=["a.py:f"])


def test_a_named_reward_pays_in_training(file, tmp_path, monkeypatch, own_cache):
    rows = [{"prompt": f"{n}+1?", "answer": str(n + 1)} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {
        "model_name_or_path": save_base(tmp_path / "base"),
        "dataset_name": tmp_path / "rows.jsonl",
        "reward_funcs": f"{file}:spread",
        "output_dir": tmp_path / "out",
        "use_cpu": "true",
        "bf16": "false",
        "max_steps": 1,
        "logging_steps": 1,
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 8,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": "true",
    }
    train_here(monkeypatch, "grpo", *(part for name, value in settings.items() for part in (f"--{name}", value)))
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    logged = next(entry for entry in history if "rewards/spread/mean" in entry)
    accuracy, spread = logged["rewards/accuracy_reward/mean"], logged["rewards/spread/mean"]
    assert 0 < spread < 1
    assert logged["reward"] == pytest.approx(accuracy + spread, abs=1e-5)
