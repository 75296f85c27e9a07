"""Prompts of a rollout that are tokenised once a group, and read once by the policy."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from support import FAMILY_NAMES, adapo_trainer, drawn_rows, full_but
from trl import GRPOTrainer
from trl.data_utils import apply_chat_template, prepare_multimodal_messages

from trl_mmreason.generation.batch import Prompt
from trl_mmreason.training import sampled_turns
from trl_mmreason.training.group_prompts import GroupPrompts
from trl_mmreason.training.padding import model_inputs

GROUP = 4


@pytest.fixture
def prompts(rows):
    """Three groups, with one image, with two and with none; images are objects of their own in each row."""
    repeated = [drawn_rows(3)[question] for question in range(3) for _ in range(GROUP)]
    return [prepare_multimodal_messages(row["prompt"], images=row["images"]) for row in repeated]


def as_arrays(fields):
    """Values of the fields; those of tokens as lists, which differ in length."""
    return {
        name: value if isinstance(value, list) and isinstance(value[0], list) else np.asarray(value)
        for name, value in fields.items()
    }


@pytest.mark.parametrize("family", full_but("qwen2_5_vl", FAMILY_NAMES))
def test_rows_are_tokenised_as_trl_does_it_all_at_once(family, checkpoints, rows, prompts, tmp_path):
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows)
    ids, images, grouped = trainer._tokenize_prompts(prompts)
    assert grouped.place == [0] * GROUP + [1] * GROUP + [2] * GROUP
    for chosen in (range(len(prompts)), [9, 1, 4, 4]):
        expected_ids, expected_images, expected = GRPOTrainer._tokenize_prompts(trainer, [prompts[n] for n in chosen])
        found_ids, found_images, found = grouped.rows(chosen)
        assert (found_ids, found_images) == (expected_ids, expected_images)
        np.testing.assert_equal(as_arrays(found), as_arrays(expected))
    assert (ids, images) == grouped.without_fields() == grouped.rows(range(len(prompts)))[:2]


@pytest.mark.parametrize("family", full_but("qwen2_5_vl", FAMILY_NAMES))
def test_scored_images_are_those_that_trl_processes_again(family, checkpoints, rows, prompts, tmp_path):
    """With image, images and none in one batch, as what TRL gives the model besides ids."""
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows)
    processor = trainer.processing_class
    _, images, grouped = trainer._tokenize_prompts(prompts)
    texts = [apply_chat_template({"prompt": prompt}, processor)["prompt"] for prompt in prompts]
    asked = {"images": [row or [] for row in images], "text": texts, "padding": True, "return_tensors": "pt"}
    expected = dict(processor(**asked))
    read = [grouped.prompt(row) for row in range(len(prompts))]
    fields = [{"token": each.token_fields, "image": each.image_fields} for each in read]
    assert expected.pop("input_ids")[expected["attention_mask"].bool()].tolist() == [
        i for each in read for i in each.ids
    ]
    found = model_inputs(fields, expected.pop("attention_mask"))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("fails", [False, True])
def test_the_processor_is_back_after_a_rollout(fails, checkpoints, tmp_path, monkeypatch):
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, Dataset.from_list(drawn_rows(2)))
    processor, calls = trainer.processing_class, []
    call = type(processor).__call__
    monkeypatch.setattr(type(processor), "__call__", lambda *args, **kwargs: calls.append(1) or call(*args, **kwargs))
    trainer.model.train()
    inputs = next(iter(trainer.get_train_dataloader()))
    if fails:
        monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", None)
        with pytest.raises(TypeError):
            trainer._generate_and_score_completions(inputs)
    else:
        score, seen = trainer.score_groups, []
        monkeypatch.setattr(
            trainer, "score_groups", lambda rewards: seen.append(trainer.processing_class) or score(rewards)
        )
        trainer._generate_and_score_completions(inputs)
        assert seen == [processor]  # rewards may process prompts of their own
    assert trainer.processing_class is processor
    assert len(calls) == 2  # one for each question, none for scoring


def test_a_group_is_tokenised_once(prompts):
    asked = []

    def encode(given):
        asked.append(given)
        return Prompt([1, 2], {}, {}), []

    grouped = GroupPrompts(encode, [*prompts, prompts[0]])
    assert asked == [prompts[0], prompts[GROUP], prompts[2 * GROUP], prompts[0]]  # only runs are looked at
    assert grouped.distinct() == ([[1, 2]] * 4, None, {})


def test_a_row_that_says_nothing_of_its_tokens_has_text_alone():
    told = {"long": Prompt([1, 2, 3], {}, {}), "short": Prompt([4, 5], {"mm_token_type_ids": [1, 0]}, {})}
    grouped = GroupPrompts(lambda given: (told[given], []), ["long", "short"])
    assert grouped.distinct() == ([[1, 2, 3], [4, 5]], None, {"mm_token_type_ids": [[0, 0, 0], [1, 0]]})


@pytest.mark.parametrize("option", ["tools", "environment_factories"])
def test_prompts_with_tools_are_left_to_trl_before_a_rollout_of_the_user_s(
    option, checkpoints, rows, prompts, tmp_path, monkeypatch
):
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, evaluation_prompt=None)
    monkeypatch.setattr(GRPOTrainer, "_tokenize_prompts", lambda _, given: (len(given), None, {}))
    monkeypatch.setattr(trainer, option, [print])
    monkeypatch.setattr(trainer, "rollout_func", print)
    assert trainer._tokenize_prompts(prompts) == (len(prompts), None, {})


def test_beams_search_from_each_row_with_its_images(checkpoints, rows, prompts, tmp_path):
    """TRL's path, as beams have rows of their own."""
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    trainer.generation_config.num_beams = 2  # which the configuration refuses
    found = []
    for way in (GRPOTrainer, type(trainer)):
        torch.manual_seed(0)
        found.append(way._generate_single_turn(trainer, *way._tokenize_prompts(trainer, prompts), GROUP))
    assert found[0] == found[1]


def test_equal_questions_about_different_images_are_two_prompts():
    first, second, _ = drawn_rows(3)
    asked = [prepare_multimodal_messages(first["prompt"], images=row["images"][:1]) for row in (first, second)]
    assert GroupPrompts(lambda given: (Prompt([1], {}, {}), []), asked).place == [0, 1]


@pytest.mark.parametrize("family", full_but("qwen2_5_vl", FAMILY_NAMES))
def test_both_turns_are_those_of_prompts_that_are_not_shared(family, checkpoints, rows, prompts, tmp_path, monkeypatch):
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows, max_completion_length=8)
    read = []
    trainer.model.get_decoder().register_forward_pre_hook(
        lambda _, args, given: read.append(len(given["inputs_embeds"])), with_kwargs=True
    )
    torch.manual_seed(0)
    shared = trainer._generate(prompts)
    assert read[0] == 3  # the policy read each prompt once
    monkeypatch.setattr(sampled_turns, "can_share_prompts", lambda *_: False)
    read.clear()
    torch.manual_seed(0)
    alone = trainer._generate(prompts)
    assert read[0] == len(prompts)
    assert shared[1:4] == alone[1:4]
