"""The miniatures' verdicts on three seeds: `pytest -m slow tests/project/test_quickstart.py`, about an hour."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trl_mmreason.cli.main import main
from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.evaluation.results import compare_results

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("seed", [0, 1, 2])]


def results_of(method, seed, folder):
    """The changes that the example finds with the method's miniature configuration."""
    config = ROOT / "configs" / method / "miniature.yaml"
    command = [sys.executable, str(ROOT / "examples" / f"{method}.py"), "--config", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--output_dir", str(folder), "--seed", str(seed)], cwd=ROOT, env=environment, check=True)
    assert (folder / "report.html").exists()
    before, after = (read_evaluation(folder / "evaluation" / moment).results for moment in ("before", "after"))
    return compare_results(before, after)


def test_adapo_improves_second_answers_by_more_than_the_intervals(seed, tmp_path):
    results = results_of("adapo", seed, tmp_path)
    assert results["acc_t2"].after.interval[0] > results["acc_t2"].before.interval[1]
    # and it checks itself better: the second turn gains on the first
    assert results["delta"].change.interval[0] > 0
    # `mmreason evaluate` finds what the quickstart said of first answers, with no option but the model
    main(["evaluate", "miniature/adding", "--model", str(tmp_path), "--output", str(tmp_path / "evaluation")])
    evaluated = json.loads((tmp_path / "evaluation/miniature-adding/results.json").read_text())
    found, (low, high) = evaluated["metrics"]["accuracy"], results["acc_t1"].after.interval
    assert max(found["low"], low) <= min(found["high"], high)


def test_adapo_in_bfloat16_reaches_what_it_reaches_in_float32(seed, tmp_path):
    """By the exit code of the benchmark: no accuracy lies below float32's by more than the intervals."""
    command = [sys.executable, "-m", "benchmarks", "precision", "--seeds", str(seed)]
    subprocess.run([*command, "--output_dir", str(tmp_path)], cwd=ROOT, check=True)


def test_srpo_improves_second_answers_by_more_than_the_intervals(seed, tmp_path):
    results = results_of("srpo", seed, tmp_path)
    assert results["acc_t2"].after.interval[0] > results["acc_t2"].before.interval[1]
    # and nearly every response still reflects, at about the length that is paid for: 3.3 times the first solution
    assert 60 < results["tokens"].after.value < 75
