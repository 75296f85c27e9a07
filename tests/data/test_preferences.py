"""Preferences of MMPR train with TRL's DPOTrainer, images standing where the text has them."""

import pytest
from support import png, saved_model, write_lines
from trl import DPOConfig, DPOTrainer

from trl_mmreason.data.images import with_images
from trl_mmreason.data.row_loading import load_rows

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_step_of_dpo(tmp_path):
    (tmp_path / "red.png").write_bytes(png("red", (40, 40)))
    question = "First: <image> second: <image> Which is red?"
    row = {"image": ["red.png"] * 2, "question": question, "chosen": "Both.", "rejected": "None."}
    rows = load_rows(write_lines(tmp_path / "mmpr.jsonl", [row] * 2), kind="preferences").dataset
    args = DPOConfig(
        str(tmp_path / "dpo"), max_steps=1, max_length=None, use_cpu=True, bf16=False, report_to="none",
        per_device_train_batch_size=2, save_strategy="no", logging_steps=1,
    )  # fmt: skip
    trainer = DPOTrainer(str(saved_model("qwen2_5_vl", tmp_path / "model")), args=args, train_dataset=rows)
    trainer.data_collator = with_images(trainer.data_collator)
    batch = trainer.data_collator([trainer.train_dataset[0]])
    text = trainer.processing_class.batch_decode(batch["input_ids"])[0].replace("<|image_pad|>", "")
    assert "First: <|vision_start|><|vision_end|> second: <|vision_start|><|vision_end|> Which is red?" in text
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(0.6931, abs=1e-3)  # ln 2: nothing is preferred yet
