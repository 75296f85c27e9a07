"""What a module loads. TRL takes seconds, so that small modules and the command line do without it."""

import subprocess
import sys

import pytest

TEXTS = ["documented", "messages", "grading", "sampling.turns", "sampling.store", "evaluation.metrics", "cli"]
TEXTS += ["chain_of_step.template", "srpo.response"]
TENSORS = ["functional", "turns", "parts", "stopping"]
TENSORS += [f"{method}.objective" for method in ("adapo", "srpo", "chain_of_step", "sophia", "self_evolution")]
ROWS = ["evaluation.results", "evaluation.files", "chain_of_step.pairs", "chain_of_step.declared"]


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [(TEXTS, {"torch", "transformers", "datasets", "trl"}), (TENSORS, {"datasets", "trl"}), (ROWS, {"trl"})],
    ids=["texts", "tensors", "rows"],
)
def test_small_modules_load_little(modules, unwanted):
    lines = [f"import trl_mmreason.{module}" for module in modules]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(["import sys", *lines, "print(*sys.modules)"])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not unwanted & set(done.stdout.split())
