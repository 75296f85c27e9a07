"""examples/self_evolution.py as users start it: two methods with a tiny model, again, and with what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_configs import load_example
from trl import ModelConfig, TrlParser

from trl_mmreason.miniature.models import build_model
from trl_mmreason.sampling.store import SettingsChanged

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "dataset_name": "miniature/adding",
    "train_rows": 8,
    "eval_dataset_name": "miniature/adding",
    "eval_split": "new_pictures",
    "eval_rows": 4,
    "answers": 2,
    "seeds": [0, 1],
    "dtype": "float32",
    "common": {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none"}
    | {"save_strategy": "no", "logging_steps": 1, "disable_tqdm": True},
    "evolution": {"actor_prompt": "Think.", "judge_prompt": "Judge.", "judge_max_tokens": 8, "max_completion_length": 8}
    | {"num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 2, "learning_rate": 1e-3},
    "methods": {
        "self-evolution": {},
        "majority-vote": {"vote": "majority", "judge": False, "advantages": "grpo", "beta": "0e-1"},
    },
}


def start(folder):
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/self_evolution.py"), "--config", str(folder.parent / "small.yaml")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_DATASETS_CACHE": str(folder.parent / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evolution") / "out"
    model, processor = build_model("qwen2_5_vl", "test")
    model.save_pretrained(folder.parent / "base")
    processor.save_pretrained(folder.parent / "base")
    settings = {**SETTINGS, "model_name_or_path": str(folder.parent / "base"), "output_dir": str(folder)}
    (folder.parent / "small.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    done = start(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done


def test_every_method_is_trained_measured_and_drawn(whole_run):
    folder, done = whole_run
    table = (folder / "table.txt").read_text()
    assert table.strip() in done.stdout
    names = ["before", "self-evolution", "majority-vote"]
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == names
    results = json.loads((folder / "results.json").read_text())
    assert {name: len(each) for name, each in results.items()} == dict.fromkeys(names, 2)
    for name in names:
        for seed, found in enumerate(results[name]):
            evaluation = folder / f"seed-{seed}" / "evaluation" / name
            saved = json.loads((evaluation / "results.json").read_text())["metrics"]
            assert found == {metric: numbers["value"] for metric, numbers in saved.items()}
            assert (evaluation / "report.html").stat().st_size > 10_000
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    for seed in (0, 1):
        for method, is_judged in (("self-evolution", True), ("majority-vote", False)):
            state = json.loads((folder / f"seed-{seed}" / method / "model/trainer_state.json").read_text())
            first = state["log_history"][0]
            assert {"accuracy", "entropy", "distinct_answers", "completions/mean_length"} <= first.keys()
            assert ("time/judge" in first) == is_judged


def test_what_is_finished_is_not_done_again(whole_run):
    folder, done = whole_run
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    again = start(folder)
    assert again.returncode == 0, again.stderr[-3000:]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert (folder / "table.txt").read_text().strip() in again.stdout


def arguments_of(folder):
    example = load_example("self_evolution")
    given = ["--config", str(folder.parent / "small.yaml")]
    return example, *TrlParser((example.EvolutionArguments, ModelConfig)).parse_args_and_config(given)


def test_policies_are_measured_under_the_official_prompt_or_the_actor_s(whole_run):
    """The second time nothing is trained again, and the first table stays."""
    folder, _ = whole_run
    example, args, model_args = arguments_of(folder)
    args.evolution["actor_prompt_in_evaluation"], args.seeds = True, [0]
    before = {path: path.stat().st_mtime_ns for path in (*folder.rglob("*.safetensors"), folder / "table.txt")}
    run = example.Run(args, model_args, 0)
    run.evolve("self-evolution")
    example.write_report(args, [run.results()])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (folder / "table-actor-prompt.txt").exists()
    assert (folder / "results-actor-prompt.json").exists()
    said = {}
    for kind in ("evaluation", "evaluation-actor-prompt"):
        for name in ("before", "self-evolution"):
            made = json.loads((folder / "seed-0" / kind / name / "results.json").read_text())
            said.setdefault(kind, set()).add(made["settings"]["system_prompt"])
    assert said == {"evaluation": {None}, "evaluation-actor-prompt": {"Think."}}


def test_other_settings_are_refused(whole_run):
    folder, _ = whole_run
    example, args, model_args = arguments_of(folder)
    args.evolution["alpha"] = 2.0
    with pytest.raises(SettingsChanged, match="stage 'self-evolution' was begun with other settings"):
        example.Run(args, model_args, 0).evolve("self-evolution")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": {"before": {}}}, "'before' cannot be a method's name"),
        ({"methods": {"../x": {}}}, "'../x' cannot be a method's name"),
        ({"methods": {"evaluation-actor-prompt": {}}}, "'evaluation-actor-prompt' cannot be a method's name"),
        ({"methods": {"x": {"actor_prompt_in_evaluation": True}}}, "all policies are measured under one prompt"),
        ({"judge_server": "http://127.0.0.1:1/v1"}, "give both, or neither"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        load_example("self_evolution").EvolutionArguments(dataset_name="miniature/adding", **settings)
