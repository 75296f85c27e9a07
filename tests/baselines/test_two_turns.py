"""Two-turn GRPO with fixed rewards and SCoRe: what reaches the update, and what is refused."""

import pytest
import torch
from support import (
    SMALL_RUN,
    ParityGrader,
    adapo_config,
    changed_weights,
    is_even,
    load,
    maker,
    recorded_batches,
    types_of,
    weights_of,
)

from trl_mmreason.adapo.trainer import RewardSignal
from trl_mmreason.baselines.two_turns import FixedRewardsConfig, FixedRewardsTrainer, SCoReConfig, SCoReTrainer
from trl_mmreason.functional import turn_of_token

# 0→0, 0→1, 1→0, 1→1
TYPES = types_of(range(4))


def trainer_of(trainer, config, model, folder, rows, **settings):
    return maker(trainer, config, arguments={"grader": ParityGrader()}, **SMALL_RUN)(model, folder, rows, **settings)


def outcome(trainer, types=TYPES):
    trainer.model.train()
    trainer.types = types
    return trainer.score_groups(torch.zeros(len(types), 1))


@pytest.mark.parametrize("trainer", [FixedRewardsTrainer, SCoReTrainer])
def test_a_configuration_without_its_settings_is_refused(trainer, tmp_path):
    expected = trainer.__name__.replace("Trainer", "Config")
    with pytest.raises(TypeError, match=f"args is of type AdaPOConfig, expected {expected}"):
        trainer("a model", args=adapo_config(tmp_path))


def test_fixed_rewards_and_one_coefficient(checkpoints, rows, tmp_path):
    given = {"r_01": 1.5, "r_11": 0.5, "r_10": -1.0, "r_00": -0.25, "beta": 0.02}
    trainer = trainer_of(FixedRewardsTrainer, FixedRewardsConfig, checkpoints("qwen2_5_vl"), tmp_path, rows, **given)
    found = outcome(trainer)
    assert found.rewards[:, 0].tolist() == [-0.25, 1.5, -1.0, 0.5]
    assert found.kl_coefs.tolist() == [[pytest.approx(0.02)] * 2] * 4


def test_score_changes_its_stage_half_way(checkpoints, rows, tmp_path):
    trainer = trainer_of(SCoReTrainer, SCoReConfig, checkpoints("qwen2_5_vl"), tmp_path, rows)
    trainer.state.max_steps = 10
    for step, rewards, betas in ((0, [0, 1, 0, 1], (0.1, 0)), (4, [0, 1, 0, 1], (0.1, 0)), (5, [0, 11, -9, 2], None)):
        trainer.state.global_step = step
        found = outcome(trainer)
        assert found.rewards[:, 0].tolist() == rewards
        assert found.kl_coefs[0].tolist() == pytest.approx(betas or (0.01, 0.01))
    # turn 1 earns 0, 0, 1, 1: mean 1/2, std √(1/3); turn 2 earns 0, 11, -10, 1: mean 1/2, std √(220/3 + 1/3)
    first, second = found.advantages.T
    assert first.tolist() == pytest.approx([-0.866, -0.866, 0.866, 0.866], abs=1e-3)
    assert second.tolist() == pytest.approx([-0.0583, 1.2235, -1.2235, 0.0583], abs=1e-3)


@pytest.mark.parametrize(("alpha", "types"), [(1.0, [1, 3, 1, 3]), (0.0, [1, 2, 1, 2])])
def test_a_group_whose_turns_differ_is_kept_though_their_sums_do_not(checkpoints, rows, tmp_path, alpha, types):
    """At α = 1 0→1 earns (0, 2) and 1→1 (1, 1); at α = 0 0→1 earns (0, 1) and 1→0 (1, 0)."""
    given = {"alpha": alpha, "stage_one_share": 0.0}
    run = trainer_of(SCoReTrainer, SCoReConfig, checkpoints("qwen2_5_vl"), tmp_path, rows, **given)
    found = outcome(run, types_of(types))
    assert found.keep.all()
    first, second = found.advantages.T  # mean 1/2 or 3/2, std √(1/3)
    assert first.tolist() == pytest.approx([-0.866, 0.866] * 2, abs=1e-3)
    assert second.tolist() == pytest.approx([0.866, -0.866] * 2, abs=1e-3)
    assert not outcome(run, types_of([3] * 4)).keep.any()


def test_a_turn_s_advantage_reaches_its_tokens_alone(checkpoints, rows, tmp_path, monkeypatch):
    """Each trajectory is paid by its own second type, and its rows are found by their tokens, not their places."""
    run = trainer_of(SCoReTrainer, SCoReConfig, checkpoints("qwen2_5_vl"), tmp_path, rows, max_steps=1)
    run.args.filter_truncated = run.args.filter_zero_advantage = False

    def compute_rewards(first, second, keep, errors):
        # ±1 for the first answer and ±10 for the second, + when it is right
        by_turn = torch.stack([2.0 * first - 1, 20.0 * second - 10], dim=2)
        return RewardSignal(by_turn.sum(dim=2), torch.zeros(len(first), 2), by_turn)

    monkeypatch.setattr(run, "compute_rewards", compute_rewards)
    batches = recorded_batches(run)
    run.train()
    seen = set()
    for batch in batches:
        turns = turn_of_token(batch["tool_mask"].clone())
        for row, advantages in enumerate(batch["advantages"]):
            own = batch["completion_mask"][row] * batch["tool_mask"][row] > 0
            for turn, paid in ((1, 1.0), (2, 10.0)):
                here = own & (turns[row] == turn)
                if here.any():
                    text = run.processing_class.decode(batch["completion_ids"][row][here], skip_special_tokens=True)
                    right = is_even(text)
                    assert set(advantages[here].tolist()) == {paid if right else -paid}
                    seen.add((turn, right))
    assert seen == {(1, True), (1, False), (2, True), (2, False)}


@pytest.mark.parametrize(
    ("trainer", "config"), [(FixedRewardsTrainer, FixedRewardsConfig), (SCoReTrainer, SCoReConfig)]
)
def test_a_real_run_trains_and_logs_both_turns(checkpoints, rows, tmp_path, trainer, config):
    path = checkpoints("qwen2_5_vl")
    run = trainer_of(trainer, config, path, tmp_path, rows)
    run.train()
    entry = run.state.log_history[0]
    assert {"acc_t1", "acc_t2", "correction_rate", "misjudgment_rate", "kl_t1", "kl_t2"} <= entry.keys()
    assert changed_weights(run.model, weights_of(load(path)[0]))


def test_score_stage_two_begins_in_the_run(checkpoints, rows, tmp_path):
    run = trainer_of(SCoReTrainer, SCoReConfig, checkpoints("qwen2_5_vl"), tmp_path, rows, max_steps=4)
    run.train()
    betas = [(entry["beta_1"], entry["beta_2"]) for entry in run.state.log_history if "beta_1" in entry]
    assert betas[0] == pytest.approx((0.1, 0.0))
    assert betas[-1] == pytest.approx((0.01, 0.01))


@pytest.mark.parametrize(
    ("trainer", "config"), [(FixedRewardsTrainer, FixedRewardsConfig), (SCoReTrainer, SCoReConfig)]
)
def test_a_third_turn_is_refused(checkpoints, rows, tmp_path, trainer, config):
    given = {"trainer_kwargs": {"max_turns": 3}}
    with pytest.raises(ValueError, match=f"^{trainer.__name__}: got max_turns=3, expected 2"):
        trainer_of(trainer, config, checkpoints("qwen2_5_vl"), tmp_path, rows, **given)


@pytest.mark.parametrize("config", [FixedRewardsConfig, SCoReConfig])
def test_settings_of_adaptive_rewards_are_refused(config, tmp_path):
    with pytest.raises(ValueError, match="k_01, threshold belong to AdaPO's adaptive rewards and have no effect here"):
        config(str(tmp_path), **SMALL_RUN, k_01=0.5, threshold=0.5)


def test_score_takes_no_other_rewards(checkpoints, tmp_path):
    with pytest.raises(ValueError, match="reward_funcs are not supported: both stages replace all rewards"):
        SCoReTrainer(checkpoints("qwen2_5_vl"), args=SCoReConfig(str(tmp_path), **SMALL_RUN), reward_funcs=[len])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"scale_rewards": "none"}, "scale_rewards belong to advantages of whole trajectories and have no effect here"),
        ({"reward_weights": [2.0]}, "reward_weights belong to advantages of whole trajectories"),
        ({"evaluation_prompt": None}, "got evaluation_prompt=None; expected a string"),
        ({"beta": 0.0}, "beta=0 leaves out the reference model that stage_one_beta=0.1 needs"),
    ],
)
def test_score_refuses_what_does_nothing_and_needs_its_reference(tmp_path, given, told):
    with pytest.raises(ValueError, match=told):
        SCoReConfig(str(tmp_path), **SMALL_RUN, **given)
