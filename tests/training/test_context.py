"""Rows that do not fit the context: known before training, or left without a second turn and counted.

vLLM itself runs in tests/engines; here a trainer is told what vLLM's context holds.
"""

import logging
from types import SimpleNamespace

import pytest
from datasets import Dataset
from support import adapo_trainer

from trl_mmreason.compat.replaced import replaced
from trl_mmreason.training import rollout
from trl_mmreason.training.prompt_length import check_context, prompt_lengths


def vllm_of(context):
    """What a trainer knows of a colocated vLLM with such a context."""
    return SimpleNamespace(context=context, longest_prompt=context - 1, context_setting="vllm_max_model_length")


@pytest.fixture
def warnings(caplog):
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_first_answer_that_leaves_no_room_gets_no_second_turn_and_is_counted(
    checkpoints, rows, tmp_path, monkeypatch, warnings
):
    """Half of the rows have no room, whatever they answer: neither reward nor loss tells them from cut ones."""
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, filter_zero_advantage=False, temperature=0.2)
    lengths, between = prompt_lengths(trainer.train_dataset, trainer.processing_class), len(trainer._followup_ids)
    longest = sorted(lengths)[len(rows) // 2]
    short, long = (rows[lengths.index(length)] for length in (min(lengths), max(lengths)))
    end = trainer.processing_class.tokenizer.eos_token_id
    trainer.vllm_generation = vllm_of(longest + between + 2)
    monkeypatch.setattr(rollout, "longest_prompt", lambda trainer: trainer.vllm_generation.longest_prompt)
    generate, asked = trainer._generate_single_turn, []

    def answers_end(prompt_ids, *args, **kwargs):
        """A first answer of one token, the end; the second is the policy's."""
        asked.append([len(ids) for ids in prompt_ids])
        answers, logprobs = generate(prompt_ids, *args, **kwargs)
        return ([[end]] * len(answers) if len(asked) == 1 else answers), logprobs

    trainer._generate_single_turn = answers_end
    trainer.model.train()
    batch = trainer._generate_and_score_completions([short] * 4 + [long] * 4)
    first, second = asked
    assert first == [min(lengths)] * 4 + [max(lengths)] * 4
    assert second == [min(lengths) + 1 + between] * 4
    metrics = trainer._metrics["train"]
    assert metrics["no_room_t2"] == [0.5]
    assert batch["tool_mask"][4:].sum() == 0  # they are dropped, as what was cut is
    assert metrics["dropped_truncated"][0] >= 0.5
    (warning,) = (text for text in warnings() if "no_room_t2" in text)
    assert "4 of 8 trajectories of a batch left no room for another answer" in warning


def test_limits_that_do_not_fit_the_context_are_told_before_training(checkpoints, rows, tmp_path, warnings):
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, max_prompt_length=200)
    between = len(trainer._followup_ids)
    needed = 200 + 2 * 6 + between
    with replaced(trainer, use_vllm=True):
        trainer.vllm_generation = vllm_of(needed)
        check_context(trainer)
        assert [text for text in warnings() if "a row may have" in text] == []
        trainer.vllm_generation = vllm_of(needed - 1)
        check_context(trainer)
        (told,) = (text for text in warnings() if "a row may have" in text)
        assert f"{needed} tokens (max_prompt_length=200, 2 x max_completion_length=6, {between} between" in told
        assert f"vLLM's context holds {needed - 1} (vllm_max_model_length)" in told
        # a limit that vLLM would not take does no harm where no prompt is as long
        lengths = prompt_lengths(trainer.train_dataset, trainer.processing_class)
        trainer.vllm_generation = vllm_of(max(lengths) + 1)
        check_context(trainer)
        trainer.vllm_generation = vllm_of(max(lengths))
        with pytest.raises(
            ValueError, match=rf"prompts of train_dataset .*, or max_prompt_length={max(lengths) - 1}\."
        ):
            trainer.train()


def test_without_vllm_the_positions_of_the_policy_are_the_bound(checkpoints, rows, tmp_path, warnings):
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, max_prompt_length=200)
    check_context(trainer)
    assert [text for text in warnings() if "a row may have" in text] == []
    trainer.model.config.get_text_config().max_position_embeddings = 210
    check_context(trainer)
    (told,) = [text for text in warnings() if "a row may have" in text]
    assert "the policy was made for 210 (max_position_embeddings)" in told


def test_a_prompt_of_the_evaluation_that_vllm_would_refuse_ends_the_run_before_it_trains(checkpoints, rows, tmp_path):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    held_out = {"easy": Dataset.from_list(rows[:4]), "hard": Dataset.from_list(rows[:4])}
    settings["trainer_kwargs"] = {"eval_dataset": held_out, "system_prompt": "Think."}
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, **settings)
    longest = max(prompt_lengths(held_out["easy"], trainer.processing_class, system_prompt="Think."))
    with replaced(trainer, use_vllm=True):
        trainer.vllm_generation = vllm_of(longest + 1)
        check_context(trainer)
        trainer.vllm_generation = vllm_of(longest)
        with pytest.raises(ValueError, match=rf"1 of 4 prompts of eval_dataset\['easy'\] .* the longest has {longest}"):
            trainer.train()
    assert trainer.state.global_step == 0
