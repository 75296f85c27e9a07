"""The rewards of two-turn baselines, in all four cells."""

import torch

from trl_mmreason.baselines.objective import fixed_rewards, score_rewards, turn_advantages

# 0→0, 0→1, 1→0, 1→1
FIRST = torch.tensor([[False, False, True, True]])
SECOND = torch.tensor([[False, True, False, True]])


def test_fixed_rewards():
    rewards = fixed_rewards(FIRST, SECOND, r_01=1.5, r_11=0.5, r_10=-1.0, r_00=-0.25)
    assert rewards.tolist() == [[-0.25, 1.5, -1.0, 0.5]]


def test_score_pays_the_second_answer_in_stage_one():
    assert score_rewards(FIRST, SECOND, stage=1).tolist() == [[[0, 0], [0, 1], [0, 0], [0, 1]]]


def test_score_pays_both_answers_and_the_second_for_its_gain_in_stage_two():
    # r1, and r2 + 10 (r2 - r1): 0, 1 + 10, 0 - 10, 1
    assert score_rewards(FIRST, SECOND, stage=2).tolist() == [[[0, 0], [0, 11], [1, -10], [1, 1]]]
    assert score_rewards(FIRST, SECOND, stage=2, alpha=0.0).tolist() == [[[0, 0], [0, 1], [1, 0], [1, 1]]]


def test_failing_first_earns_the_first_turn_nothing():
    by_turn = score_rewards(FIRST, SECOND, stage=2)
    first_turn = turn_advantages(by_turn, torch.ones_like(FIRST))[0, :, 0]
    assert (first_turn[:2] < 0).all()  # 0→0 and 0→1
    assert (first_turn[2:] > 0).all()  # 1→0 and 1→1


def test_advantages_of_each_turn():
    # turn 1 earns 0, 2, 4: mean 2, std 2; turn 2 earns the same throughout; the last row takes part in nothing
    rewards = torch.tensor([[[0.0, 5.0], [2.0, 5.0], [4.0, 5.0], [100.0, 9.0]]])
    keep = torch.tensor([[True, True, True, False]])
    found = turn_advantages(rewards, keep)
    assert torch.allclose(found[0, :, 0], torch.tensor([-1.0, 0.0, 1.0, 0.0]), atol=1e-4)
    assert found[0, :, 1].tolist() == [0.0] * 4
    alone = turn_advantages(rewards, torch.tensor([[True, False, False, False]]))
    none = turn_advantages(rewards, torch.zeros(1, 4, dtype=torch.bool))
    assert not alone.any()
    assert not none.any()


def test_advantages_of_one_turn_are_those_of_trl():
    rewards = torch.rand(3, 8, 1, generator=torch.Generator().manual_seed(0))
    mean, std = rewards.mean(dim=1, keepdim=True), rewards.std(dim=1, keepdim=True)
    found = turn_advantages(rewards, torch.ones(3, 8, dtype=torch.bool))
    assert torch.allclose(found, (rewards - mean) / (std + 1e-4))
