"""`examples/evaluate.py` as users start it."""

import json

import pytest
from example_runs import ACCELERATE, ROOT, start
from pages import page_of

pytestmark = pytest.mark.full


def test_one_turn_and_two_side_by_side(checkpoints, tmp_path):
    config = ["--config", ROOT / "configs/evaluate/miniature.yaml", "--model_name_or_path", checkpoints("qwen2_5_vl")]
    launcher = [*ACCELERATE, "--config_file", str(ROOT / "configs/accelerate/cpu.yaml")]
    given = ("--eval_rows", 6, "--max_new_tokens", 4)
    done = start("evaluate", tmp_path / "out", *config, *given, launcher=launcher)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("6 questions, 6 samples") == 2
    for name in ("direct", "two-turn"):
        results = json.loads((tmp_path / "out" / name / "results.json").read_text())
        benchmark = results["benchmark"]
        assert (benchmark["name"], benchmark["title"]) == ("miniature/adding", "Miniature, adding")
        assert results["settings"]["protocol"]["name"] == name
        assert results["settings"]["sampling_params"]["max_new_tokens"] == 4
    page = page_of(tmp_path / "out" / "report.html")
    assert "Comparison" in [heading["text"] for heading in page.with_tag("h2")]
    assert {"direct", "two-turn"} <= {cell["text"] for cell in page.with_tag("th")}
    assert len(page.with_class("question")) == 6
