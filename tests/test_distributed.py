"""One process and two give the same rewards, advantages, coefficients and update, with a group that straddles them."""

import pytest
import torch
from processes import launch, outcomes
from support import assert_weights

LOGGED = ["acc_t1", "acc_t2", "error_rate", "beta_1", "beta_2", "length_t1", "length_t2", "kl_t1", "dropped_truncated"]


@pytest.mark.parametrize(
    ("method", "loss_type"),
    [
        ("adapo", "dapo"),
        pytest.param("adapo", "grpo", marks=pytest.mark.full),
        pytest.param("score", "dapo", marks=pytest.mark.full),
        pytest.param("correctness", "grpo", marks=pytest.mark.full),
    ],
)
def test_two_processes_equal_one(checkpoints, tmp_path, method, loss_type):
    model = checkpoints("qwen2_5_vl")
    # three groups of four: with two processes the second group lies half on each
    (alone,) = outcomes("two_process_run.py", 1, model, tmp_path / "one", 12, loss_type, method)
    pair = outcomes("two_process_run.py", 2, model, tmp_path / "two", 6, loss_type, method)
    assert alone["world_size"] == 1
    assert [part["world_size"] for part in pair] == [2, 2]
    assert 0 < alone["keep"].sum() < 12  # some are dropped
    if method == "correctness":
        # 1→1, 0→1, 1→1, 0→1 lie half on each process: P = 1/2, and the letter of A.2 drops them
        assert alone["rewards"][4:8, 0].tolist() == pytest.approx([1.1, 0.9, 1.1, 0.9])
        assert not alone["keep"][4:8].any()

    for part in pair:  # what concerns groups is the same on every process
        torch.testing.assert_close(part["rewards"], alone["rewards"], equal_nan=True)
        torch.testing.assert_close(part["kl_coefs"], alone["kl_coefs"])
        assert torch.equal(part["keep"], alone["keep"])
        assert part["kept_tokens"] == alone["kept_tokens"]
        assert_weights(part["weights"], alone["weights"], atol=1e-5)
    together = [row for part in pair for row in part["advantages"]]
    assert any(len(set(row)) == 2 for row in together) == (method == "score")  # of each turn its own
    for row, expected in zip(together, alone["advantages"], strict=True):
        assert row == pytest.approx(expected, abs=1e-5)
    for name in LOGGED:
        assert pair[0]["logged"][name] == pytest.approx(alone["logged"][name], abs=1e-6), name


@pytest.mark.full
def test_srpo_in_two_processes_equals_one_in_both_stages(checkpoints, tmp_path):
    model = checkpoints("qwen2_5_vl")
    (alone,) = outcomes("two_process_srpo.py", 1, model, tmp_path / "one", 12)
    pair = outcomes("two_process_srpo.py", 2, model, tmp_path / "two", 6)
    assert [part["world_size"] for part in [alone, *pair]] == [1, 2, 2]
    together = torch.cat([part["advantages"] for part in pair])
    torch.testing.assert_close(together, alone["advantages"])
    assert len(set(alone["advantages"].tolist())) > 4
    # first answers are right in 1, 4 and 1 of 4; the second group is dropped on both processes
    assert alone["keep"].tolist() == [True] * 4 + [False] * 4 + [True] * 4
    assert torch.equal(torch.cat([part["keep"] for part in pair]), alone["keep"])
    assert alone["logged"]["dropped_too_easy"] == pytest.approx(1 / 3)
    for part in pair:
        for stage in ("sft", "rl"):
            assert_weights(part[stage], alone[stage], atol=1e-5)
    logged = pair[0]["logged"]
    assert logged.keys() == alone["logged"].keys()
    for name, value in alone["logged"].items():
        assert logged[name] == pytest.approx(value, abs=1e-6), name
    assert {"acc_t1", "length_reflection", "response/cut", "rewards/brevity_reward/mean"} <= logged.keys()


@pytest.mark.full
def test_two_processes_resume_amid_their_rollouts(checkpoints, tmp_path):
    launch("two_process_resume.py", 2, checkpoints("internvl"), tmp_path)
    kept = sorted(file.name for file in (tmp_path / "checkpoint-2").glob("rollouts_*"))
    assert kept == ["rollouts_0_of_2.pt", "rollouts_1_of_2.pt"]
