"""Prompts are as long as the policy reads them, and rows with longer ones are left out and named."""

import logging

import pytest
from accelerate import PartialState
from datasets import Dataset
from PIL import Image
from processes import outcomes
from support import SMALL_RUN, drawn_rows, load

from trl_mmreason import AdaPOConfig, AdaPOTrainer, SelfEvolutionConfig, SelfEvolutionTrainer
from trl_mmreason.training.prompt_length import prompt_length, without_overlong_prompts


def asked(words, *sizes, **columns):
    images = [Image.new("RGB", size, "white") for size in sizes]
    return {"prompt": [{"role": "user", "content": words}], "images": images, **columns}


@pytest.fixture
def warnings(caplog):
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_an_image_counts_as_its_tokens(processor):
    """Patches of 14 pixels, merged two by two: 56 × 112 pixels are 2 × 4 tokens, between a beginning and an end."""
    words = prompt_length(asked("How many?"), processor)
    assert prompt_length(asked("How many?", (56, 112)), processor) == words + 2 * 4 + 2
    assert prompt_length(asked("How many?", (56, 112), (56, 56)), processor) == words + 8 + 2 + 4 + 2
    one = {**asked("How many?"), "image": Image.new("RGB", (56, 112))}
    assert prompt_length(one, processor) == words + 10


def test_it_is_what_the_policy_reads(family, checkpoints, tmp_path):
    """TRL's own tokens of the prompt, with the actor's prompt, for none, one and two images."""
    rows = drawn_rows(3)
    args = SelfEvolutionConfig(str(tmp_path), **SMALL_RUN, judge=False, actor_prompt="Think first.")
    trainer = SelfEvolutionTrainer(checkpoints(family), args=args, train_dataset=Dataset.from_list(rows))
    read, tokenize = [], trainer._tokenize_prompts
    trainer._tokenize_prompts = lambda prompts: read.append(tokenize(prompts)) or read[-1]
    trainer.train()
    seen = {len(ids) for prompt_ids, _, _ in read for ids in prompt_ids}
    counted = {prompt_length(row, trainer.processing_class, system_prompt="Think first.") for row in rows}
    assert len(counted) == 3
    assert seen <= counted


def test_a_text_is_counted_as_trl_tokenizes_it(processor):
    assert prompt_length({"prompt": "What is 3+4?"}, processor) == len(processor.tokenizer("What is 3+4?").input_ids)


def test_what_is_too_long_is_left_out_and_named(processor, warnings):
    rows = [asked("How many?", (56, 56 * k), id=f"row {k}") for k in (1, 4, 2, 3)]
    lengths = [prompt_length(row, processor) for row in rows]
    assert lengths == [lengths[0] + more for more in (0, 12, 4, 8)]
    kept = without_overlong_prompts(Dataset.from_list(rows), processor, lengths[2], name="Trainer")
    assert kept["id"] == ["row 1", "row 2"]  # a prompt of just so many tokens stays
    (warning,) = warnings()
    assert warning.startswith(f"Trainer: 2 of 4 prompts have more than max_prompt_length={lengths[2]} tokens, their ")
    assert f"the longest has {lengths[1]}." in warning
    assert "'row 4', 'row 3'." in warning


def test_nothing_is_said_where_all_fit(processor, warnings):
    rows = Dataset.from_list([asked("How many?")])
    assert without_overlong_prompts(rows, processor, 1000, name="Trainer") is rows
    assert warnings() == []


def test_where_nothing_is_left_that_is_an_error(processor):
    with pytest.raises(ValueError, match=r"Trainer: 1 of 1 prompts .* max_prompt_length=3 tokens.* No row is left\."):
        without_overlong_prompts(Dataset.from_list([asked("How many?")]), processor, 3, name="Trainer")


def test_a_stream_is_measured_as_it_comes(processor):
    rows = Dataset.from_list([asked("How many?", (56, 56 * k), id=str(k)) for k in (1, 2, 3)])
    most = prompt_length(rows[1], processor)
    stream = without_overlong_prompts(rows.to_iterable_dataset(), processor, most, name="Trainer")
    assert [row["id"] for row in stream] == ["1", "2"]


def test_self_evolution_leaves_them_out_of_training_alone(checkpoints, tmp_path, processor, warnings):
    """The actor's prompt counts: without it all four would fit."""
    actor = "Think first. " * 20
    rows = Dataset.from_list([asked("How many?", (56, 56 * k), id=str(k)) for k in (1, 2, 3, 4)])
    most = prompt_length(rows[1], processor, system_prompt=actor)
    assert prompt_length(rows[3], processor) <= most
    args = SelfEvolutionConfig(str(tmp_path), **SMALL_RUN, judge=False, actor_prompt=actor, max_prompt_length=most)
    trainer = SelfEvolutionTrainer(checkpoints("qwen2_5_vl"), args=args, train_dataset=rows, eval_dataset=rows)
    assert trainer.train_dataset["id"] == ["1", "2"]
    assert trainer.eval_dataset["id"] == ["1", "2", "3", "4"]
    assert warnings()[0].startswith("SelfEvolutionTrainer: 2 of 4 prompts")


def test_every_trainer_of_rollouts_leaves_them_out(checkpoints, tmp_path, processor):
    rows = Dataset.from_list([asked("How many?", (56, 56 * k), id=str(k), answer="1") for k in (1, 2, 3, 4)])
    args = AdaPOConfig(str(tmp_path), **SMALL_RUN, max_prompt_length=prompt_length(rows[1], processor))
    trainer = AdaPOTrainer(checkpoints("qwen2_5_vl"), args=args, train_dataset=rows)
    assert trainer.train_dataset["id"] == ["1", "2"]


def kept_of_five(model):
    """Of five prompts every second has an image more than is allowed."""
    state, (_, processor) = PartialState(cpu=True), load(model)
    assert state.num_processes == 2
    rows = Dataset.from_list([asked("How many?", *[(56, 56)] * (1 + k % 2), id=str(k)) for k in range(5)])
    kept = without_overlong_prompts(rows, processor, prompt_length(rows[0], processor), name="Trainer")
    state.destroy_process_group()
    return kept["id"][:]


@pytest.mark.full
def test_two_processes_share_the_measuring(checkpoints):
    """Each has the whole result, in the order of the rows."""
    assert outcomes(kept_of_five, 2, checkpoints("qwen2_5_vl")) == [["0", "2", "4"]] * 2


def test_a_bound_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="AdaPOConfig: max_prompt_length=0, expected 1 or more"):
        AdaPOConfig(str(tmp_path), use_cpu=True, bf16=False, max_prompt_length=0)
