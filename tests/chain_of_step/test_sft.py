"""ChainOfStepSFTTrainer: the tokens, what carries loss, what is refused, every family, resumed or not, LoRA."""

import pytest
import torch
from datasets import IterableDataset
from peft import LoraConfig
from solution_chains import chain_of_steps
from support import (
    SUPERVISED_RUN,
    assert_resumes,
    changed_weights,
    drawn_rows,
    full_but,
    load,
    losses_of,
    maker,
    weights_of,
)

from trl_mmreason import ChainOfStepSFTConfig, ChainOfStepSFTTrainer
from trl_mmreason.chain_of_step.template import SPECIAL_TOKENS
from trl_mmreason.chain_of_step.tokens import DEFINITIONS, chain_token_ids, trainable_token_indices
from trl_mmreason.compat.model_parts import parts_of
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.miniature.tasks import make_problems

RUN = {**SUPERVISED_RUN, "warmup_steps": 0}  # the first step of a warm-up changes nothing
trainer_for = maker(ChainOfStepSFTTrainer, ChainOfStepSFTConfig, **RUN)


def chains(n=8):
    """Rows with an image, two images or none."""
    problems = make_problems(["adding", "counting"], n)
    return [
        {"prompt": row["prompt"], "images": row["images"], "completion": chain_of_steps(solve(problem))}
        for row, problem in zip(drawn_rows(n), problems, strict=True)
    ]


def test_the_model_gets_the_tokens_and_learns_them(family, checkpoints, tmp_path):
    """They are in the batch as one id each, carry loss, start at their definition's mean, and a step moves them."""
    trainer = trainer_for(checkpoints(family), tmp_path, chains(), per_device_train_batch_size=2, max_steps=4)
    ids = chain_token_ids(trainer.processing_class)
    batch = next(iter(trainer.get_train_dataloader()))
    for labels in batch["labels"]:
        assert set(ids.values()) <= set(labels.tolist())
    weight = trainer.model.get_input_embeddings().weight
    token = SPECIAL_TOKENS[0]
    definition = trainer.processing_class.tokenizer(DEFINITIONS[token], add_special_tokens=False)["input_ids"]
    torch.testing.assert_close(weight[ids[token]], weight[definition].mean(dim=0))
    before = weight[ids[token]].clone()
    weights, place = weights_of(trainer.model), parts_of(trainer.model)
    trainer.train()
    losses = losses_of(trainer)
    assert losses[-1] < losses[0]
    assert not torch.equal(trainer.model.get_input_embeddings().weight[ids[token]], before)
    assert {place[name] for name in changed_weights(trainer.model, weights)} == {"projector", "language"}  # Table 7
    trainer.save_model(str(tmp_path / "saved"))
    model, processor = load(str(tmp_path / "saved"))
    assert chain_token_ids(processor) == ids
    assert torch.equal(model.get_input_embeddings().weight, trainer.model.get_input_embeddings().weight)


def test_a_stream_that_does_not_name_its_columns_keeps_its_images(checkpoints, tmp_path):
    rows = IterableDataset.from_generator(lambda: iter(chains(2)))
    assert rows.column_names is None
    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, rows, per_device_train_batch_size=1)
    images = [len(batch["image_grid_thw"]) for batch in trainer.get_train_dataloader()]
    assert images == [1, 2]


def test_rows_without_images(checkpoints, tmp_path):
    """The tokens have to be known before such rows are encoded, which TRL would do in its constructor."""
    rows = [{name: row[name] for name in ("prompt", "completion")} for row in chains()]
    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, rows)
    batch = next(iter(trainer.get_train_dataloader()))
    assert set(chain_token_ids(trainer.processing_class).values()) <= set(batch["labels"].flatten().tolist())
    trainer.train()


@pytest.mark.parametrize(
    ("completion", "problem"),
    [
        ("The answer is 7.", "row 2 .* at character 0: expected <|reasoning_start|>"),
        (chains(1)[0]["completion"][:-5], "row 2 .* expected <|answer_end|>"),
        (chains(1)[0]["completion"].partition("<|reasoning_end|>")[0], "row 2 .* the chain has no answer"),
    ],
)
def test_a_completion_that_is_no_whole_chain_is_refused_by_row(checkpoints, tmp_path, completion, problem):
    rows = chains(4)
    rows[2]["completion"] = completion
    with pytest.raises(ValueError, match=problem.replace("|", r"\|")):
        trainer_for(checkpoints("qwen2_5_vl"), tmp_path, rows)


@pytest.mark.parametrize("lora", full_but(False, [False, True]), ids=["full", "lora"])
def test_resumed_equals_uninterrupted(family, checkpoints, bases, tmp_path, lora):
    settings = {"per_device_train_batch_size": 2, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    path = bases(family) if lora else checkpoints(family)
    if lora:
        adapter = {"r": 2, "target_modules": "all-linear", "exclude_modules": ["lm_head"]}
        adapter["trainable_token_indices"] = trainable_token_indices(load(path)[0])
        settings["trainer_kwargs"] = {"peft_config": LoraConfig(**adapter)}
    assert_resumes(lambda: trainer_for(path, tmp_path, chains(), **settings), tmp_path, atol=1e-6)


def test_an_adapter_needs_a_base_with_the_tokens(checkpoints, tmp_path):
    adapter = LoraConfig(r=2, target_modules="all-linear")
    with pytest.raises(ValueError, match="Add the tokens to its base first"):
        trainer_for(checkpoints("qwen2_5_vl"), tmp_path, chains(), trainer_kwargs={"peft_config": adapter})
