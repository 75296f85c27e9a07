import json

import pytest
from support import drawn_rows
from trl import TrlParser

from trl_mmreason.scripts import DataArguments, _without_nan, load_split


def test_columns_can_be_given_on_the_command_line():
    (arguments,) = TrlParser(DataArguments).parse_args_and_config(
        ["--dataset_name", "x", "--columns", '{"prompt": "problem"}']
    )
    assert arguments.columns == {"prompt": "problem"}


def test_results_are_strict_json():
    text = json.dumps(_without_nan({"a": {"value": float("nan"), "interval": (0.5, float("nan"))}}), allow_nan=False)
    assert json.loads(text) == {"a": {"value": None, "interval": [0.5, None]}}


@pytest.mark.parametrize("split", ["new_pictures", "heldout"])
def test_drawn_questions_for_the_comparison_are_not_those_of_training(split):
    arguments = DataArguments(dataset_name="miniature/adding")
    trained = load_split(arguments, "miniature/adding", "train", 50, seed=3)
    asked = load_split(arguments, "miniature/adding", split, 50, seed=3)
    pictures = [{row["images"][0].tobytes() for row in rows} for rows in (trained, asked)]
    assert [len(each) for each in pictures] == [50, 50]
    assert not pictures[0] & pictures[1]


def test_local_rows_with_other_names(tmp_path):
    rows = [{"problem": row["prompt"][0]["content"], "solution": row["answer"]} for row in drawn_rows(3)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    arguments = DataArguments(dataset_name=str(file), columns={"prompt": "problem", "answer": "solution"})
    loaded = load_split(arguments, str(file), "train", 2, seed=0)
    assert loaded["answer"][:] == [row["solution"] for row in rows[:2]]
