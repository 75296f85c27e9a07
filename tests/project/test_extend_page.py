"""The examples of docs/extend.md run, one behind the other, on a family that the package does not name."""

import re
from pathlib import Path

import pytest
from another_family import save_gemma3
from datasets import Dataset
from support import SMALL_RUN, adapo_config, drawn_rows

from trl_mmreason.generation.transformers_engine import TransformersEngine

PAGE = Path(__file__).parents[2] / "docs/extend.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory):
    return save_gemma3(tmp_path_factory.mktemp("gemma3"))


@pytest.mark.full
def test_every_example_runs(gemma3, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = {**SMALL_RUN, "max_steps": 1, "learning_rate": 0.0}  # random answers earn nothing
    names = {
        "model": gemma3,
        "rows": Dataset.from_list(drawn_rows(4)),
        "config": adapo_config(tmp_path / "adapo", **run),
        "group_settings": {"output_dir": str(tmp_path / "groups"), **run},
        "judge_engine": TransformersEngine(gemma3),
    }
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"{PAGE.name}, example {number + 1}", "exec"), names)
    printed = capsys.readouterr().out
    assert "kept 0 of 4 questions" in printed  # a canned answer is wrong twice, and images fail
    assert "Estimate(value=0.0, interval=(0.0, 0.0))" in printed
