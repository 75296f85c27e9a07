"""examples/chain_of_step.py as users start it: every stage with a tiny model, again, and with what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from datasets import Dataset
from PIL import Image
from test_configs import load_example
from trl import ModelConfig

from trl_mmreason.baselines.patterns import INSTRUCTION
from trl_mmreason.chain_of_step.template import has_token
from trl_mmreason.miniature.models import build_model
from trl_mmreason.stages import override_sections

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "dataset_name": "miniature/adding",
    "train_rows": 12,
    "eval_dataset_name": "miniature/adding",
    "eval_split": "new_pictures",
    "eval_rows": 4,
    "max_completion_length": 110,
    "sampling_batch_size": 32,
    "dtype": "float32",
    "common": {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "seed": 0}
    | {"save_strategy": "no", "logging_steps": 1, "disable_tqdm": True},
    "drawn_chains": 24,
    "sft": {"num_train_epochs": 140, "learning_rate": 2e-3, "per_device_train_batch_size": 12, "warmup_steps": 5}
    | {"freeze_vision_encoder": False},
    "drawn_labels": {"problems": 4, "paths": 2, "monte_carlo": 3, "continuations": 2},
    "prm": {"num_train_epochs": 1, "learning_rate": 1e-3, "per_device_train_batch_size": 4},
    "dpo_questions": 4,
    "dpo": {"rounds": 2, "num_paths": 4, "pair_threshold": 0.0, "per_device_train_batch_size": 4},
    "grpo": {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "top_p": 0.95},
    "search_questions": 2,
    "search": {"n": 2},
}


def start(folder, *options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_DATASETS_CACHE": str(folder.parent / "cache")}
    command = [sys.executable, str(ROOT / "examples/chain_of_step.py"), "--config", str(folder.parent / "small.yaml")]
    return subprocess.run(
        [*command, "--output_dir", str(folder), *map(str, options)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain_of_step") / "out"
    model, processor = build_model("qwen2_5_vl", "test", in_steps=True)
    model.save_pretrained(folder.parent / "base")
    processor.save_pretrained(folder.parent / "base")
    settings = {"model_name_or_path": str(folder.parent / "base"), **SETTINGS}
    (folder.parent / "small.yaml").write_text(yaml.safe_dump(settings))
    done = start(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done


def lines_of_table(stdout):
    lines = stdout.splitlines()
    return lines[lines.index("accuracy in percent [95 % interval]") :]


def test_every_stage_leaves_its_result_and_the_table_names_all(whole_run):
    folder, done = whole_run
    table = lines_of_table(done.stdout)
    names = ["SFT", "DPO, round-1", "DPO, round-2", "GRPO", "seen", "unseen"]
    assert [
        next(name for name in names if line.startswith(name)) for line in table if line.startswith(tuple(names))
    ] == names
    for path in ("sft/model", "prm/model", "dpo/round-2/policy", "grpo/model"):
        assert (folder / path / "model.safetensors").exists(), path
    for picture in ("dpo/rounds.png", "grpo/curves.png", "search/scaling.png"):
        with Image.open(folder / picture) as image:
            image.verify()
    assert [entry["round"] for entry in json.loads((folder / "dpo/rounds.json").read_text())] == [0, 1, 2]
    scaling = json.loads((folder / "search/scaling.json").read_text())
    assert [point["n"] for point in scaling["accuracy"]["step_beam"]] == [1, 2]


def test_the_table_is_kept(whole_run):
    folder, done = whole_run
    assert (folder / "table.txt").read_text().splitlines() == lines_of_table(done.stdout)


def test_labels_come_from_both_ways(whole_run):
    """Of the training chains three are labelled by Monte Carlo, as many as there are; the judge labels the others."""
    folder, _ = whole_run
    rows = Dataset.from_parquet(str(folder / "labels_train.parquet"))
    assert len(rows) > 3
    assert all(len(labels) >= 1 for labels in rows["step_labels"])
    halves = [label for labels in rows["step_labels"][-3:] for label in labels]
    assert set(halves) <= {0.0, 0.5, 1.0}  # shares of two continuations
    assert {label for labels in rows["step_labels"][:-3] for label in labels} <= {0.0, 1.0}


def test_again_it_does_nothing_but_what_was_killed_and_says_the_same(whole_run):
    """The two stages were killed behind their training: what is measured then is the trained model, not its base."""
    folder, done = whole_run
    metrics = folder / "prm" / "metrics.json"
    known = json.loads(metrics.read_text())
    metrics.unlink()
    (folder / "grpo" / "curves.png").unlink()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("model.safetensors")}
    again = start(folder)
    assert again.returncode == 0, again.stderr[-3000:]
    assert (folder / "grpo" / "curves.png").exists()
    found = json.loads(metrics.read_text())
    names = [name for name in known if name.endswith(("accuracy", "auroc", "loss"))]
    assert {name: found[name] for name in names} == pytest.approx({name: known[name] for name in names}, abs=1e-5)
    assert lines_of_table(again.stdout) == lines_of_table(done.stdout)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("model.safetensors")} == before


def test_a_finished_stage_with_other_settings_is_refused(whole_run):
    folder, _ = whole_run
    other = start(folder, "--stages", "grpo", "--grpo.learning_rate", "1e-4")
    assert other.returncode != 0
    assert "grpo.learning_rate: (absent) → 0.0001" in other.stderr


def test_chains_that_are_not_learnt_are_said_and_not_saved(whole_run, tmp_path):
    (tmp_path / "small.yaml").write_text((whole_run[0].parent / "small.yaml").read_text())
    missed = start(tmp_path / "out", "--stages", "sft", "--sft_accuracy", "1.0", "--sft.num_train_epochs", 5)
    assert missed.returncode != 0
    assert "expected 1.00. Give more chains or epochs." in missed.stderr
    assert not (tmp_path / "out/sft/model").exists()


def test_an_option_of_a_section_is_put_there():
    example = load_example("chain_of_step")
    args = example.ChainOfStepArguments("miniature/adding", dpo={"rounds": 3, "learning_rate": "1e-6"})
    assert args.dpo["learning_rate"] == 1e-6  # YAML takes 1e-6 for a text
    override_sections(args, ["--dpo.rounds", "1", "--grpo.use_vllm", "true", "--sft.learning_rate", "1e-5"])
    assert (args.dpo["rounds"], args.grpo["use_vllm"], args.sft["learning_rate"]) == (1, True, 1e-5)
    for given in (["--dpo.rounds"], ["--rounds", "1"], ["--nothing.rounds", "1"], ["dpo.rounds", "1"]):
        with pytest.raises(ValueError, match="is unknown"):
            override_sections(args, given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"process_reward": "outcome"},  # there is no labelling, no process reward model and no search without steps
        {"stages": "sft,dpo"},  # pairs by its scores
        {"stages": "sft,grpo", "process_reward": "outcome"},
    ],
)
def test_a_pattern_without_steps_has_no_stage_that_scores_them(given):
    example = load_example("chain_of_step")
    with pytest.raises(ValueError, match="pattern='no_reason' has no steps to score.* Fix: --stages sft,dpo --process"):
        example.ChainOfStepArguments("miniature/adding", pattern="no_reason", **given)
    with pytest.raises(ValueError, match="pattern='cot', expected one of chain_of_step, direct_prompt, no_reason"):
        example.ChainOfStepArguments("miniature/adding", pattern="cot", **given)


def without_steps(example, folder, pattern):
    given = {name: value for name, value in SETTINGS.items() if name not in ("dtype", "grpo", "prm", "drawn_labels")}
    given |= {"stages": "sft,dpo", "process_reward": "outcome", "output_dir": str(folder / "out"), "pattern": pattern}
    given |= {"max_completion_length": 4, "sft": {**SETTINGS["sft"], "num_train_epochs": 16}, "dpo_questions": 8}
    given["dpo"] = {"rounds": 1, "num_paths": 32, "per_device_train_batch_size": 4}
    return example.ChainOfStepArguments(**given)


def test_an_arm_without_steps(tmp_path, capsys):
    """Data, supervised training, DPO by outcome and evaluation of Table 4's No Reason, in small."""
    example = load_example("chain_of_step")
    model, processor = build_model("qwen2_5_vl", "test", in_steps=True)
    model.save_pretrained(tmp_path / "base")
    processor.save_pretrained(tmp_path / "base")
    args = without_steps(example, tmp_path, "no_reason")
    example.main(args, ModelConfig(str(tmp_path / "base"), dtype="float32"))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[-2:]] == ["SFT", "DPO,"]
    pairs = Dataset.from_parquet(str(tmp_path / "out/dpo/round-1/pairs.parquet"))
    assert len(pairs)
    assert set(pairs["chosen_score"]) == {1.0}
    assert all(chosen[0]["content"][0].isdigit() for chosen in pairs["chosen"])  # the answer comes at once
    assert not any(has_token(chosen[0]["content"]) for chosen in pairs["chosen"])


def test_direct_prompt_is_asked_in_training_and_evaluation(tmp_path):
    example = load_example("chain_of_step")
    pipeline = example.Pipeline(without_steps(example, tmp_path, "direct_prompt"), ModelConfig("base"))
    asked = [prompt[-1]["content"] for rows in (pipeline.train, pipeline.evaluation) for prompt in rows["prompt"]]
    assert len(asked) == 12 + 4
    assert {question.rpartition("\n")[2] for question in asked} == {INSTRUCTION}


def test_an_unknown_stage_is_named():
    example = load_example("chain_of_step")
    with pytest.raises(ValueError, match="there is no 'ppo'"):
        example.ChainOfStepArguments("miniature/adding", stages="sft,ppo")


@pytest.mark.slow
def test_the_miniature_learns(tmp_path):
    """The shipped configuration, about twenty minutes: every stage does what it is there for."""
    script, config = ROOT / "examples/chain_of_step.py", ROOT / "configs/chain_of_step/miniature.yaml"
    command = [sys.executable, str(script), "--config", str(config), "--output_dir", str(tmp_path / "out")]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    metrics = json.loads((tmp_path / "out/prm/metrics.json").read_text())
    assert metrics["eval_unseen_step_auroc"] > 0.9
    assert metrics["eval_unseen_answer_auroc"] > 0.8
    rounds = [entry["eval"] for entry in json.loads((tmp_path / "out/dpo/rounds.json").read_text())]
    assert rounds[3]["accuracy"] > rounds[0]["accuracy"] + 0.05
    assert rounds[3]["trajectory_score"] > rounds[0]["trajectory_score"] + 0.05
    scaling = json.loads((tmp_path / "out/search/scaling.json").read_text())["accuracy"]
    last = {method: curve[-1]["value"] for method, curve in scaling.items()}
    assert last["pass_at_n"] > last["best_of_n"] > scaling["best_of_n"][0]["value"]
