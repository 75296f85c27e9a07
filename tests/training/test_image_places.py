"""Images inside the text of a prompt stand at their places in every trainer: its ids are those of the chat template."""

from copy import deepcopy

import pytest
import torch
from datasets import Dataset, Features, Image, List
from every_trainer import REFLECTION, TRAINERS, make, rows_of, saved_base
from several_turns import AsksAgain, length_reward
from support import SMALL_RUN, adapo_trainer, full_but, load, maker, prepared_batch, sft_trainer, train_on_anything
from transformers.utils import logging

from trl_mmreason import RolloutConfig
from trl_mmreason.training.prompt_length import prompt_length


def asked(number, question, images):
    """A question with two images as a row has it, and in parts: inside the text, at its end, or first."""
    image, other = ({"type": "image", "image": one} for one in images)
    text = [{"type": "text", "text": words} for words in ("Look at ", " and ", f". {question}", f"{question}\nA. ")]
    if number % 3 == 0:
        return f"Look at <image> and <image>. {question}", [text[0], image, text[1], other, text[2]]
    if number % 3 == 1:
        return f"<image>{question}\nA. <image>", [image, text[3], other]
    return question, [image, other, {"type": "text", "text": question}]


def placed(rows):
    """Rows of two images, and the conversation in parts of each."""
    rows, conversations = deepcopy(rows), []
    drawn = [image for row in rows for image in row["images"]]
    for number, row in enumerate(rows):
        row["images"] = [drawn[number % len(drawn)], drawn[(number + 1) % len(drawn)]]
        text, parts = asked(number, row["prompt"][-1]["content"], row["images"])
        row["prompt"] = [{"role": "user", "content": text}]
        conversations.append([{"role": "user", "content": parts}])
    return rows, conversations


def templated(processor, conversation):
    (ids,) = processor.apply_chat_template([conversation], tokenize=True, return_dict=True, add_generation_prompt=True)[
        "input_ids"
    ]
    return list(ids)


def own_ids(batch, name="prompt"):
    """The rows of a batch without padding."""
    return [ids[mask.bool()].tolist() for ids, mask in zip(batch[f"{name}_ids"], batch[f"{name}_mask"], strict=True)]


def test_rollouts_of_one_turn_and_of_several(family, checkpoints, rows, tmp_path):
    asked_rows, conversations = placed(rows[:6])
    _, processor = load(checkpoints(family))
    expected = [templated(processor, each) for each in conversations]
    pixels = [
        processor.image_processor(images=row["images"], return_tensors="pt")["pixel_values"] for row in asked_rows
    ]
    repeated = [row for row in asked_rows for _ in range(4)]
    settings = {**SMALL_RUN, "max_completion_length": 4, "per_device_train_batch_size": 24}
    arguments = {"reward_funcs": [length_reward], "max_turns": 3}
    several = maker(AsksAgain, RolloutConfig, arguments=arguments, **settings)(
        checkpoints(family), tmp_path, asked_rows
    )
    one = adapo_trainer(checkpoints(family), tmp_path, asked_rows, per_device_train_batch_size=24)
    for trainer in (one, several):
        batch = prepared_batch(trainer, repeated)
        assert own_ids(batch) == [ids for ids in expected for _ in range(4)]
        assert [each.prompt.ids for each in trainer.trajectories[::4]] == expected
        shown = trainer.trajectories[0].prompt.image_fields["pixel_values"]
        torch.testing.assert_close(shown.flatten(), pixels[0].flatten())
    assert [prompt_length(row, processor) for row in asked_rows] == list(map(len, expected))


def test_a_batch_of_a_supervised_trainer(family, checkpoints, rows, tmp_path):
    asked_rows, conversations = placed(rows[:6])
    learnt = [{**row, "completion": [{"role": "assistant", "content": REFLECTION.format("b")}]} for row in asked_rows]
    trainer = sft_trainer(checkpoints(family), tmp_path, learnt)
    batch = trainer.data_collator(deepcopy(learnt))
    _, processor = load(checkpoints(family))
    for ids, labels, conversation in zip(batch["input_ids"], batch["labels"], conversations, strict=True):
        expected = templated(processor, conversation)
        assert ids.tolist()[: len(expected)] == expected
        assert (labels[: len(expected)] == -100).all()
        assert labels[len(expected)] != -100


@pytest.mark.parametrize("name", full_but("ReflectionSFTTrainer", TRAINERS))
def test_every_trainer_reads_them_at_their_places(tmp_path, name):
    """Whatever passes through the policy while it samples and trains begins with a prompt of the chat template."""
    base = saved_base("qwen2_5_vl", tmp_path / "base")
    processor = load(base)[1]
    rows, conversations = placed(list(rows_of(name)))
    features = Features({**rows_of(name).features, "images": List(Image())})
    trainer = make(name, base, tmp_path / "run", rows=Dataset.from_list(rows, features=features), max_steps=1)
    passed = []

    def watch(module, args, kwargs):
        ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
        if ids is not None and mask is not None and ids.shape == mask.shape:
            passed.extend(row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True))

    trainer.model.register_forward_pre_hook(watch, with_kwargs=True)
    train_on_anything(trainer)
    expected = [templated(processor, each) for each in conversations]
    seen = {number for ids in passed for number, own in enumerate(expected) if ids[: len(own)] == own}
    assert any(number % 3 < 2 for number in seen)  # inside the text
    if name != "SelfEvolutionTrainer":  # whose policy is its own judge, too
        assert all(any(ids[: len(own)] == own for own in expected) for ids in passed)


@pytest.mark.parametrize(
    ("family", "number", "is_warned"), [("qwen2_5_vl", 0, False), ("llava_next", 2, False), ("llava_next", 0, True)]
)
def test_a_template_that_moves_images_is_warned_of(checkpoints, rows, tmp_path, caplog, family, number, is_warned):
    """LLaVA-NeXT's, in a trainer and in an engine, unless the images come first."""
    row = placed(rows[:3])[0][number]

    def warned():
        found = "puts all images of a message before its text" in caplog.text
        caplog.clear()
        logging.warning_once.cache_clear()
        return found

    warned()
    prompt_length(row, load(checkpoints(family))[1])
    assert warned() == is_warned
    sft_trainer(checkpoints(family), tmp_path, [{**row, "completion": REFLECTION.format("b")}])
    assert warned() == is_warned
