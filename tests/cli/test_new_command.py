"""`mmreason new`: the recipe that it writes, its checks, and the commands that it names."""

import re

import pytest
import yaml
from example_runs import ROOT
from support import png, write_lines

from trl_mmreason.cli.commands.new import METHODS, recipe_text
from trl_mmreason.cli.main import main

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "red.png").write_bytes(png("red"))
    rows = [{"question": f"{n}+1?", "image": "red.png", "gold": str(n + 1)} for n in range(70)]
    write_lines(tmp_path / "my.jsonl", rows)
    write_lines(tmp_path / "test.jsonl", [*rows[:3], {**rows[3], "gold": ""}])
    return tmp_path


COLUMNS = ["--columns", '{"answer": "gold"}']


def test_a_recipe_that_training_takes(folder, capsys):
    main(["new", "adapo", "--data", "my.jsonl", "--eval-data", "test.jsonl", "--model", "org/model", *COLUMNS])
    said = capsys.readouterr().out
    assert said.endswith(
        "Wrote adapo-mine.yaml. Next:\n  mmreason doctor --config adapo-mine.yaml --method adapo\n"
        "  mmreason train adapo --config adapo-mine.yaml\n"
    )
    assert "my.jsonl: 70 of 70 rows can be used\ntest.jsonl: 3 of 4 rows can be used\n" in said
    assert "adapo-mine.yaml is a configuration that adapo takes" in said
    recipe = yaml.safe_load((folder / "adapo-mine.yaml").read_text())
    template = yaml.safe_load((ROOT / "configs/adapo/your_model.yaml").read_text())
    given = {
        "model_name_or_path": "org/model",
        "dataset_name": "my.jsonl",
        "eval_dataset_name": "test.jsonl",
        "columns": {"answer": "gold"},
        "output_dir": "runs/adapo-my",
    }
    assert recipe == {**template, **given}
    assert "<-" not in (folder / "adapo-mine.yaml").read_text().partition("# Policy")[2]
    with pytest.raises(SystemExit, match="adapo-mine.yaml exists. Fix: another --output"):
        main(["new", "adapo", "--data", "my.jsonl", "--model", "org/model"])


def test_the_commands_to_run_next_can_be_copied(folder, capsys):
    (folder / "my recipes").mkdir()
    main(["new", "adapo", "--data", "my.jsonl", "--model", "org/model", "--output", "my recipes/a.yaml", *COLUMNS])
    assert "  mmreason train adapo --config 'my recipes/a.yaml'\n" in capsys.readouterr().out


def test_a_model_that_is_not_here_is_named(folder, capsys):
    with pytest.raises(SystemExit, match="training will not take a.yaml as it is; see the lines that begin with FAIL"):
        main(["new", "adapo", "--data", "my.jsonl", "--model", "./lost", "--output", "a.yaml", *COLUMNS])
    assert "FAIL  model_name_or_path: there is no ./lost. Fix: give a Hub id, or a folder" in capsys.readouterr().out


def test_without_rows_to_compare_on_that_is_said(folder, capsys):
    main(["new", "adapo", "--data", "my.jsonl", "--model", "m", "--output", "a.yaml", *COLUMNS])
    assert "Nothing is compared before and after training without --eval-data." in capsys.readouterr().out
    assert yaml.safe_load((folder / "a.yaml").read_text())["eval_dataset_name"] is None


def test_rows_that_cannot_be_read_stop_it_before_anything_is_written(folder):
    with pytest.raises(SystemExit, match="my has no column for answer"):
        main(["new", "adapo", "--data", "my.jsonl", "--model", "org/model"])
    assert not (folder / "adapo-mine.yaml").exists()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_template_whose_marked_settings_are_filled_in_or_named(method):
    given = {
        "model_name_or_path": "some/model: 7",
        "dataset_name": "no",
        "columns": {"answer": None},
        "image_root": None,
    }
    text = recipe_text(method, given)
    recipe = yaml.safe_load(text)
    template = yaml.safe_load((ROOT / f"configs/{method}/your_model.yaml").read_text())
    assert recipe == {**template, **{name: value for name, value in given.items() if value is not None}}
    marked = re.findall(r"^([a-z_]+):.*# <-", text, re.MULTILINE)
    assert set(marked) <= {"eval_dataset_name", "step_dataset", "label_dataset", "trajectory_dataset"}


@pytest.mark.full
def test_a_path_behind_an_equals_sign_may_begin_with_the_home_folder(folder, monkeypatch):
    """No shell replaces a ~ there: a folder of that name was made."""
    monkeypatch.setenv("HOME", str(folder))
    main(["new", "adapo", "--data=~/my.jsonl", "--model", "org/model", *COLUMNS, "--output=~/mine.yaml"])
    assert yaml.safe_load((folder / "mine.yaml").read_text())["dataset_name"] == f"{folder}/my.jsonl"


def test_what_is_still_missing_is_named(folder, capsys):
    options = ["--data", "my.jsonl", "--eval-data", "test.jsonl", "--model", "org/model", *COLUMNS]
    with pytest.raises(SystemExit, match=r"training will not take chain_of_step-mine.yaml as it is"):
        main(["new", "chain_of_step", *options])
    said = capsys.readouterr().out
    assert "Still to fill in, in chain_of_step-mine.yaml:\n  step_dataset: as `mmreason steps` writes them\n" in said
    assert "step_dataset: there is no data/chains.parquet." in said


@pytest.mark.parametrize(
    "name", ["org/model", "1_000", "null", "True", "12:30", "0x1f", ".inf", "2024-01-01T10:00:00", "2026-02-30"]
)
def test_a_name_that_yaml_would_read_as_something_else_is_quoted(name):
    recipe = recipe_text("adapo", {"model_name_or_path": name})
    assert yaml.safe_load(recipe)["model_name_or_path"] == name
