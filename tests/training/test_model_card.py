"""The card of a trained model: what it says of base, data and results, and that its example runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset
from huggingface_hub import ModelCard
from support import SUPERVISED_RUN, adapo_trainer, drawn_rows, train_on_anything

from trl_mmreason import ProcessRewardConfig, ProcessRewardTrainer
from trl_mmreason.baselines.two_turns import SCoReTrainer
from trl_mmreason.chain_of_step.template import Chain, Step, render_chain
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.tasks import make_dataset
from trl_mmreason.scripts.single_stage import train_once
from trl_mmreason.training.model_card import (
    COMPARED,
    MINIATURE_RECORD,
    _drawn_category,
    add_results,
    base_model,
    describe_data,
    describe_origin,
    results_in,
    with_results,
)

ROOT = Path(__file__).parents[2]
SYSTEM = 'Say the answer\nin \\boxed{}, "quoted" or not.'


def run_example(card):
    """The lines that the Python of a card prints, run as a reader would: copied into a file, in another folder."""
    (code,) = card.text.split("```python\n")[1:]
    script = card_folder(card) / "example.py"
    script.write_text(code.split("```")[0])
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def card_folder(card):
    return Path(card.path).parent


def read_card(folder):
    card = ModelCard.load(folder / "README.md")
    card.path = folder / "README.md"
    return card


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A miniature after a step of AdaPO on questions with a system message, and an evaluation of it."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [{**row, "prompt": [{"role": "system", "content": SYSTEM}, *row["prompt"]]} for row in drawn_rows(4)]
    model, processor = build_model("qwen2_5_vl")
    trainer = adapo_trainer(model, folder, rows, max_steps=1, trainer_kwargs={"processing_class": processor})
    train_on_anything(trainer)
    trainer.save_model()
    (folder / COMPARED).parent.mkdir()
    (folder / COMPARED).write_text("acc@t2  50.0 [40.0, 60.0]\n")
    trainer.create_model_card(dataset_name="miniature/adding")
    return read_card(folder)


def test_a_miniature_s_card_says_so_and_names_method_data_and_results(trained):
    data = trained.data.to_dict()
    assert data["pipeline_tag"] == "image-text-to-text"
    assert not {"base_model", "datasets", "licence"} & data.keys()  # it has none on the Hub
    assert "a fine-tuned miniature (`qwen2_5_vl/test`)" in trained.text
    assert "It has been trained on 4 rows of `miniature/adding`, with trl-mmreason" in trained.text
    assert "trained with AdaPO, a method introduced in [A Rolling Stone" in trained.text
    assert "https://huggingface.co/papers/2508.09155" in trained.text
    shown = "## Results\n\n### Before and after training\n\n```text\nacc@t2  50.0 [40.0, 60.0]\n```\n\n## Training"
    assert shown in trained.text
    assert "None" not in trained.text
    assert json.loads((card_folder(trained) / "config.json").read_text())[MINIATURE_RECORD] == "qwen2_5_vl/test"


def test_a_miniature_that_was_trained_on_other_rows_shows_no_drawn_problem(trained):
    row = {"prompt": "What is the total?", "id": "train-0", "category": "total"}
    drawn = {**row, "id": "saved/adding-1-train-000003", "category": "adding"}
    assert _drawn_category(row) is _drawn_category({"prompt": "p"}) is None
    assert _drawn_category(drawn) == "adding"
    assert "built, and that knows nothing but what it was trained on.\n" in trained.text


@pytest.mark.full
def test_the_example_of_a_card_shows_an_image_and_prints_both_answers(trained):
    code = trained.text.split("```python\n")[1]
    assert repr(SYSTEM) in code
    assert code.count("print(") == 2
    assert len(run_example(trained).split()) >= 2  # what a random model says is some words


@pytest.mark.full
def test_the_example_of_another_model_draws_its_own_image(checkpoints, tmp_path):
    """The family's processor loads without torchvision, which readers have and the tests do not."""
    model, processor = build_model("llava_next")
    delattr(model.config, MINIATURE_RECORD)
    trainer = adapo_trainer(
        model, tmp_path, drawn_rows(4), evaluation_prompt=None, trainer_kwargs={"processing_class": processor}
    )
    trainer.save_model()
    trainer.create_model_card()
    card = read_card(tmp_path)
    assert (
        "a fine-tuned version of a model that was passed in memory.\nIt has been trained on 4 rows, with" in card.text
    )
    assert "## Results\n\nNo evaluation lies beside this model.\n\n## Training procedure" in card.text
    code = card.text.split("```python\n")[1].split("```")[0]
    assert "trl_mmreason" not in code
    assert code.count("print(") == 1
    assert run_example(card).strip()


@pytest.mark.full
def test_the_example_of_a_process_reward_model_prints_scores(tmp_path):
    model, processor = build_model("qwen2_5_vl")
    chain = render_chain(Chain([Step("a", "b", "c")], "7"))
    row = {"prompt": drawn_rows(1)[0]["prompt"], "completion": chain, "step_labels": [1.0], "answer_label": 1.0}
    trainer = ProcessRewardTrainer(
        model,
        args=ProcessRewardConfig(str(tmp_path / "prm"), **{**SUPERVISED_RUN, "max_steps": 1, "warmup_steps": 0}),
        train_dataset=Dataset.from_list([row] * 8),
        processing_class=processor,
    )
    train_once(trainer, tmp_path / "prm/model", str(tmp_path / "chains.parquet"))
    card = read_card(tmp_path / "prm/model")
    assert "pipeline_tag" not in card.data.to_dict()  # it answers nothing
    assert "# Model Card for prm\n" in card.text
    assert "on 8 rows of `chains.parquet`" in card.text  # of a path its name
    assert "Scores(steps=tensor([0." in run_example(card)
    assert trainer.args.output_dir == str(tmp_path / "prm")


def test_a_base_model_is_a_hub_id_or_that_of_the_folder_s_own_card(tmp_path):
    assert base_model("Qwen/Qwen2.5-VL-3B-Instruct") == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert base_model("") is base_model(None) is base_model(str(tmp_path)) is base_model("some/path/gone") is None
    (tmp_path / "config.json").write_text('{"_name_or_path": "a/b"}')
    assert base_model(str(tmp_path)) == "a/b"
    (tmp_path / "README.md").write_text("---\nbase_model: /home/me/base\n---\n\n# SFT\n")  # as PEFT writes it
    assert base_model(str(tmp_path)) == "a/b"
    (tmp_path / "README.md").write_text("---\nbase_model: Qwen/Qwen2.5-VL-3B-Instruct\n---\n\n# SFT\n")
    assert base_model(str(tmp_path)) == "Qwen/Qwen2.5-VL-3B-Instruct"


@pytest.mark.parametrize(
    ("mark", "rows", "asked"),
    [
        (True, make_dataset("bar_chart", 4), "make_problem('bar_chart', 0"),  # saved by others under another name
        (False, make_dataset("bar_chart", 4), 'question = "What does the image show?"'),
        (True, Dataset.from_list(drawn_rows(4)), None),
    ],
)
def test_the_example_does_not_ask_what_the_model_never_learnt(mark, rows, asked, tmp_path):
    model, processor = build_model("qwen2_5_vl", "test")
    if not mark:
        delattr(model.config, MINIATURE_RECORD)
    trainer = adapo_trainer(model, tmp_path, rows, trainer_kwargs={"processing_class": processor})
    trainer.create_model_card(dataset_name="data/charts.parquet")
    code = read_card(tmp_path).text.split("```python\n")[1].split("```")[0]
    assert "Add the two numbers" not in code
    assert asked is None or asked in code


def test_what_training_began_with_in_words():
    link = "a fine-tuned version of [a/b](https://huggingface.co/a/b)"
    assert describe_origin("folder", "a/b", None) == link
    assert describe_origin("a/b", "a/b", "qwen2_vl/test") == link
    assert "random weights" in describe_origin("runs/x", None, "qwen2_vl/test")
    assert "the checkpoint `x`, whose own card names no base" in describe_origin("runs/x", None, None)


def test_data_in_words():
    assert describe_data([0] * 1200, "a/b") == " on 1,200 rows of [a/b](https://huggingface.co/datasets/a/b)"
    assert describe_data(iter([]), "a/b") == " on [a/b](https://huggingface.co/datasets/a/b)"
    assert describe_data([0], "/data/secret/x.parquet") == " on 1 rows of `x.parquet`"
    assert describe_data(None, None) == ""


def test_results_of_an_earlier_run_are_left_out(tmp_path):
    old, new = tmp_path / COMPARED, tmp_path / "evaluation/mathvista/results.txt"
    for path, age in ((old, 100), (tmp_path / "trainer_state.json", 200), (new, 300)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{path.name} {age}")
        os.utime(path, (age, age))
    assert results_in(tmp_path) == {"mathvista": "results.txt 300"}
    (tmp_path / "trainer_state.json").unlink()
    assert list(results_in(tmp_path)) == ["Before and after training", "mathvista"]


def test_a_table_takes_the_place_of_the_one_with_its_title_alone(tmp_path):
    card = "# x\n\n## Results\n\nNo evaluation lies beside this model.\n\n## Training procedure\n\n## Citations\n"
    (tmp_path / "README.md").write_text(card)
    for title, table in (("A", "1\n\n2"), ("B", "3"), ("A", "4\n")):
        add_results(tmp_path, title, table)
    sections = "### A\n\n```text\n4\n```\n\n### B\n\n```text\n3\n```\n\n"
    assert (tmp_path / "README.md").read_text() == card.replace("No evaluation lies beside this model.\n\n", sections)
    assert with_results(card, {}) == card
    add_results(tmp_path / "gone", "A", "1")  # no card, no results


def test_score_is_not_said_to_come_from_adapo_s_paper():
    assert SCoReTrainer._paper["id"] == "2409.12917"
