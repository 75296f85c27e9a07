"""The quickstart's verdict on three seeds: `pytest -m slow tests/test_quickstart.py`, about ten minutes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_second_answers_improve_by_more_than_the_intervals(seed, tmp_path):
    config = ROOT / "configs" / "adapo" / "miniature.yaml"
    command = [sys.executable, str(ROOT / "examples" / "adapo.py"), "--config", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "--output_dir", str(tmp_path), "--seed", str(seed)], cwd=ROOT, env=environment, check=True
    )
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["acc_t2"]["after"]["interval"][0] > results["acc_t2"]["before"]["interval"][1]
    # and it checks itself better: the second turn gains on the first
    assert results["delta"]["change"]["interval"][0] > 0
    assert (tmp_path / "report.html").exists()
