"""ReflectionSFTTrainer: what carries loss, what is refused, every family, resumed or not, one process or two."""

import pytest
from datasets import Dataset
from peft import LoraConfig
from support import (
    assert_micro_batches_agree,
    assert_resumes,
    assert_weights,
    changed_weights,
    drawn_rows,
    full_but,
    load,
    losses_of,
    sft_trainer,
    weights_of,
)

from trl_mmreason import ReflectionSFTTrainer

FULL = (
    "<think>3+4=8</think>\n<answer>8</answer>\n<reflection>Not so.</reflection>\n"
    "<think>3+4=7</think>\n<answer>7</answer>"
)
WITHOUT_SECOND_THOUGHT = FULL.replace("<think>3+4=7</think>\n", "")


def reflections(n=8, completion=FULL):
    """Rows with a picture, two pictures or none, as `mmreason reflect` writes them."""
    return [
        {"prompt": row["prompt"], "images": row["images"], "completion": completion, "rating": 5.0}
        for row in drawn_rows(n)
    ]


@pytest.mark.parametrize("completion", [FULL, WITHOUT_SECOND_THOUGHT], ids=["full", "without second thought"])
def test_the_loss_is_on_every_token_of_the_assistant_and_on_no_other(family, checkpoints, tmp_path, completion):
    trainer = sft_trainer(checkpoints(family), tmp_path, reflections(completion=completion))
    batch = next(iter(trainer.get_train_dataloader()))
    end = trainer.processing_class.tokenizer.eos_token_id
    for labels in batch["labels"]:
        learnt = labels[labels != -100].tolist()
        said, behind = learnt[: learnt.index(end)], learnt[learnt.index(end) + 1 :]
        # some templates put white space before or behind what the assistant says
        assert trainer.processing_class.decode(said).strip() == completion
        assert not trainer.processing_class.decode(behind).strip()


def test_a_step_with_every_family(family, checkpoints, tmp_path):
    trainer = sft_trainer(checkpoints(family), tmp_path, reflections(), per_device_train_batch_size=2, max_steps=4)
    trainer.train()
    losses = losses_of(trainer)
    assert losses[-1] < losses[0]


def test_rows_without_pictures_may_have_none_or_no_column(checkpoints, tmp_path):
    rows = reflections(8)
    for row in rows:
        row["images"] = row["images"] or None
    sft_trainer(checkpoints("qwen2_5_vl"), tmp_path / "a", rows, per_device_train_batch_size=2).train()
    for row in rows:
        del row["images"]
    sft_trainer(checkpoints("qwen2_5_vl"), tmp_path / "b", rows, per_device_train_batch_size=2).train()


@pytest.mark.parametrize("content", [FULL, [{"type": "text", "text": FULL}]], ids=["text", "parts"])
def test_a_completion_may_be_a_message(checkpoints, tmp_path, content):
    rows = reflections(8, completion=[{"role": "assistant", "content": content}])
    trainer = sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    assert trainer.train_dataset[0]["completion"] == [{"role": "assistant", "content": FULL}]


@pytest.mark.parametrize(
    ("completion", "problem"),
    [
        ("<think>a</think> <answer>7</answer>", "row 2 .* missing <reflection>"),
        (FULL.replace("Not so.", " "), "row 2 .* empty <reflection>"),
        (FULL[:-4], "row 2 .* cut in the middle of a tag"),
        (FULL.replace("<answer>7</answer>", ""), "row 2 .* missing <answer> of the second solution"),
        (WITHOUT_SECOND_THOUGHT.replace("<answer>7</answer>", ""), "row 2 .* missing <think> of the second solution"),
    ],
)
def test_a_completion_out_of_format_is_refused_by_row(checkpoints, tmp_path, completion, problem):
    rows = reflections(4)
    rows[2]["completion"] = completion
    with pytest.raises(ValueError, match=problem):
        sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)


@pytest.mark.parametrize(
    "completion",
    [
        f"Well. {WITHOUT_SECOND_THOUGHT}",
        WITHOUT_SECOND_THOUGHT.replace("<reflection>", "junk <reflection>"),
        f"{WITHOUT_SECOND_THOUGHT} trailing words",
    ],
)
def test_text_outside_the_tags_is_refused_without_a_second_thought_too(completion):
    assert ReflectionSFTTrainer.problem_of(completion).startswith("stray text outside the tags")
    assert ReflectionSFTTrainer.problem_of(WITHOUT_SECOND_THOUGHT) is None


@pytest.mark.parametrize(
    "completion",
    [
        [{"role": "user", "content": FULL}],
        [{"role": "assistant", "content": "<think>"}, {"role": "assistant", "content": FULL}],
        [],
        None,
    ],
)
def test_a_completion_is_one_message_of_the_assistant(checkpoints, tmp_path, completion):
    with pytest.raises(ValueError, match="row 0 is .* expected a string or one message"):
        sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, reflections(1, completion=completion))


def test_a_column_of_single_pictures(checkpoints, tmp_path):
    rows = [{**row, "image": row.pop("images")[0]} for row in reflections(24)[::3]]
    batch = next(iter(sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows).get_train_dataloader()))
    assert len(batch["image_grid_thw"]) == 8


def test_a_template_that_drops_thoughts_is_refused(checkpoints, tmp_path):
    """As thinking models' templates do with earlier turns: what stands before the last </think> would not be learnt."""
    _, processor = load(checkpoints("qwen2_5_vl"))
    processor.chat_template = (
        "{% for m in messages %}{{ m.role }}: {% for part in m.content %}"
        "{{ part.text.split('</think>')[-1] if part.type == 'text' }}{% endfor %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="changes the assistant's text"):
        sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, reflections(2), trainer_kwargs={"processing_class": processor})


def test_the_eval_set_is_checked_and_used(checkpoints, tmp_path):
    good, bad = Dataset.from_list(reflections(4)), Dataset.from_list(reflections(4, completion="7"))
    trainer = sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, good, trainer_kwargs={"eval_dataset": {"held": good}})
    assert trainer.evaluate()["eval_held_loss"] > 0
    with pytest.raises(ValueError, match="row 0"):
        sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, good, trainer_kwargs={"eval_dataset": bad})


@pytest.mark.parametrize("lora", full_but(False, [False, True]), ids=["full", "lora"])
def test_resumed_equals_uninterrupted(family, checkpoints, tmp_path, lora):
    lora_config = LoraConfig(r=2, target_modules="all-linear", exclude_modules=["lm_head"])
    settings = {
        "per_device_train_batch_size": 2,
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "trainer_kwargs": {"peft_config": lora_config if lora else None},
    }
    assert_resumes(lambda: sft_trainer(checkpoints(family), tmp_path, reflections(), **settings), tmp_path, atol=1e-6)


def test_the_vision_encoder_can_be_frozen(family, checkpoints, tmp_path):
    trainer = sft_trainer(checkpoints(family), tmp_path, reflections(), freeze_vision_encoder=True)
    before = weights_of(trainer.model)
    trainer.train()
    changed = changed_weights(trainer.model, before)
    assert changed
    assert not [name for name in changed if "visual." in name or "vision_tower." in name]


def test_gradient_accumulation_does_not_change_the_update(family, checkpoints, tmp_path):
    """Rows of different lengths: every token of an optimizer step weighs the same, whatever micro-batch it is in."""
    rows = reflections(8)
    for number, row in enumerate(rows):
        row["completion"] = FULL.replace("Not so.", "Not so. " * (1 + 3 * number))

    def trained(**settings):
        run = {"max_steps": 1, "max_grad_norm": 0.0, "optim": "sgd", "learning_rate": 1.0, **settings}
        trainer = sft_trainer(checkpoints(family), tmp_path, rows, **run)
        trainer.train()
        return trainer

    assert_micro_batches_agree(trained)


def test_what_is_saved_loads_again(checkpoints, tmp_path):
    trainer = sft_trainer(checkpoints("internvl"), tmp_path, reflections())
    trainer.train()
    trainer.save_model()
    model, processor = load(str(tmp_path))
    assert_weights(model, trainer.model)
    assert processor.tokenizer.eos_token_id == trainer.processing_class.tokenizer.eos_token_id


def test_wrong_arguments(checkpoints, tmp_path):
    with pytest.raises(ValueError, match=r"expected `prompt` and `completion` among them"):
        sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, [{"prompt": [{"role": "user", "content": "a"}]}])
    with pytest.raises(TypeError, match="expected ReflectionSFTConfig"):
        ReflectionSFTTrainer(checkpoints("qwen2_5_vl"), args=3, train_dataset=Dataset.from_list(reflections(2)))
