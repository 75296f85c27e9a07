"""STaR's rows from trajectories that are written out, interrupted or not, and training on them."""

import json

import pytest
from datasets import Dataset
from scripted import Scripted, image, reds
from support import SUPERVISED_RUN, changed_weights, drawn_rows, load, maker, weights_of

from trl_mmreason.baselines.sft import PlainSFTConfig, PlainSFTTrainer
from trl_mmreason.baselines.star import first_revision, make_revisions
from trl_mmreason.data.row_loading import load_rows
from trl_mmreason.data.row_sources import read_source
from trl_mmreason.generation import Failure, Sample, SamplingParams
from trl_mmreason.jobs.store import Store

CHECK = "Check it."
trainer_for = maker(PlainSFTTrainer, PlainSFTConfig, **SUPERVISED_RUN)
# question → answers in turn; the gold answer is 7
SAID = {
    "fixed at once": ["8", "7", "7"],
    "fixed in the end": ["8", "9", "7"],
    "fixed twice": ["8", "7", "8"],
    "right from the start": ["7", "7", "7"],
    "spoiled": ["7", "8", "8"],
    "spoiled and fixed": ["7", "8", "7"],
    "never right": ["8", "9", "8"],
    "cut": ["8", Sample("7", "length")],
    "failed": [Failure("torn")],
}


def questions():
    rows = [{"id": id_, "prompt": [{"role": "user", "content": id_}], "answer": "7"} for id_ in SAID]
    return Dataset.from_list(
        [{**row, "images": image["images"]} for row, image in zip(rows, drawn_rows(9), strict=True)]
    )


def reply(request, times):
    turn = sum(message["role"] == "assistant" for message in request.messages)
    return SAID[request.messages[0]["content"]][turn]


def made(folder, engine=None, rows=None):
    rows, engine = rows or questions(), engine or Scripted(reply)
    with Store(folder / "star.sqlite") as store:
        return make_revisions(rows, engine, store, followup=CHECK, retries=0, batch_size=2)


@pytest.mark.parametrize(
    ("correct", "place"),
    [
        ([False, True, True], 1),
        ([False, False, True], 2),
        ([True, False, True], 2),
        ([True, True, True], None),
        ([True, False, False], None),
        ([False], None),
        ([None, None], None),
    ],
)
def test_the_first_right_answer_behind_a_wrong_one(correct, place):
    assert first_revision(correct) == place


def test_right_revisions_of_wrong_answers_are_learnt(tmp_path):
    found = made(tmp_path)
    learnt = {row["id"]: row for row in found.rows}
    assert set(learnt) == {"fixed at once#0", "fixed in the end#0", "fixed twice#0", "spoiled and fixed#0"}
    row = learnt["fixed in the end#0"]
    assert [(message["role"], message["content"]) for message in row["prompt"]] == [
        ("user", "fixed in the end"), ("assistant", "8"), ("user", CHECK), ("assistant", "9"), ("user", CHECK),
    ]  # fmt: skip
    assert row["completion"] == [{"role": "assistant", "content": "7"}]
    assert len(learnt["fixed at once#0"]["prompt"]) == 3
    images = dict(zip(questions()["id"], questions()["images"], strict=True))
    assert len(row["images"]) == len(images["fixed in the end"])
    assert found.dropped == {
        "never wrong before right": 2, "never right": 1, "cut by the length limit": 1, "sampling failed": 1
    }  # fmt: skip


def test_a_single_image_stays_with_its_question(tmp_path):
    """In a column `image`, which the policy sees, too."""
    rows = questions().remove_columns("images")
    rows = Dataset.from_list([{**row, "image": image(number)} for number, row in enumerate(rows)])
    assert reds(made(tmp_path, rows=rows).rows["image"]) == [0, 1, 2, 5]


def test_interrupted_it_ends_alike(tmp_path):
    whole = made(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "killed", Scripted(reply, dies_at=9))
    found = made(tmp_path / "killed")
    assert found.rows.remove_columns("images").to_list() == whole.rows.remove_columns("images").to_list()


def test_training_on_revisions_puts_loss_on_the_revision_alone(checkpoints, tmp_path):
    model = checkpoints("qwen2_5_vl")
    run = {"per_device_train_batch_size": 4, "max_steps": 4}
    trainer = trainer_for(model, tmp_path / "out", made(tmp_path).rows, **run)
    batch = next(iter(trainer.get_train_dataloader()))
    decode = trainer.processing_class.decode
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        assert decode(labels[labels != -100], skip_special_tokens=True).strip() == "7"
        assert CHECK in decode(ids)
    trainer.train()
    assert changed_weights(trainer.model, weights_of(load(model)[0]))


def test_solutions_become_rows_to_train_on(checkpoints, tmp_path):
    """As docs/adapo.md makes them: questions with images and worked solutions, which need no gold answer."""
    drawn_rows(3)[0]["images"][0].save(tmp_path / "0.png")
    lines = [{"question": f"Question {k}?", "image": "0.png", "solution": f"So it is {k}."} for k in range(4)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows = load_rows(tmp_path / "train.jsonl", columns={"answer": None}, keep_columns=["solution"]).dataset
    columns = rows.select_columns(["prompt", "images", "solution"]).rename_column("solution", "completion")
    columns.to_parquet(tmp_path / "solutions.parquet")
    rows = read_source(str(tmp_path / "solutions.parquet"), "train").dataset
    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path / "out", rows, per_device_train_batch_size=4)
    batch = next(iter(trainer.get_train_dataloader()))
    learnt = [labels[labels != -100] for labels in batch["labels"]]
    said = {trainer.processing_class.decode(labels, skip_special_tokens=True).strip() for labels in learnt}
    assert said == {f"So it is {k}." for k in range(4)}
    assert len(batch["image_grid_thw"]) == 4


def test_an_empty_completion_is_refused(checkpoints, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "?"}], "completion": " "}]
    with pytest.raises(ValueError, match="row 0 is not in the format: it is empty"):
        trainer_for(checkpoints("qwen2_5_vl"), tmp_path, rows)


def test_three_turns_of_a_real_policy(checkpoints, tmp_path):
    from trl_mmreason.generation.transformers_engine import TransformersEngine

    engine = TransformersEngine(*load(checkpoints("qwen2_5_vl")))
    rows, settings = Dataset.from_list(drawn_rows(6)), {"n": 2, "sampling_params": SamplingParams(6, 1.0)}
    with Store(tmp_path / "star.sqlite") as store:
        found = make_revisions(rows, engine, store, followup=CHECK, **settings)
        turns = [record.payload["turns"] for record in store.records("star")]
    assert len(turns) == 12
    assert {len(given) for given in turns} <= {1, 2, 3}
    assert max(map(len, turns)) == 3
    assert len(found.rows) + sum(found.dropped.values()) == 12
