"""Evaluation asks as the model's makers do (appendix D): the actor's prompt belongs to training alone."""

import pytest
from datasets import Dataset
from judged import REWARDS, SCORES, WORKED, candidate, judge_by, trainer_for
from support import drawn_rows, load, written_by_hand

from trl_mmreason import SelfEvolutionConfig
from trl_mmreason.generation.batch import encode

ACTOR = "Think first, then box the answer."
FREE = ["One: the answer is 4", "Two: the answer is 4", "Three: the answer is 4", "Five: the answer is 5"]
BY_NAME = {name.capitalize(): score for name, score in SCORES.items()}


def evaluated(path, folder, texts, scores, **settings):
    """A trainer that was evaluated on two questions, what it measured, and the prompts that the policy read."""
    rows = drawn_rows(2)
    trainer = trainer_for(
        path,
        folder,
        rows,
        trainer_kwargs={"judge": judge_by(scores), "eval_dataset": Dataset.from_list(rows)},
        actor_prompt=ACTOR,
        max_steps=1,
        per_device_eval_batch_size=8,
        **settings,
    )
    written_by_hand(trainer, texts * 2)
    read, tokenize = [], trainer._tokenize_prompts
    trainer._tokenize_prompts = lambda prompts: read.append(tokenize(prompts)) or read[-1]
    return trainer, trainer.evaluate(), {tuple(ids) for ids in read[0][0]}


def prompts_of(path, system):
    """The prompts of both questions in tokens, with this system message or none."""
    _, processor = load(path)
    before = [] if system is None else [{"role": "system", "content": system}]
    return {tuple(encode(processor, [*before, *row["prompt"]], row["images"]).ids) for row in drawn_rows(2)}


def test_the_official_prompt_is_the_question_in_the_model_s_own_template(family, checkpoints, tmp_path):
    path = checkpoints(family)
    trainer, _, read = evaluated(path, tmp_path, FREE, BY_NAME)
    assert read == prompts_of(path, None)
    assert trainer.system_prompt == ACTOR
    read, tokenize = [], trainer._tokenize_prompts
    trainer._tokenize_prompts = lambda prompts: read.append(tokenize(prompts)) or read[-1]
    trainer.train()
    assert {tuple(ids) for ids in read[0][0]} == prompts_of(path, ACTOR)


def test_the_actor_s_prompt_can_be_kept(checkpoints, tmp_path):
    path = checkpoints("qwen2_5_vl")
    _, measured, read = evaluated(path, tmp_path, FREE, BY_NAME, actor_prompt_in_evaluation=True)
    assert read == prompts_of(path, ACTOR)
    assert measured["eval_rewards/format_reward/mean"] == -0.5  # nothing is boxed
    assert measured["eval_format_violations"] == 1.0
    assert "eval_judge/score" not in measured


def test_what_was_not_asked_for_is_not_violated(checkpoints, tmp_path):
    """Answers without the format vote, are judged, and are paid as the worked example's: 4, 4, 4, 5 and its scores."""
    trainer, measured, _ = evaluated(checkpoints("qwen2_5_vl"), tmp_path, FREE, BY_NAME)
    assert measured["eval_rewards/agreement_reward/mean"] == pytest.approx(sum(REWARDS) / 4, abs=1e-5)
    assert measured["eval_rewards/format_reward/mean"] == 0.0
    assert measured["eval_judge/score"] == pytest.approx((1 + 1 + 0.4 + 0) / 4)
    assert measured["eval_agreement"] == 1.0
    assert "eval_format_violations" not in measured
    assert {candidate(request) for request in trainer.judge.asked} == set(FREE)


def test_training_still_pays_for_the_format(checkpoints, tmp_path):
    """The same trainer, after an evaluation: free answers cost 0.5 each, and boxed ones nothing."""
    trainer, _, _ = evaluated(checkpoints("qwen2_5_vl"), tmp_path, [*FREE[:2], *WORKED[:2]], {**BY_NAME, **SCORES})
    trainer.train()
    log = next(entry for entry in trainer.state.log_history if "rewards/format_reward/mean" in entry)
    assert log["rewards/format_reward/mean"] == -0.25
    assert log["format_violations"] == 0.5


def test_without_an_actor_s_prompt_both_ask_alike(checkpoints, tmp_path):
    """The format of training is then the model's own: it counts in evaluation, too."""
    trainer = trainer_for(
        checkpoints("qwen2_5_vl"),
        tmp_path,
        trainer_kwargs={"judge": judge_by(SCORES), "eval_dataset": Dataset.from_list(drawn_rows(2))},
    )
    written_by_hand(trainer, FREE * 2)
    assert trainer.evaluate()["eval_rewards/format_reward/mean"] == -0.5


def test_the_paper_s_way_is_the_default():
    config = SelfEvolutionConfig("out", use_cpu=True, bf16=False)
    assert config.eval_system_prompt is None
    both = SelfEvolutionConfig("out", use_cpu=True, bf16=False, actor_prompt=ACTOR, actor_prompt_in_evaluation=True)
    assert both.eval_system_prompt == ACTOR
    with pytest.raises(ValueError, match="actor_prompt_in_evaluation=True, but actor_prompt is None"):
        SelfEvolutionConfig("out", use_cpu=True, bf16=False, actor_prompt=None, actor_prompt_in_evaluation=True)
