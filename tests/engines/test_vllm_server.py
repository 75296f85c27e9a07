"""Rollouts with a vLLM server: what is sampled is what is trained.

One server start a case; `vllm_served.py` trains, and this file asserts what it kept. Weights travel over gloo: NCCL
needs two GPUs.
"""

import pytest
import torch
from packaging.version import Version
from processes import launch
from recorded import TOLERANCE, differences

vllm = pytest.importorskip("vllm")

CASES = {
    "qwen2_vl": ["lora"],
    "qwen2_5_vl": ["checks", "others", "oversampled"],
    "qwen3_vl": [],
    "internvl": ["lora"],
    "llava_next": ["lora", "side_by_side"],
}
OTHERS = ["srpo", "chain_of_step", "self_evolution", "sophia"]
EVERYDAY = {"qwen2_5_vl"}
TRAINED = [
    *(pytest.param(family, "adapo", marks=() if family in EVERYDAY else pytest.mark.full) for family in CASES),
    *(("qwen2_5_vl", method) for method in OTHERS),
]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """family → what its run kept, made when first asked for."""
    made = {}

    def run(family):
        if family not in made:
            folder = tmp_path_factory.mktemp(f"served_{family}")
            launch("engines/vllm_served.py", 1, family, folder, *CASES[family], seconds=600)
            made[family] = torch.load(folder / "results.pt")
        return made[family]

    return run


@pytest.mark.parametrize(("family", "method"), TRAINED)
def test_sampled_and_trained_log_probabilities_agree(runs, family, method):
    """Before any update and after each of three, in both turns, whatever images a row has, side by side or not."""
    rollouts = runs(family)[method]
    assert len(rollouts) == 4
    for number, rollout in enumerate(rollouts):
        for images in (0, 1, 2):  # mixed in every batch
            found = differences(rollout, (rollout["pictures"] == images).unsqueeze(1))
            assert len(found), f"rollout {number} has no token of a row with {images} images"
            assert found.mean() < TOLERANCE, f"rollout {number}, rows with {images} images: {found.mean()} nats"
        moved = (rollout["trained"] - rollout["initial"]).abs()[rollout["mask"]].mean()
        assert (moved > 100 * TOLERANCE) == (number > 0), f"the policy has moved by {moved} nats"
    if method == "adapo":  # a trained policy may cut all its first answers off, and then has no second ones
        first, *later = (len(differences(rollout, rollout["turn"] == 2)) for rollout in rollouts)
        assert first >= 4
        assert sum(later) >= 4


def test_images_that_the_user_shows_later_agree(runs):
    """Conversations of one turn to three, with as many more images as the user has shown."""
    first, *_ = rollouts = runs("qwen2_5_vl")["turns"]
    assert first["turn"][first["mask"]].unique().tolist() == [1, 2, 3]
    assert first["pictures"].max() > 2  # no question has more
    for rollout in rollouts:
        assert differences(rollout).mean() < TOLERANCE


def test_answers_go_on_in_the_next_rollout(runs):
    """With more questions in flight than an update takes, in either turn and with images."""
    rollouts = runs("qwen2_5_vl")["rollouts"]
    rows = [row for rollout in rollouts for row in rollout]
    nats = torch.cat([(row["sampled"] - row["own"]).abs()[row["mask"]] for row in rows])
    assert nats.mean() < 1e-5
    assert nats.max() < TOLERANCE
    went_on = [row for row in rows if 0 < row["older"] < sum(row["turns"])]
    assert {row["images"] for row in went_on} == {0, 1, 2}
    assert any(row["older"] < row["turns"][0] for row in went_on), "no first answer went on"
    assert any(row["turns"][0] < row["older"] for row in went_on), "no second answer went on"
    assert max(length for row in rows for length in row["turns"]) == 16
    assert {row["waited"][1] for row in rows} == {3}


def test_answers_that_wait_in_a_checkpoint_go_on_when_the_run_is_resumed(runs):
    """As far as each had come, with its log-probabilities and what it has read; and they are trained on."""
    found = runs("qwen2_5_vl")
    assert found["restored"] == found["kept"]
    assert len(found["kept"]) == 3
    assert any(flight["going_on"][0] for group in found["kept"] for flight in group["flights"])
    assert len(found["rollouts"]) == 6
    assert any(row["older"] for row in found["rollouts"][3])


def test_a_groups_images_are_sent_once_a_turn(runs):
    """Four rollouts of two questions with images, in groups of four; in turn 2 each row is a prompt of its own."""
    assert 8 < runs("qwen2_5_vl")["rows_sent"] <= 4 * 2 * 2


@pytest.mark.parametrize(("family", "method"), TRAINED)
def test_no_placeholder_is_sampled(runs, family, method):
    run = runs(family)
    for rollout in run[method]:
        assert not (rollout["completion_ids"] == run["image"])[rollout["mask"]].any()


def test_no_placeholder_is_sampled_from_a_random_policy(runs):
    counts = runs("qwen2_5_vl")["placeholders"]
    assert counts["without"]["placeholders"] > 0  # the policy would
    assert counts["ours"] == {"tokens": counts["without"]["tokens"], "placeholders": 0}


def test_pixel_limits_that_differ_from_the_servers_are_refused(runs):
    """An image of 56 by 56 pixels is four tokens for the server's processor, one for the trainer's."""
    message = runs("qwen2_5_vl").get("other_limits")
    assert message is not None, "the server took features for more tokens than the prompt has, and nothing was said"
    assert "[4], 4 in all, where the trainer's prompt has 1" in message


def test_an_image_seen_before_an_update_is_encoded_anew(runs):
    assert differences(runs("qwen2_5_vl")["after_own_sync"]).mean() < TOLERANCE


def test_buckets_leave_the_weights_that_one_request_each_leaves(runs):
    """Bit for bit, in buckets of a MiB: the policy has 20 of them."""
    alone, together = (runs("qwen2_5_vl")["sent"][way] for way in ("weight_by_weight", "sync_weights"))
    assert together["weights"] == alone["weights"]
    assert alone["requests"] > 3 * together["requests"] > 3


def test_the_longest_prompt_is_what_the_server_takes(runs):
    """Without images it refuses one after which 8 tokens, as many as an answer may have, do not fit its 1,024.

    vLLM 0.32 takes it, and cuts the answer off.
    """
    context = runs("qwen2_5_vl")["context"]
    assert (context["context"], context["longest"], context["answers"]) == (1024, 1016, 1)
    refused = Version(vllm.__version__) < Version("0.32")
    assert ("400" if refused else "7 tokens") in context["server's"]
    assert "A prompt has 1017 tokens, its images' included, but vLLM takes at most 1016" in context["ours"]
    assert "raise the server's --max-model-len" in context["ours"]


def test_a_server_answers_with_its_key_alone(runs):
    assert runs("qwen2_5_vl")["context"]["without key"] == 401


def test_trl_still_leaves_the_encoder_cache(runs):
    rollout = runs("qwen2_5_vl")["after_upstream_sync"]
    with_images = (rollout["pictures"] > 0).unsqueeze(1)
    assert differences(rollout, with_images).mean() > 100 * TOLERANCE, (
        "TRL itself now resets the server's encoder cache (huggingface/trl#7198). Delete `sync_weights` in "
        "compat/vllm.py and `reset_encoder_cache` in compat/vllm_client.py"
    )
    assert differences(rollout, ~with_images).mean() < TOLERANCE


def test_a_server_that_keeps_old_images_is_refused(runs):
    message = runs("qwen2_5_vl")["no_reset"]
    assert "status 404" in message
    assert "VLLM_SERVER_DEV_MODE=1" in message
