"""examples/chain_of_step.py: every stage with a tiny model, again, and with what it refuses."""

import json
import os
import subprocess
import sys

import pytest
from datasets import Dataset
from example_runs import ROOT, SMALL_COMMON, StagedExample, save_base
from PIL import Image
from trl import ModelConfig

from trl_mmreason.chain_of_step.recipe import ChainOfStepArguments
from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.evaluation.scaling import scaling_curves
from trl_mmreason.scripts.script_parser import ScriptParser

pytestmark = pytest.mark.full

SETTINGS = {
    "train_rows": 12,
    "max_completion_length": 110,
    "sampling_batch_size": 32,
    "common": SMALL_COMMON,
    "drawn_chains": 24,
    "sft": {"num_train_epochs": 140, "learning_rate": 2e-3, "per_device_train_batch_size": 12, "warmup_steps": 5}
    | {"freeze_vision_encoder": False},
    "drawn_labels": {"problems": 4, "held_out": 4, "paths": 2, "monte_carlo": 3, "continuations": 2},
    "prm": {"num_train_epochs": 1, "learning_rate": 1e-3, "per_device_train_batch_size": 4},
    "dpo_questions": 4,
    "dpo": {"warmup_steps": 0, "rounds": 2, "num_paths": 4, "pair_threshold": 0.0, "per_device_train_batch_size": 4},
    "grpo": {
        "max_steps": 1,
        "learning_rate": 0.0,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "top_p": 0.95,
    },
    "search_questions": 2,
    "search": {"n": 2},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("chain_of_step")
    policy = save_base(root / "base", in_steps=True)
    return StagedExample("chain_of_step", root, {"model_name_or_path": policy, **SETTINGS})


def test_every_stage_leaves_its_result_and_the_table_names_all(run):
    table = (run.folder / "evaluation/table.txt").read_text()
    assert table in run.done.stdout
    first, *_ = table.splitlines()
    assert first.split()[-4:] == ["SFT", "DPO-round-1", "DPO-round-2", "GRPO"]
    assert read_evaluation(run.folder / "evaluation/SFT").about["benchmark"] == {"name": "SFT", "title": "SFT"}
    process_reward = (run.folder / "prm/table.txt").read_text()
    assert process_reward in run.done.stdout
    assert [line.split()[0] for line in process_reward.splitlines()[-2:]] == ["seen", "unseen"]
    for path in ("sft/model", "prm/model", "dpo/round-2/policy", "grpo/model"):
        assert (run.folder / path / "model.safetensors").exists(), path
    for file in ("dpo/rounds.png", "grpo/curves.png", "search/compared.png"):
        with Image.open(run.folder / file) as image:
            image.verify()
    assert [entry["round"] for entry in json.loads((run.folder / "dpo/rounds.json").read_text())] == [0, 1, 2]


def searched(folder):
    """The curves of the search stage."""
    return scaling_curves({path.parent.name: read_evaluation(path.parent) for path in folder.glob("*/results.json")})


def test_the_search_compares_both_ways_to_spend_samples(run):
    curves = searched(run.folder / "search")
    assert {name: list(points) for name, points in curves.items()} == {
        name: [1, 2] for name in ("pass@n", "self-consistency", "best of n", "step-beam")
    }
    table = (run.folder / "search/table.txt").read_text()
    assert [line.split()[0] for line in table.splitlines()[-3:]] == ["chains", "beam-1", "beam-2"]


def test_labels_come_from_both_ways(run):
    """Of the training chains three are labelled by Monte Carlo, as many as there are; the judge labels the others."""
    rows = Dataset.from_parquet(str(run.folder / "labels_train.parquet"))
    assert len(rows) > 3
    assert all(len(labels) >= 1 for labels in rows["step_labels"])
    halves = [label for labels in rows["step_labels"][-3:] for label in labels]
    assert set(halves) <= {0.0, 0.5, 1.0}  # shares of two continuations
    assert {label for labels in rows["step_labels"][:-3] for label in labels} <= {0.0, 1.0}


def test_again_it_does_nothing_but_what_was_killed_and_says_the_same(run):
    """The two stages were killed behind their training: what is measured then is the trained model, not its base."""
    metrics = run.folder / "prm" / "eval_results.json"
    known = json.loads(metrics.read_text())
    (run.folder / "prm" / "table.txt").unlink()
    (run.folder / "grpo" / "curves.png").unlink()
    run.assert_done_once()
    assert (run.folder / "grpo" / "curves.png").exists()
    found = json.loads(metrics.read_text())
    names = [name for name in known if name.endswith(("accuracy", "auroc", "loss"))]
    assert {name: found[name] for name in names} == pytest.approx({name: known[name] for name in names}, abs=1e-5)


def test_chains_that_are_not_learnt_are_said_and_not_saved(run, tmp_path):
    pipeline = run.pipeline(tmp_path, "--sft_accuracy", "1.0")
    pipeline.args.sft["num_train_epochs"] = 5
    with pytest.raises(RuntimeError, match=r"expected 1.00. Give more chains or epochs."):
        pipeline.do("sft")
    assert not (tmp_path / "sft/model").exists()


def test_an_option_of_a_section_is_put_there():
    args = ChainOfStepArguments("miniature/adding", stages="dpo", dpo={"rounds": 3, "learning_rate": "1e-6"})
    assert args.dpo["learning_rate"] == 1e-6  # YAML takes 1e-6 for a string
    parser = ScriptParser((ChainOfStepArguments, ModelConfig))
    parser.override_sections(args, ["--dpo.rounds", "1", "--grpo.use_vllm", "true", "--sft.learning_rate", "1e-5"])
    assert (args.dpo["rounds"], args.grpo["use_vllm"], args.sft["learning_rate"]) == (1, True, 1e-5)
    for given in (["--dpo.rounds"], ["--rounds", "1"], ["--nothing.rounds", "1"], ["dpo.rounds", "1"]):
        with pytest.raises(ValueError, match="^there is no `"):
            parser.override_sections(args, given)


@pytest.mark.parametrize("given", [{}, {"eval_dataset_name": "miniature/adding", "process_reward": "outcome"}])
def test_a_search_needs_questions_and_a_scorer(given):
    with pytest.raises(ValueError, match="The search stage came with .* Fix: leave search out of --stages"):
        ChainOfStepArguments("miniature/adding", stages="sft,search", **given)


@pytest.mark.slow
def test_the_miniature_learns(tmp_path):
    """The shipped configuration, about twenty minutes: every stage does what it is there for."""
    script, config = ROOT / "examples/chain_of_step.py", ROOT / "configs/chain_of_step/miniature.yaml"
    command = [sys.executable, str(script), "--config", str(config), "--output_dir", str(tmp_path / "out")]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    metrics = json.loads((tmp_path / "out/prm/eval_results.json").read_text())
    assert metrics["eval_unseen_step_auroc"] > 0.9
    assert metrics["eval_unseen_answer_auroc"] > 0.8
    rounds = [entry["eval"] for entry in json.loads((tmp_path / "out/dpo/rounds.json").read_text())]
    assert rounds[3]["accuracy"] > rounds[0]["accuracy"] + 0.05
    assert rounds[3]["trajectory_score"] > rounds[0]["trajectory_score"] + 0.05
    curves = searched(tmp_path / "out/search")
    assert curves["pass@n"][64].right.value > curves["best of n"][64].right.value > curves["best of n"][1].right.value
