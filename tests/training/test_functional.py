import pytest
import torch

from trl_mmreason.functional import aggregate_token_loss, informative_groups, k3_divergence, turn_of_token

# Two rows of three tokens; the mask keeps two of the first row and one of the second.
LOSS = torch.tensor([[1.0, 3.0, 50.0], [8.0, 70.0, 90.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("grpo", 5.0),  # ((1 + 3) / 2 + 8) / 2
        ("sapo", 5.0),
        ("bnpo", 4.0),  # 12 / 3
        ("dr_grpo", 0.6),  # 12 / (2 rows * 10 tokens)
        ("luspo", 6.0),  # (4 + 8) / 2
        ("dapo", 2.0),  # 12 / 6
        ("cispo", 2.0),
        ("vespo", 2.0),
    ],
)
def test_aggregation_of_each_loss_type(loss_type, expected):
    total = aggregate_token_loss(LOSS, MASK, loss_type, max_tokens=10, batch_tokens=6.0)
    assert total.item() == pytest.approx(expected)


def test_rows_without_kept_tokens_add_nothing():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert aggregate_token_loss(LOSS, mask, "grpo", max_tokens=10, batch_tokens=6.0).item() == pytest.approx(1.0)


def test_an_unknown_loss_type_is_refused():
    with pytest.raises(ValueError, match="unknown loss_type 'ppo'"):
        aggregate_token_loss(LOSS, MASK, "ppo", max_tokens=1, batch_tokens=1.0)


def test_k3_divergence():
    # policy 0.5, reference 0.25: exp(d) = 1/2, so 0.5 + ln 2 - 1
    logps, ref = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.5]]).log()
    expected = [0.5 + 0.6931472 - 1, 0.0]
    assert k3_divergence(logps, ref)[0].tolist() == pytest.approx(expected, abs=1e-6)
    # an importance weight of 3 multiplies the estimate
    weighted = k3_divergence(logps, ref, torch.tensor([[3.0]]).log())
    assert weighted[0].tolist() == pytest.approx([3 * x for x in expected], abs=1e-6)


def test_turns_change_at_the_users_turn_and_padding_follows():
    env_mask = torch.tensor([[1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1]])
    assert turn_of_token(env_mask).tolist() == [[1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1]]


def test_informative_groups_need_two_kept_and_different_rewards():
    rewards = torch.tensor(
        [
            [1.0, 1.0, 1.0],  # all the same
            [1.0, torch.nan, 1.0],  # the kept ones are the same
            [1.0, torch.nan, 0.5],
            [1.0, torch.nan, torch.nan],  # one kept
            [torch.nan, torch.nan, torch.nan],
        ]
    )
    assert informative_groups(rewards).tolist() == [False, False, True, False, False]
