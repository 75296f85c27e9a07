"""A real vLLM server that samples one step ahead: whose weights each token is of, and servers that go away."""

import pytest
import torch
from processes import launch
from recorded import TOLERANCE

pytest.importorskip("vllm")

STEPS, GROUP = 4, 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What `vllm_ahead.py` kept of its runs with a server that stays."""
    folder = tmp_path_factory.mktemp("ahead")
    launch("engines/vllm_ahead.py", 1, "qwen2_5_vl", folder, seconds=600)
    return torch.load(folder / "results_0.pt")


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    """And of those with a server that goes away."""
    folder = tmp_path_factory.mktemp("lost")
    launch("engines/vllm_ahead.py", 1, "qwen2_5_vl", folder, "lost", seconds=1800)
    return torch.load(folder / "results_0.pt")


def finished(run):
    """Whether a run ended after its last update, with nothing else sampled."""
    return run["ended"] == "finished" and not run["in_flight"] and len(run["rollouts"]) == STEPS


def metric(run, name):
    return [logs[name] for logs in run["history"] if name in logs]


def farthest(rollout, weights):
    """Nats by which the sampled log-probabilities of a rollout differ from those of a model at most."""
    return max((row["sampled"] - row[weights]).abs()[row["mask"]].max() for row in rollout)


def mean(rollout, weights):
    return torch.cat([(row["sampled"] - row[weights]).abs()[row["mask"]] for row in rollout]).mean()


def test_log_probabilities_are_those_of_the_model(runs):
    """At learning rate 0, where all weights are the same, with images and with none, in both turns."""
    run = runs["still"]
    assert len(run["rollouts"]) == STEPS
    assert max(mean(rollout, "now") for rollout in run["rollouts"]) < 1e-5
    assert max(farthest(rollout, "now") for rollout in run["rollouts"]) < TOLERANCE
    rows = [row for rollout in run["rollouts"] for row in rollout]
    assert {row["images"] for row in rows} == {0, 1, 2}
    assert {row["turns"] for row in rows} == {1, 2}


@pytest.mark.parametrize("name", ["moving", "turns"])
def test_each_rollout_is_of_the_policy_one_update_earlier(runs, name):
    """Also with evaluations in between, and with images that the user shows later."""
    first, *later = runs[name]["rollouts"]
    assert metric(runs[name], "generate_ahead/age") == [0.0] + [1.0] * (STEPS - 1)
    assert farthest(first, "now") < TOLERANCE
    for rollout in later:
        assert farthest(rollout, "before") < TOLERANCE
        assert mean(rollout, "now") > 100 * TOLERANCE
        assert all(row["older"] == row["mask"].sum() for row in rollout)


def test_an_evaluation_takes_place_in_between(runs):
    assert len([logs for logs in runs["moving"]["history"] if "eval_loss" in logs]) == 2


def test_importance_sampling_starts_from_what_was_sampled_and_the_ratio_from_the_present_policy(runs):
    for rollout, batch in zip(runs["moving"]["rollouts"], runs["moving"]["batches"], strict=True):
        for row, sampled, trained, mask in zip(rollout, batch["sampled"], batch["trained"], batch["mask"], strict=True):
            torch.testing.assert_close(sampled[mask], row["sampled"][row["mask"]])
            torch.testing.assert_close(trained[mask], row["now"][row["mask"]], atol=TOLERANCE, rtol=0)


def test_groups_stay_whole_and_each_epoch_asks_each_question_once(runs):
    for rollout in runs["still"]["rollouts"]:
        asked = [row["question"] for row in rollout]
        assert len(set(asked)) == 3
        assert asked == [question for question in asked[::GROUP] for _ in range(GROUP)]


def test_the_last_update_waits_for_nothing(runs):
    assert all(finished(runs[name]) for name in ("still", "moving", "turns"))


def test_a_groups_images_travel_once(runs):
    """Of three questions two have images, in each of four rollouts: second turns send none again."""
    assert runs["still"]["rows_sent"] == 2 * STEPS


@pytest.mark.full
@pytest.mark.parametrize(("name", "ages"), [("stale", [0, 1, 1, 0]), ("restarted", [0, 1, 1, 1])])
def test_a_server_that_was_started_anew_gets_the_weights_again(lost, name, ages):
    """`stale`: amid the last rollout, which is sampled again; `restarted`: between two, of which none is lost."""
    run = lost[name]
    assert finished(run)
    assert metric(run, "generate_ahead/age") == ages
    for age, rollout in zip(ages, run["rollouts"], strict=True):
        assert farthest(rollout, "before" if age else "now") < TOLERANCE


@pytest.mark.full
def test_a_server_that_does_not_come_back_ends_the_run_with_a_checkpoint(lost):
    """`killed`: amid a rollout; `stopped`: it takes requests between two of them, and answers none."""
    for name, step in (("killed", 3), ("stopped", 2)):
        assert lost[name]["ended"] == "status 75"
        assert lost[name]["checkpoints"] == [f"checkpoint-{step}"]


@pytest.mark.full
def test_a_resumed_run_asks_the_questions_that_are_left(runs, lost):
    def questions(run):
        return [[row["question"] for row in rollout] for rollout in run["rollouts"]]

    resumed = lost["resumed"]
    assert resumed["ended"] == "finished"
    done = len(lost["killed"]["rollouts"])
    assert questions(lost["killed"]) + questions(resumed) == questions(runs["moving"])
    assert metric(resumed, "generate_ahead/age")[done] == 0.0  # sampled again
    for rollout in resumed["rollouts"][:1]:
        assert farthest(rollout, "now") < TOLERANCE


@pytest.mark.full
def test_two_processes_get_their_own_rows(tmp_path):
    """Twelve rows of three groups, six in each: the second group has two in both."""
    launch("engines/vllm_ahead.py", 2, "qwen2_5_vl", tmp_path, seconds=1200)
    pair = [torch.load(tmp_path / f"results_{rank}.pt")["together"] for rank in range(2)]
    for number in range(STEPS):
        parts = [run["rollouts"][number] for run in pair]
        assert [len(part) for part in parts] == [6, 6]
        asked = [row["question"] for part in parts for row in part]
        assert asked == [question for question in asked[::GROUP] for _ in range(GROUP)]
        assert max(farthest(part, "before" if number else "now") for part in parts) < TOLERANCE
    assert {row["turns"] for run in pair for rollout in run["rollouts"] for row in rollout} == {1, 2}
