"""Under every engine a policy is evaluated as under DDP: before training and after it, and from what was saved."""

import pytest
import torch
from processes import launch
from switch import EVERYDAY_ENGINES, environment


@pytest.fixture(scope="module")
def outcome(policies, tmp_path_factory):
    """Engine → what each of two processes found; run when first asked for."""
    found = {}

    def run(engine):
        if engine not in found:
            folder = tmp_path_factory.mktemp(f"evaluate-{engine}")
            launch(
                "engines/evaluate_run.py", 2, policies["model"], folder, environment=environment(engine), seconds=300
            )
            found[engine] = [torch.load(folder / f"process_{rank}.pt") for rank in range(2)]
        return found[engine]

    return run


@pytest.mark.parametrize("way", ["full", "lora"])
@pytest.mark.parametrize("engine", EVERYDAY_ENGINES)
def test_an_engine_evaluates_as_ddp_does(engine, way, outcome):
    expected, found = ([process[way] for process in outcome(name)] for name in ("ddp", engine))
    assert found == expected
    first, second = found
    assert first["before"]["tokens"] == second["before"]["tokens"]  # of all questions
    assert len(first["before"]["tokens"]) == 5
    assert first["before"]["ids"] != first["after"]["ids"]
    assert first["saved"] == second["saved"]
