"""What a reader tries first: the notebook, cell by cell, and the example with a reward of one's own, both cut short."""

import json

import pytest
from example_runs import ROOT, start

NOTEBOOK = ROOT / "notebooks/quickstart.ipynb"


@pytest.mark.full
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """The cells as they stand, but for their sizes; what Jupyter shows of a last line is not looked at."""
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    small = {"ACCURACY = 0.5": "ACCURACY = 0.0", "STEPS = 100": "STEPS = 2", "QUESTIONS = 400": "QUESTIONS = 20"}
    small |= {"2000, split": "64, split", "batch_size=128": "batch_size=16", "logging_steps=5": "logging_steps=1"}
    small |= {"learning_rate=3e-4": "learning_rate=0.0"}  # a random policy earns nothing, which would be an error
    names = {}
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        for usual, less in list(small.items()):
            if usual in source:
                source = source.replace(usual, less)
                del small[usual]
        exec(compile(source, f"cell {number}", "exec"), names)
    assert not small  # all of them occurred
    assert names["trainer"].state.global_step == 2
    assert (tmp_path / "runs/notebook/adapo/model.safetensors").exists()
    assert (tmp_path / "runs/notebook/curves.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "delta (t2 - t1)" in said
    assert said.count("(wrong)") + said.count("(right)") >= 10  # the answers to ten images


def test_the_notebook_keeps_no_outputs():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.fixture(scope="module")
def rewarded(checkpoints, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewarded") / "out"
    options = {"config": "adapo/miniature.yaml", "model_name_or_path": checkpoints("qwen2_5_vl"), "use_cpu": "true"}
    options |= {"max_steps": 1, "train_rows": 16, "eval_rows": 4, "per_device_train_batch_size": 16}
    options |= {"learning_rate": 0, "logging_steps": 1, "filter_truncated": "false", "filter_zero_advantage": "false"}
    done = start("custom_reward", folder, *[part for name, value in options.items() for part in (f"--{name}", value)])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


@pytest.mark.full
def test_a_reward_of_one_s_own_is_added_and_logged_beside_the_method_s(rewarded):
    first = rewarded[0]
    assert {"rewards/adapo/mean", "rewards/shows_working/mean"} <= first.keys()
    parts = first["rewards/adapo/mean"] + first["rewards/shows_working/mean"]
    assert first["reward"] == pytest.approx(parts)
