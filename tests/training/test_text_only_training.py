"""Trainers on text-only policies: rows of `load_rows` have a column of images, which is empty."""

import pytest
from datasets import Dataset
from every_trainer import DPO, GRPO, TRAINERS, make, rows_of
from exactness import Plain, rollout_difference
from support import changed_weights, full_but, prepared_batch, weights_of
from text_reasoners import saved_reasoner
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from trl_mmreason.chain_of_step.tokens import add_chain_tokens

SUPERVISED = [name for name in TRAINERS if name not in GRPO]
OWN = {name: {"freeze_vision_encoder": False} for name in ("ChainOfStepSFTTrainer", "ProcessRewardTrainer", DPO)}
OWN["SRPOTrainer"] = OWN[DPO]
OWN["MixedGroupsGRPOTrainer"] = {"trainable_parts": ["language"]}
OWN["OffPolicyRewardTrainer"] = {"trainable_parts": ["language"]}


@pytest.fixture(scope="module", params=full_but("qwen2", ["qwen2", "llama"]))
def policy(request, tmp_path_factory):
    folder = saved_reasoner(request.param, tmp_path_factory.mktemp(request.param))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    add_chain_tokens(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def text_rows(name):
    return rows_of(name).map(lambda row: {"images": []})


@pytest.mark.parametrize("name", SUPERVISED)
def test_rows_without_images_train(name, policy, tmp_path):
    trainer = make(name, policy, tmp_path, rows=text_rows(name), **OWN.get(name, {}))
    before = weights_of(trainer.model)
    trainer.train()
    assert changed_weights(trainer.model, before) == set(before)


@pytest.mark.parametrize("name", GRPO)
def test_what_is_sampled_or_written_is_scored_as_the_plain_model_scores_it(name, policy, tmp_path):
    trainer = make(name, policy, tmp_path, rows=text_rows(name), **OWN.get(name, {}))
    assert rollout_difference(trainer, Plain(policy, AutoConfig.from_pretrained(policy))) < 1e-5
    before = weights_of(trainer.model)
    trainer.train()
    assert changed_weights(trainer.model, before) == set(before)


def test_a_question_in_parts_is_what_the_policy_reads(policy, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": [{"type": "text", "text": "How many?"}]}], "answer": "3"}] * 4
    trainer = make("AdaPOTrainer", policy, tmp_path, rows=Dataset.from_list(rows))
    prepared_batch(trainer, rows)
    read = trainer.processing_class.decode(trainer.trajectories[0].prompt.ids)
    assert "How many?" in read
    assert "type" not in read


def test_the_loss_covers_the_completions_and_is_that_of_rows_without_the_column(policy, tmp_path):
    name = "ReflectionSFTTrainer"
    losses = []
    for rows in (text_rows(name), text_rows(name).remove_columns("images")):
        trainer = make(name, policy, tmp_path, rows=rows, eval_strategy="no")
        losses.append(trainer.evaluate(rows)["eval_loss"])
        (row, *_) = trainer.get_train_dataloader().dataset
        answer = trainer.processing_class.decode([token for token in row["labels"] if token != -100])
        assert answer.startswith("<think>a</think>")
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", [*SUPERVISED, "AdaPOTrainer", "SRPOTrainer", "MixedGroupsGRPOTrainer"])
def test_a_row_with_an_image_is_refused(name, policy, tmp_path):
    with pytest.raises(ValueError, match=f"{name}: row 0 has an image, which a text-only policy cannot see"):
        make(name, policy, tmp_path, **OWN.get(name, {}))
