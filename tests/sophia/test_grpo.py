"""GRPO on mixed groups: what drops out, and that the rest is TRL's GRPO on the rest."""

import pytest
from datasets import Dataset
from PIL import Image
from support import SMALL_RUN, changed_weights, recorded_batches, train_on_anything, weights_of, written_by_hand

from trl_mmreason.compat.model_parts import PARTS, parts_of
from trl_mmreason.grading import Verdict
from trl_mmreason.sophia.config import MixedGroupsGRPOConfig
from trl_mmreason.sophia.grpo import MixedGroupsGRPOTrainer
from trl_mmreason.training.vllm_config import RolloutConfig

ROW = {"prompt": [{"role": "user", "content": "What is 3+4?"}], "answer": "7", "images": []}
RIGHT, WRONG = r"\boxed{7}", r"\boxed{8}"


def trainer_for(model, folder, questions=2, *, row=None, trainer_kwargs=None, **settings):
    run = {**SMALL_RUN, "max_steps": 1, "max_completion_length": 12, "beta": 0.0}
    return MixedGroupsGRPOTrainer(
        model,
        args=MixedGroupsGRPOConfig(str(folder), **{**run, **settings}),
        train_dataset=Dataset.from_list([row or ROW] * questions),
        **(trainer_kwargs or {}),
    )


def step(trainer, texts):
    """The batch of one training step on these texts, and what was logged."""
    batches = recorded_batches(trainer)
    written_by_hand(trainer, texts)
    train_on_anything(trainer)
    return batches[0], trainer.state.log_history[0]


@pytest.mark.parametrize("same", [RIGHT, WRONG])
@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_a_group_without_contrast_takes_part_in_nothing(same, scale_rewards, checkpoints, tmp_path):
    """One group has 1 of 4 right, the other 4 or 0 of 4: half of the trajectories are left."""
    mixed = [RIGHT, WRONG, WRONG, WRONG]
    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, scale_rewards=scale_rewards)
    batch, logged = step(trainer, [*mixed, *[same] * 4])
    assert logged[f"dropped_all_{'right' if same == RIGHT else 'wrong'}"] == 0.5
    assert logged[f"dropped_all_{'wrong' if same == RIGHT else 'right'}"] == 0
    assert logged["dropped_ungraded"] == 0
    kept = batch["tool_mask"].bool().any(dim=1)
    assert kept.sum() == 4
    # Mean 0.25 and standard deviation 0.5 of the mixed group; the dropped ones must not change the latter.
    scale = 1.0 if scale_rewards == "none" else 0.5
    scale /= 2  # the loss is a mean over 8 trajectories, and is to be one over these 4
    expected = sorted([0.75 / scale, *[-0.25 / scale] * 3])
    assert sorted(batch["advantages"][kept].tolist()) == pytest.approx(expected, rel=1e-3)


def test_an_evaluation_counts_all_groups(checkpoints, tmp_path):
    """Of two questions one is always answered, which training would leave out with its rewards."""
    given = {"eval_dataset": Dataset.from_list([ROW] * 2)}
    settings = {"scale_rewards": "batch", "per_device_eval_batch_size": 8, "trainer_kwargs": given}
    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, **settings)
    written_by_hand(trainer, [RIGHT] * 4 + [WRONG] * 4)
    assert trainer.evaluate()["eval_reward"] == 0.5


def test_nothing_moves_without_a_mixed_group(checkpoints, tmp_path):
    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, weight_decay=0.0)
    before = weights_of(trainer.model)
    step(trainer, [RIGHT] * 4 + [WRONG] * 4)
    assert not changed_weights(trainer.model, before)


class HalfGrader:
    """Cannot use the gold of every other question."""

    def grade_batch(self, items):
        return [
            Verdict(None, None, "") if number < 4 else Verdict(number % 2 == 0, None, "")
            for number, _ in enumerate(items)
        ]


def test_what_cannot_be_graded_is_left_out(checkpoints, tmp_path):
    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"grader": HalfGrader()})
    batch, logged = step(trainer, [RIGHT] * 8)
    assert logged["dropped_ungraded"] == 0.5
    assert batch["tool_mask"].bool().any(dim=1).sum() == 4


def test_a_second_turn_is_refused(checkpoints, tmp_path):
    with pytest.raises(ValueError, match="leave `followup` out"):
        trainer_for(checkpoints("qwen2_5_vl"), tmp_path, trainer_kwargs={"followup": "Again."})


@pytest.mark.parametrize("chosen", [None, list(PARTS)], ids=["by default", "all"])
def test_what_the_update_froze_stays_frozen(chosen, checkpoints, tmp_path, caplog):
    """Appendix B.2 takes from B.1 that the language model alone is trained; an image reaches all parts."""
    row = {**ROW, "images": [Image.effect_noise((56, 56), 99).convert("RGB")]}
    given = {} if chosen is None else {"trainable_parts": chosen}
    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, row=row, learning_rate=1e-2, **given)
    assert "MixedGroupsGRPOTrainer trains of vision: " in caplog.text
    before = weights_of(trainer.model)
    place = parts_of(trainer.model)
    step(trainer, [RIGHT, WRONG, WRONG, WRONG] * 2)
    moved = {place[name] for name in changed_weights(trainer.model, before)}
    assert moved == set(chosen or ["language"])
    assert {name for name, part in trainer.parts.items() if part.trained} == moved


def test_unknown_parts_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"MixedGroupsGRPOConfig: trainable_parts=\['lm'\], expected one or more of"):
        MixedGroupsGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, trainable_parts=["lm"])


def test_settings_that_freeze_nothing_are_refused(checkpoints, tmp_path):
    args = RolloutConfig(str(tmp_path), use_cpu=True, bf16=False)
    with pytest.raises(TypeError, match="args is of type RolloutConfig, expected MixedGroupsGRPOConfig"):
        MixedGroupsGRPOTrainer(checkpoints("qwen2_5_vl"), args=args, train_dataset=Dataset.from_list([ROW]))


def test_a_system_message_of_the_row_is_not_overwritten(checkpoints, tmp_path):
    row = {**ROW, "prompt": [{"role": "system", "content": "Be brief."}, *ROW["prompt"]]}
    kwargs = {"system_prompt": "Think."}
    with pytest.raises(ValueError, match="system message of its own, 'Be brief.'"):
        trainer_for(checkpoints("qwen2_5_vl"), tmp_path, row=row, trainer_kwargs=kwargs)
