"""Oversampling with a real vLLM: an answer goes on in the next rollout, in either turn and with its images."""

import pytest
import torch
from processes import free_port, launch
from recorded import TOLERANCE

pytest.importorskip("vllm")

GROUP = 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(family, learning rate, method) → what its run kept, made when first asked for."""
    made = {}

    def run(*case):
        if case not in made:
            family, rate, method = (*case, "adapo")[:3]
            folder = tmp_path_factory.mktemp(f"{family}_{rate}_{method}")
            port = {"MASTER_PORT": str(free_port())}  # another file's vLLM may have the default one
            launch("engines/vllm_oversampled.py", 1, method, family, folder, rate, seconds=300, environment=port)
            made[case] = torch.load(folder / "results.pt")
        return made[case]

    return run


@pytest.mark.parametrize(
    "family", ["qwen2_5_vl", *(pytest.param(name, marks=pytest.mark.full) for name in ("internvl", "llava_next"))]
)
def test_every_segment_has_the_log_probabilities_of_the_model(runs, family):
    """At learning rate 0, where the weights that began an answer are those that end it."""
    rollouts = runs(family, 0.0)["rollouts"]
    nats = [(row["sampled"] - row["own"]).abs()[row["mask"]] for rollout in rollouts for row in rollout]
    assert torch.cat(nats).mean() < 1e-5
    assert torch.cat(nats).max() < TOLERANCE
    rows = [row for rollout in rollouts for row in rollout]
    went_on = [row for row in rows if 0 < row["older"] < sum(row["turns"])]
    assert {row["images"] for row in went_on} == {0, 1, 2}
    assert any(row["older"] < row["turns"][0] for row in went_on), "no first answer went on"
    assert any(row["turns"][0] < row["older"] for row in went_on), "no second answer went on"
    assert max(length for row in rows for length in row["turns"]) <= 16  # in all, not in each rollout


def test_images_that_the_user_shows_later_go_on_with_their_answer(runs):
    """Three turns, also of rows that begin with two images."""
    rows = [row for rollout in runs("qwen2_5_vl", 0.0, "turns")["rollouts"] for row in rollout]
    assert max((row["sampled"] - row["own"]).abs()[row["mask"]].max() for row in rows) < TOLERANCE
    assert {len(row["turns"]) for row in rows if row["images"] > 2 and row["older"]} & {2, 3}


def test_groups_stay_whole_and_as_many_wait_as_are_asked_for_more(runs):
    for number, rollout in enumerate(runs("qwen2_5_vl", 0.0)["rollouts"]):
        assert len(rollout) == 3 * GROUP
        for first in range(0, len(rollout), GROUP):
            assert len({row["question"] for row in rollout[first : first + GROUP]}) == 1
        assert {row["waited"] for row in rollout} == {(3 if number else 0, 3)}


def test_no_question_waits_for_longer_than_it_may(runs):
    history = runs("qwen2_5_vl", 0.0)["history"]
    ages = [logs["oversampling/max_age"] for logs in history if "oversampling/max_age" in logs]
    assert ages[0] == 0
    assert 1 <= max(ages) <= 3  # oversampling_max_age=2, and one more in the order of questions
    assert all(0 <= logs["oversampling/older_tokens"] < 1 for logs in history if "oversampling/older_tokens" in logs)


def test_each_token_keeps_the_log_probability_of_the_weights_that_sampled_it(runs):
    """The policy ratio begins at the weights of the update, and TRL corrects from those that sampled."""
    found = runs("qwen2_5_vl", 1e-4)
    moved = []
    for rollout, batch in zip(found["rollouts"], found["batches"], strict=True):
        for row, sampled, trained, mask in zip(rollout, batch["sampled"], batch["trained"], batch["mask"], strict=True):
            torch.testing.assert_close(sampled[mask], row["sampled"][row["mask"]])
            torch.testing.assert_close(trained[mask], row["own"][row["mask"]], atol=TOLERANCE, rtol=0)
            differences = (sampled - trained)[mask].abs()
            if row["older"]:
                moved.append(differences[: row["older"]].mean())
            newer = differences[row["older"] :]
            assert not len(newer) or newer.max() < TOLERANCE
    assert torch.stack(moved).mean() > 100 * TOLERANCE


def test_the_first_rollout_is_compared_with_the_model_and_later_ones_are_not(runs):
    assert max(runs("qwen2_5_vl", 1e-4)["facts"]["engine_differences"].values()) < TOLERANCE
