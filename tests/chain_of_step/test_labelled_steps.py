"""Steps with labels of VisualPRM400K become chains that the trainer of a process reward model takes."""

import pytest
import torch
from datasets import Dataset
from support import png, write_lines

from trl_mmreason.chain_of_step.config import ProcessRewardConfig
from trl_mmreason.chain_of_step.labelled_steps import chains_of_steps, read_labelled_chains
from trl_mmreason.chain_of_step.process_reward_trainer import ProcessRewardTrainer, _labels
from trl_mmreason.chain_of_step.template import parse_chain
from trl_mmreason.data.row_loading import load_rows

pytestmark = pytest.mark.usefixtures("own_cache")
TURNS = ["### Question:\n<image>\nWhich colour?\n\n### Solution Process:\nIt is warm.", "+", "So it is blue.", "-"]


@pytest.fixture
def steps_file(tmp_path):
    (tmp_path / "red.png").write_bytes(png("red"))
    talk = [{"from": ("human", "gpt")[place % 2], "value": text} for place, text in enumerate(TURNS)]
    return write_lines(tmp_path / "steps.jsonl", [{"image": "red.png", "conversations": talk}])


def test_steps_become_a_chain_whose_labels_fit(steps_file):
    rows = read_labelled_chains(str(steps_file))
    (row,) = rows
    chain = parse_chain(row["completion"])
    assert [(step.name, step.thought, step.reflection) for step in chain.steps] == [
        ("Step 1", "It is warm.", ""),
        ("Step 2", "So it is blue.", ""),
    ]
    assert chain.answer is None
    labels = torch.tensor(_labels(row, steps=2, answers=0, where="row 0"))
    torch.testing.assert_close(labels, torch.tensor([torch.nan, 1.0, 0.0]), equal_nan=True)
    assert row["prompt"] == [{"role": "user", "content": "Which colour?"}]
    assert [image.getpixel((0, 0)) for image in row["images"]] == [(255, 0, 0)]


def test_a_label_is_soft_where_a_score_is_right_above_zero(tmp_path):
    """As in Math-Shepherd's soft labels, the share of right continuations, of which none was 1."""
    given = [("label", 0.3), ("label", 0), ("label", None), ("score", 0.3), ("score", 0)]
    steps = [{"step": f"{name} {value}", name: value} for name, value in given]
    rows = [{"question": "?", "steps": steps}]
    for source in (Dataset.from_list(rows), write_lines(tmp_path / "steps.jsonl", rows)):  # Arrow gives each both names
        assert load_rows(source, kind="steps").dataset["step_labels"][:] == [[0.3, 0.0, None, 1.0, 0.0]]


def test_labelled_chains_of_our_own_are_read_as_they_are(steps_file, tmp_path):
    rows = read_labelled_chains(str(steps_file))
    rows.to_parquet(tmp_path / "chains.parquet")
    again = read_labelled_chains(str(tmp_path / "chains.parquet"))
    assert again["completion"][:] == rows["completion"][:]
    assert again["step_labels"][:] == [[1.0, 0.0]]


def test_a_step_with_a_token_of_the_template_is_left_out(caplog):
    rows = Dataset.from_list([{"steps": ["<|answer_start|>"]}, {"steps": ["Red."]}])
    assert len(chains_of_steps(rows)) == 1
    assert "1 of 2 rows were left out: a step has a token" in caplog.text


def test_a_process_reward_model_trains_on_them(steps_file, bases, tmp_path):
    rows = read_labelled_chains(str(steps_file))
    args = ProcessRewardConfig(
        str(tmp_path / "prm"),
        max_steps=1,
        warmup_steps=0,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
    )
    trainer = ProcessRewardTrainer(bases("qwen2_5_vl"), args=args, train_dataset=rows)
    trainer.train()
    assert 0 < trainer.state.log_history[-1]["train_loss"] < 5
