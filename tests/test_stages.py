"""Stages of example scripts: what their settings notice, and what they say out of order."""

from dataclasses import dataclass, field

import pytest
import torch
import yaml

from trl_mmreason import ReflectionSFTConfig
from trl_mmreason.files import NoSuchFolder
from trl_mmreason.sampling.store import SettingsChanged
from trl_mmreason.script_parser import WrongArgument
from trl_mmreason.stages import StagedArguments, do_once, made_by, values_of


@dataclass
class Arguments(StagedArguments):
    STAGES = {"read": "finished"}

    source: str | None = None
    mixed_in: dict = field(default_factory=dict)
    prompt: str = "long " * 1000


def test_another_file_under_the_same_name_is_noticed(tmp_path):
    """Also inside a section; SHA-256 of no bytes begins with e3b0c442."""
    rows = tmp_path / "rows.parquet"
    rows.write_bytes(b"")
    args = Arguments("drawn", source=str(rows), mixed_in={"general": {"dataset": str(rows), "share": 0.5}})
    read = args.read_by(["source", "mixed_in", "prompt"])
    assert read["source"].startswith(f"{rows}, SHA-256 e3b0c442")
    assert read["mixed_in"]["general"] == {"dataset": read["source"], "share": 0.5}
    assert read["prompt"] == args.prompt
    done = []
    do_once(tmp_path, "read", read, tmp_path / "finished", lambda: done.append(1))
    rows.write_bytes(b"other rows")
    with pytest.raises(SettingsChanged, match="stage 'read' was begun with other settings"):
        do_once(tmp_path, "read", args.read_by(read), tmp_path / "finished", lambda: done.append(2))
    assert done == [1]


def test_a_stage_names_the_one_that_it_needs(tmp_path):
    with pytest.raises(NoSuchFolder, match="model does not exist. Run the stage update first"):
        made_by("update", tmp_path / "model")
    assert made_by("update", tmp_path) == str(tmp_path)


def test_numbers_that_yaml_takes_for_texts_are_numbers_in_inner_sections_too():
    given = yaml.safe_load("{beta: 1e-1, scheduler: linear, sft: {learning_rate: 1e-3, steps: 3}}")
    assert values_of(given) == {"beta": 0.1, "scheduler": "linear", "sft": {"learning_rate": 0.001, "steps": 3}}


def test_a_setting_that_a_stage_does_not_have_is_named_with_its_section(tmp_path):
    args = Arguments(str(tmp_path), common={"use_cpu": True}, mixed_in={"learning_rat": 1e-3})
    with pytest.raises(WrongArgument, match="^mixed_in: ReflectionSFTConfig has no `learning_rat`; did you mean `le"):
        args.config("mixed_in", ReflectionSFTConfig, tmp_path)
    args = Arguments(str(tmp_path), common={"use_cpu": True, "max_step": 1})
    with pytest.raises(WrongArgument, match="^common: ReflectionSFTConfig has no `max_step`; did you mean `max_s"):
        args.config("mixed_in", ReflectionSFTConfig, tmp_path)
    args = Arguments(str(tmp_path), common={"use_cpu": True}, mixed_in={"save_strategy": "hourly"})
    with pytest.raises(WrongArgument, match="^mixed_in: hourly is not a valid"):
        args.config("mixed_in", ReflectionSFTConfig, tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_stage_without_a_gpu_names_the_options(tmp_path):
    args = Arguments(str(tmp_path), common={"bf16": True})
    expected = "^bf16 asks for a GPU, and there is none. Fix: --common.use_cpu true --common.bf16 false$"
    with pytest.raises(WrongArgument, match=expected):
        args.config("mixed_in", ReflectionSFTConfig, tmp_path)
