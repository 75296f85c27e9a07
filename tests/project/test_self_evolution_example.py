"""examples/self_evolution.py: with a tiny model, again, and with what it refuses."""

import json

import pytest
from example_runs import SMALL_COMMON, StagedExample, modified, save_base

from trl_mmreason.self_evolution.recipe import EvolutionArguments

pytestmark = pytest.mark.full

SETTINGS = {
    "train_rows": 8,
    "answers": 2,
    "common": SMALL_COMMON,
    "evolution": {"actor_prompt": "Think.", "judge_prompt": "Judge.", "judge_max_tokens": 8, "max_completion_length": 8}
    | {"num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 2, "learning_rate": 1e-3},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("evolution")
    return StagedExample("self_evolution", root, {**SETTINGS, "model_name_or_path": save_base(root / "base")})


def test_it_trains_and_is_measured_before_and_after(run):
    table = (run.folder / "evaluation/table.txt").read_text()
    assert table.strip() in run.done.stdout
    lines = [line.split("  ")[0] for line in table.splitlines()]
    assert lines[:4] == ["percent [95 % interval]", "accuracy", "pass@2", "self-consistency@2"]
    for name in ("before", "self-evolution"):
        saved = json.loads((run.folder / "evaluation" / name / "results.json").read_text())["metrics"]
        assert {"accuracy", "pass_at_2", "self_consistency_at_2", "distinct_answers"} <= saved.keys()
    assert (run.folder / "evolve/curves.png").read_bytes().startswith(b"\x89PNG")
    state = json.loads((run.folder / "evolve/model/trainer_state.json").read_text())
    logged = {"accuracy", "entropy", "distinct_answers", "completions/mean_length", "time/judge"}
    assert logged <= state["log_history"][0].keys()


def test_what_is_finished_is_not_done_again(run):
    run.assert_done_once()


def test_policies_are_measured_under_the_official_prompt_or_the_actor_s(run):
    """The second time nothing is trained again, and the first table stays."""
    before, table = modified(run.folder), (run.folder / "evaluation/table.txt").read_text()
    run.pipeline(run.folder, "--measure_with_actor_prompt", "true").run()
    assert modified(run.folder) == before
    assert (run.folder / "evaluation/table.txt").read_text() == table
    assert (run.folder / "evaluation-actor-prompt/table.txt").exists()
    for kind, prompt in (("evaluation", None), ("evaluation-actor-prompt", "Think.")):
        for name in ("before", "self-evolution"):
            made = json.loads((run.folder / kind / name / "results.json").read_text())
            assert made["settings"]["system_prompt"] == prompt


def test_a_server_without_the_judge_s_name_is_refused():
    with pytest.raises(ValueError, match="give both, or neither"):
        EvolutionArguments(dataset_name="miniature/adding", judge_server="http://127.0.0.1:1/v1")
