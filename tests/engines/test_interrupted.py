"""A signal to one process of a sharded run: all write a checkpoint of that step, end, and resume."""

import pytest
from processes import launch
from switch import EVERYDAY_ENGINES, environment

from trl_mmreason.training.resuming import UNFINISHED, newest_checkpoint


@pytest.mark.parametrize("engine", EVERYDAY_ENGINES)
def test_processes_end_together_and_the_next_start_resumes(engine, policies, tmp_path):
    def run(folder, signalled):
        environ = environment(engine)
        said = launch("engines/interrupted_run.py", 2, policies["model"], folder, signalled, environment=environ)
        return [line for line in said.splitlines() if line.startswith("OUTCOME ")]

    folder = tmp_path / "interrupted"
    assert run(folder, "signalled") == ["OUTCOME 75 2"] * 2
    assert newest_checkpoint(folder) == (folder / "checkpoint-2", [])
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    resumed = run(folder, "alone")
    assert resumed == run(tmp_path / "whole", "alone")
    assert resumed[0].startswith("OUTCOME finished [")
    assert newest_checkpoint(folder) == (folder / "checkpoint-4", [])
    assert not (folder / UNFINISHED).exists()
