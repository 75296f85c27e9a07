"""ReflectionSFTTrainer: what carries loss, what is refused, every family, resumed or not, one process or two."""

import pytest
import torch
from datasets import Dataset
from support import (
    assert_micro_batches_agree,
    changed_weights,
    drawn_rows,
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
    """Rows with an image, two images or none, as `mmreason reflect` writes them."""
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


def cross_entropy(trainer, loader):
    """The mean over the tokens with labels of a loader's one batch, under the model as it is."""
    (batch,) = loader
    labels = batch.pop("labels")[:, 1:].flatten()
    with torch.no_grad():
        logits = trainer.model(**batch).logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, labels).item()


def test_the_loss_is_the_cross_entropy_of_these_tokens(family, checkpoints, tmp_path):
    trainer = sft_trainer(checkpoints(family), tmp_path, reflections(), max_steps=1)
    expected, before = cross_entropy(trainer, trainer.get_train_dataloader()), weights_of(trainer.model)
    trainer.train()
    assert losses_of(trainer) == pytest.approx([expected], abs=1e-5)
    assert changed_weights(trainer.model, before)


def test_rows_without_images_may_have_none_or_no_column(checkpoints, tmp_path):
    def losses(rows):
        trainer = sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
        trainer.train()
        return losses_of(trainer)

    rows = reflections(8)
    assert losses([{**row, "images": row["images"] or None} for row in rows]) == losses(rows)
    texts = [{**row, "images": []} for row in rows]
    without = [{name: value for name, value in row.items() if name != "images"} for row in rows]
    assert losses(without) == losses(texts) != losses(rows)


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


def test_a_formatting_function_is_refused(checkpoints, tmp_path):
    """TRL calls none where there are images, and says nothing."""
    with pytest.raises(TypeError, match="^ReflectionSFTTrainer: rows have a prompt and a completion, .* `dataset.map`"):
        sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, reflections(), trainer_kwargs={"formatting_func": str})


def test_a_column_of_single_images(checkpoints, tmp_path):
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
    expected = cross_entropy(trainer, trainer.get_eval_dataloader("held"))
    assert trainer.evaluate()["eval_held_loss"] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="row 0"):
        sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, good, trainer_kwargs={"eval_dataset": bad})


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


def test_wrong_arguments(checkpoints, tmp_path):
    with pytest.raises(ValueError, match=r"expected `prompt` and `completion` among them"):
        sft_trainer(checkpoints("qwen2_5_vl"), tmp_path, [{"prompt": [{"role": "user", "content": "a"}]}])
    with pytest.raises(TypeError, match="expected ReflectionSFTConfig"):
        ReflectionSFTTrainer(checkpoints("qwen2_5_vl"), args=3, train_dataset=Dataset.from_list(reflections(2)))
