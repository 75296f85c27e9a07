"""Rewards, selection, weights and loss, with numbers that can be worked out by hand."""

import math

import pytest
import torch

from trl_mmreason.sophia.objective import caption_rewards, importance_weights, off_policy_loss, select_trajectories

# Spec, "Worked": captions A with 7 of 8 right and B with 6 of 8 right.
WORKED = torch.tensor([[1, 1, 1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0]]).bool()
WORKED_LENGTHS = torch.tensor([[50, 40, 60, 10, 40, 70, 80, 90], [5, 6, 7, 8, 9, 30, 1, 2]])


def test_caption_reward_is_the_share_of_right_trajectories():
    assert caption_rewards(WORKED).tolist() == [0.875, 0.75]


def test_the_shortest_right_trajectory_of_a_caption_strictly_above_the_threshold_is_kept():
    # B's caption has 0.75, which is not above; the 10 tokens of A are wrong; of the two with 40 the earlier wins.
    assert select_trajectories(WORKED, WORKED_LENGTHS) == [(0, 1)]
    assert select_trajectories(WORKED, WORKED_LENGTHS, keep=3) == [(0, 1), (0, 4), (0, 0)]
    assert select_trajectories(WORKED, WORKED_LENGTHS, keep=99) == [
        (0, 1), (0, 4), (0, 0), (0, 2), (0, 5), (0, 6), (0, 7),
    ]  # fmt: skip
    assert select_trajectories(WORKED, WORKED_LENGTHS, threshold=0.74) == [(1, 0)]
    assert select_trajectories(WORKED, WORKED_LENGTHS, threshold=0.875) == []


def test_ties_go_to_the_earlier_caption():
    assert select_trajectories(torch.ones(2, 2).bool(), torch.tensor([[9, 3], [3, 3]]), keep=3) == [
        (0, 1), (1, 0), (1, 1),
    ]  # fmt: skip


def test_without_the_caption_reward_any_right_trajectory_may_be_the_shortest():
    assert select_trajectories(WORKED, WORKED_LENGTHS, rule="without_caption_reward", keep=2) == [(1, 0), (1, 1)]


def test_without_the_shortest_each_right_trajectory_of_a_good_caption_is_as_likely():
    drawn = [select_trajectories(WORKED, WORKED_LENGTHS, rule="without_shortest", seed=seed)[0] for seed in range(700)]
    counts = {place: drawn.count(place) for place in set(drawn)}
    assert set(counts) == {(0, n) for n in (0, 1, 2, 4, 5, 6, 7)}
    assert all(60 < count < 140 for count in counts.values())  # 100 expected, standard deviation 9.3


def test_random_draws_among_all_without_repetition():
    drawn = select_trajectories(WORKED, WORKED_LENGTHS, rule="random", keep=16)
    assert sorted(drawn) == [(k, n) for k in range(2) for n in range(8)]
    assert drawn != sorted(drawn)
    assert drawn == select_trajectories(WORKED, WORKED_LENGTHS, rule="random", keep=16)
    assert drawn != select_trajectories(WORKED, WORKED_LENGTHS, rule="random", keep=16, seed=1)


@pytest.mark.parametrize("rule", ["sophia", "random", "without_caption_reward", "without_shortest"])
def test_what_is_not_whole_is_never_kept(rule):
    whole = torch.zeros(2, 8).bool()
    whole[0, 6] = whole[0, 7] = True
    chosen = select_trajectories(WORKED, WORKED_LENGTHS, rule=rule, keep=9, whole=whole)
    assert sorted(chosen) == [(0, 6), (0, 7)]


def test_selection_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="'shortest', expected one of"):
        select_trajectories(WORKED, WORKED_LENGTHS, rule="shortest")
    with pytest.raises(ValueError, match=r"\(2, 8\) and lengths \(8,\)"):
        select_trajectories(WORKED, WORKED_LENGTHS[0])
    with pytest.raises(ValueError, match="keep is 0"):
        select_trajectories(WORKED, WORKED_LENGTHS, keep=0)


# Two completions: log-probabilities −1, −2 and −3 (the last place of the second is padding).
LOGPS = torch.tensor([[-1.0, -2.0], [-3.0, -50.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1], [1, 0]])
REWARDS = torch.tensor([2.0, -0.5], dtype=torch.float64)


def test_the_loss_is_equation_7():
    # −(2·(−1 − 2) + −0.5·(−3)) / 2 = −(−6 + 1.5) / 2 = 2.25
    assert off_policy_loss(LOGPS, REWARDS, MASK).item() == pytest.approx(2.25, abs=1e-12)
    # the mean over the three tokens: 4.5 / 3
    assert off_policy_loss(LOGPS, REWARDS, MASK, sequence_reduction="mean").item() == pytest.approx(1.5, abs=1e-12)
    assert off_policy_loss(LOGPS, REWARDS, MASK, normalizer=9).item() == pytest.approx(0.5, abs=1e-12)


def test_the_gradient_is_the_reward_at_each_token_and_nothing_at_padding():
    logps = LOGPS.clone().requires_grad_()
    off_policy_loss(logps, REWARDS, MASK).backward()
    assert logps.grad.tolist() == [[-1.0, -1.0], [0.25, 0.0]]  # −R/B


def test_padding_may_hold_anything():
    logps = torch.tensor([[-1.0, math.nan], [-3.0, -math.inf]]).requires_grad_()
    loss = off_policy_loss(logps, torch.ones(2), torch.tensor([[1, 0], [1, 0]]))
    loss.backward()
    assert loss.item() == 2.0
    assert logps.grad.tolist() == [[-0.5, 0.0], [-0.5, 0.0]]


# Behaviour twice as likely at the first token, half as likely at the second: ratios 1/2 and 2; and 1/4 in the other,
# where padding has some ratio as well.
BEHAVIOR = LOGPS + torch.tensor([[math.log(2), -math.log(2)], [math.log(4), 7.0]], dtype=torch.float64)


def test_importance_weights_of_tokens_and_of_sequences():
    token = importance_weights(LOGPS, BEHAVIOR, MASK, "token")
    assert token.values[MASK.bool()].tolist() == pytest.approx([0.5, 2.0, 0.25])
    sequence = importance_weights(LOGPS, BEHAVIOR, MASK, "sequence")
    assert sequence.values.squeeze(1).tolist() == pytest.approx([1.0, 0.25])  # ½ · 2 and ¼
    assert not token.truncated.any()


def test_importance_weights_are_truncated_and_say_where():
    clipped = importance_weights(LOGPS, BEHAVIOR, MASK, "token", (0.4, 1.5))
    assert clipped.values[MASK.bool()].tolist() == pytest.approx([0.5, 1.5, 0.4])
    assert clipped.truncated[MASK.bool()].tolist() == [False, True, True]
    above = importance_weights(LOGPS, BEHAVIOR, MASK, "token", 1.5)
    assert above.values[MASK.bool()].tolist() == pytest.approx([0.5, 1.5, 0.25])


def test_a_long_sequence_does_not_overflow():
    weights = importance_weights(
        torch.zeros(1, 9000), torch.full((1, 9000), -9.0), torch.ones(1, 9000), "sequence", 2.0
    )
    assert weights.values.item() == pytest.approx(2.0)
    assert weights.truncated.item()


def test_the_weighted_loss_and_its_gradient():
    logps = LOGPS.clone().requires_grad_()
    options = {"behavior_logps": BEHAVIOR, "importance_sampling": "token", "clip": (0.0, 1.5)}
    loss = off_policy_loss(logps, REWARDS, MASK, **options)
    # −(2·(½·(−1) + 1.5·(−2)) + −0.5·(¼·(−3))) / 2 = −(−7 + 0.375) / 2
    assert loss.item() == pytest.approx(3.3125, abs=1e-12)
    loss.backward()
    # −R·w/B: the weights have no gradient of their own
    assert logps.grad.flatten().tolist() == pytest.approx([-0.5, -1.5, 0.0625, 0.0])
    options["importance_sampling"] = "sequence"
    # −(2·1·(−3) + −0.5·¼·(−3)) / 2 = −(−6 + 0.375) / 2
    assert off_policy_loss(LOGPS, REWARDS, MASK, **options).item() == pytest.approx(2.8125, abs=1e-12)


def test_the_losses_of_micro_batches_add_up():
    generator = torch.Generator().manual_seed(0)
    logps, rewards = -torch.rand(6, 5, generator=generator), torch.randn(6, generator=generator)
    mask = torch.arange(5) < torch.tensor([[5], [1], [3], [2], [4], [5]])
    for reduction, normalizer in (("sum", 6), ("mean", 20)):
        whole = off_policy_loss(logps, rewards, mask, sequence_reduction=reduction)
        for size in (1, 2, 4):
            parts = [
                off_policy_loss(
                    logps[k : k + size],
                    rewards[k : k + size],
                    mask[k : k + size],
                    sequence_reduction=reduction,
                    normalizer=normalizer,
                )
                for k in range(0, 6, size)
            ]
            assert sum(parts).item() == pytest.approx(whole.item(), abs=1e-6)


def test_the_loss_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="importance_sampling is 'turn'"):
        off_policy_loss(LOGPS, REWARDS, MASK, importance_sampling="turn")
    with pytest.raises(ValueError, match="sequence_reduction is 'max'"):
        off_policy_loss(LOGPS, REWARDS, MASK, sequence_reduction="max")
    with pytest.raises(ValueError, match="needs behavior_logps"):
        off_policy_loss(LOGPS, REWARDS, MASK, importance_sampling="token")
    with pytest.raises(ValueError, match=r"rewards \(2, 2\)"):
        off_policy_loss(LOGPS, LOGPS, MASK)
