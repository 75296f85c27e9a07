"""Rollouts with an adapter that a colocated vLLM holds beside its base: what is sampled is what is trained.

Layers have several ranks and scales, some of them in the vision tower. One engine start a case, as in test_vllm.py.
"""

import pytest
import torch
from processes import free_port, launch
from recorded import TOLERANCE, differences

pytest.importorskip("vllm")

CASES = {
    "adapo qwen2_5_vl": [],  # two turns
    "srpo qwen3_vl": ["memory"],  # vLLM starts from another base
    "turns qwen2_5_vl": [],  # three turns, with images in the user's messages
    "adapo internvl": ["language"],
    "chain_of_step llava_next": ["language"],
    "srpo qwen2_5_vl": ["qlora"],
}
EVERYDAY = "adapo qwen2_5_vl"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(case, options) → what each process of its run kept, made when first asked for."""
    made = {}

    def run(case, *options, processes=1):
        if (case, options) not in made:
            method, family = case.split()
            folder = tmp_path_factory.mktemp(f"{method}_{family}")
            script, port = "engines/vllm_colocated.py", {"MASTER_PORT": str(free_port())} if processes == 1 else None
            launch(script, processes, family, method, folder, *options, seconds=400, environment=port)
            made[case, options] = [torch.load(folder / f"results_{rank}.pt") for rank in range(processes)]
        return made[case, options]

    return run


@pytest.mark.parametrize("case", [EVERYDAY, *(pytest.param(case, marks=pytest.mark.full) for case in CASES)])
def test_sampled_and_trained_log_probabilities_agree(runs, case):
    (run,) = runs(case, "adapters", *CASES[case])
    for number, rollout in enumerate(run["rollouts"]):
        found = differences(rollout)
        assert found.mean() < (3 * TOLERANCE if "qlora" in CASES[case] else 1e-5), f"rollout {number}: {found.mean()}"
        moved = (rollout["trained"] - rollout["initial"]).abs()[rollout["mask"]].mean()
        assert (moved > 100 * TOLERANCE) == (number > 0), f"the policy has moved by {moved} nats"
    assert all(run["frozen"].values())


def test_the_base_is_sent_once(runs):
    (run,) = runs(EVERYDAY, "adapters")
    assert run["loads"] == 0


@pytest.mark.full
def test_two_processes_share_a_vllm(runs):
    pair = runs(EVERYDAY, "adapters", "shared", processes=2)
    for run in pair:
        assert all(differences(rollout).mean() < 1e-5 for rollout in run["rollouts"])


@pytest.mark.full
def test_in_bfloat16_vllm_is_closer_to_the_policy_than_with_merged_weights(runs):
    """After each of eleven updates; before any, when all adapters are zero, both are as close."""
    nats = {}
    for way in ("lora", "adapters"):
        (run,) = runs("srpo qwen2_5_vl", way, "bfloat16")
        first, *later = (differences(rollout) for rollout in run["rollouts"])
        nats[way] = first.mean(), torch.cat(later).mean()
    assert nats["adapters"][0] == nats["lora"][0]
    assert nats["adapters"][1] < 0.9 * nats["lora"][1]


@pytest.mark.full
def test_answers_go_on_in_the_next_rollout(tmp_path):
    """With more questions in flight, at learning rate 0."""
    place = {"MASTER_PORT": str(free_port())}
    launch(
        "engines/vllm_oversampled.py",
        1,
        "adapo",
        "qwen2_5_vl",
        tmp_path,
        0.0,
        "adapters",
        seconds=400,
        environment=place,
    )
    rows = [row for rollout in torch.load(tmp_path / "results.pt")["rollouts"] for row in rollout]
    assert any(row["older"] for row in rows)
    assert torch.cat([(row["sampled"] - row["own"]).abs()[row["mask"]] for row in rows]).mean() < 1e-5


@pytest.mark.full
def test_layers_that_vllm_does_not_adapt_are_refused(runs):
    with pytest.raises(AssertionError, match="cannot adapt 26 of the layers .* the first of them 'model.vision_tower"):
        runs("adapo internvl", "adapters")
