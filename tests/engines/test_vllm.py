"""Rollouts with vLLM in the trainer's process: what is sampled is what is trained.

One engine start a case, in a process of its own; `vllm_colocated.py` trains, and this file asserts what it kept.
"""

import inspect
import math
import re

import pytest
import torch
from processes import launch
from recorded import TOLERANCE, differences
from trl.generation.vllm_generation import VLLMGeneration

pytest.importorskip("vllm")
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "llava_next"]
CASES = {
    # every family with two turns; the policy as a folder or in memory
    "adapo qwen2_vl": ["memory"],
    "adapo qwen2_5_vl": ["checks"],
    "adapo qwen3_vl": [],
    "adapo internvl": ["memory"],
    "adapo llava_next": ["side_by_side"],
    # the other trainers; two of them with an adapter
    "srpo qwen2_5_vl": ["qlora"],
    "chain_of_step llava_next": ["lora"],
    "self_evolution internvl": ["nan"],
    "sophia qwen3_vl": [],
}


TURNS = {"turns qwen2_5_vl": [], "turns internvl": []}  # three turns, with images in the user's messages
TOOLS = {"tools qwen3_vl": []}  # two, with images that tools return before either answer


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """case → what its run kept, made when first asked for."""
    made = {}

    def run(case):
        if case not in made:
            method, family = case.split()
            folder = tmp_path_factory.mktemp(f"{method}_{family}")
            launch(
                "engines/vllm_colocated.py", 1, family, method, folder, *{**CASES, **TURNS, **TOOLS}[case], seconds=300
            )
            made[case] = torch.load(folder / "results_0.pt")
        return made[case]

    return run


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory):
    """Options → what each of two processes kept that share one vLLM, of which each holds half of the weights."""

    def run(method, family, *options):
        folder = tmp_path_factory.mktemp(f"shared_{method}_{family}")
        launch("engines/vllm_colocated.py", 2, family, method, folder, "shared", *options, seconds=300)
        return [torch.load(folder / f"results_{rank}.pt") for rank in range(2)]

    return run


@pytest.mark.parametrize("case", CASES)
def test_sampled_and_trained_log_probabilities_agree(runs, case):
    """Before any update and after each of three, whatever images a row has, though each image was seen before."""
    rollouts = runs(case)["rollouts"]
    assert len(rollouts) == 4
    tolerance = 10 * TOLERANCE if "qlora" in CASES[case] else TOLERANCE  # training multiplies base and adapter apart
    for number, rollout in enumerate(rollouts):
        for images in (0, 1, 2):  # mixed in every batch
            of_rows = (rollout["pictures"] == images).unsqueeze(1)
            found = differences(rollout, of_rows)
            assert len(found), f"rollout {number} has no token of a row with {images} images"
            assert found.mean() < tolerance, f"rollout {number}, rows with {images} images: {found.mean()} nats"
    # each update moved the policy by far more than the tolerance
    for before, after in zip(rollouts, rollouts[1:], strict=False):
        moved = [(rollout["trained"] - rollout["initial"]).abs()[rollout["mask"]].mean() for rollout in (before, after)]
        assert moved[1] > 100 * TOLERANCE, f"the policy moved by {moved} nats"


def test_answers_end_where_the_policy_in_memory_ends_them(runs):
    """Its folder, which vLLM reads, names one of these tokens."""
    found = runs("adapo qwen2_vl")
    assert len(found["ends"]) > 100
    for rollout in found["rollouts"]:
        for ids, mask, turn in zip(*(rollout[name] for name in ("completion_ids", "mask", "turn")), strict=True):
            for number in (1, 2):
                answer = ids[mask & (turn == number)]
                assert not torch.isin(answer[:-1], torch.tensor(found["ends"])).any()


def test_runs_of_other_seeds_sample_otherwise(runs):
    """vLLM seeds torch's generator, by which it samples, and TRL gives it no seed of the run."""
    own, of_run = runs("adapo qwen2_vl")["seeds"]
    assert own == of_run > 0


@pytest.mark.parametrize("case", CASES)
def test_the_first_rollout_has_been_compared_with_the_model(runs, case):
    nats = runs(case)["facts"]["engine_differences"]
    assert nats.keys() == {0, 1, 2}
    assert max(nats.values()) < (10 * TOLERANCE if "qlora" in CASES[case] else TOLERANCE)


def test_the_first_rollout_is_compared_over_the_tokens_that_could_be_sampled(runs):
    """The run itself sees that a policy whose temperature is another by 2 % is refused."""
    found = runs("adapo qwen2_5_vl")["first_rollout"]
    assert found.keys() == {"top_p", "top_k", "min_p", "temperature"}
    for nats in found.values():
        assert nats.keys() == {0, 1, 2}
        assert max(nats.values()) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_the_second_turn_agrees(runs, family):
    """Its prompt holds the first prompt, the sampled ids and the template's, behind the images."""
    first, *later = (differences(rollout, rollout["turn"] == 2) for rollout in runs(f"adapo {family}")["rollouts"])
    for second in (first, torch.cat(later)):  # a trained policy may cut all first answers of a rollout off
        assert len(second) >= 4
        assert second.mean() < TOLERANCE


@pytest.mark.parametrize("case", TURNS)
def test_images_that_the_user_shows_later_agree(runs, case):
    """Conversations differ: of one turn to three, and with as many more images as the user has shown."""
    first, *_ = rollouts = runs(case)["rollouts"]
    assert first["turn"][first["mask"]].unique().tolist() == [1, 2, 3]
    assert first["pictures"].max() > 2  # no question has more
    for number, rollout in enumerate(rollouts):
        found = differences(rollout)
        assert found.mean() < TOLERANCE, f"rollout {number}: {found.mean()} nats"


@pytest.mark.parametrize("case", TOOLS)
def test_images_that_tools_return_agree(runs, case):
    rollouts = runs(case)["rollouts"]
    assert rollouts[0]["turn"][rollouts[0]["mask"]].max() > 2  # with calls that come before an answer
    assert rollouts[0]["pictures"].max() > 2
    for number, rollout in enumerate(rollouts):
        found = differences(rollout)
        assert found.mean() < TOLERANCE, f"rollout {number}: {found.mean()} nats"


def test_two_processes_that_share_an_engine_say_different_things(shared_runs):
    for run in shared_runs("turns", "qwen2_5_vl"):
        assert max(rollout["turn"][rollout["mask"]].max() for rollout in run["rollouts"]) == 3
        for rollout in run["rollouts"]:
            assert differences(rollout).mean() < TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_the_engine_computes_in_the_dtype_of_the_policy(runs, case):
    assert runs(case)["dtype"] == "torch.float32"  # a float32 checkpoint, which vLLM by itself reads as bfloat16


@pytest.mark.parametrize("case", ["srpo qwen2_5_vl", "chain_of_step llava_next"])
def test_what_an_adapter_is_added_to_stays_as_it_was_bit_for_bit(runs, case):
    """Four rollouts, before each of which vLLM got the weights with the adapter merged."""
    frozen = runs(case)["frozen"]
    assert len(frozen) > 20
    assert [name for name, same in frozen.items() if not same] == []


def test_an_update_that_is_not_finite_reaches_neither_policy_nor_engine(runs):
    """The second of four; what the engine samples afterwards agrees with the policy, as in all other rollouts."""
    run = runs("self_evolution internvl")
    assert (run["facts"]["updates"], run["facts"]["skipped"]) == (4, 1)
    assert run["finite"]
    assert all(rollout["sampled"].isfinite().all() for rollout in run["rollouts"])


@pytest.mark.parametrize("case", CASES)
def test_no_placeholder_is_sampled(runs, case):
    run = runs(case)
    for rollout in run["rollouts"]:
        assert not (rollout["completion_ids"] == run["image"])[rollout["mask"]].any()


def test_no_placeholder_is_sampled_from_a_random_policy(runs):
    counts = runs("adapo qwen2_5_vl")["placeholders"]
    assert counts["without"]["placeholders"] > 0  # the policy would
    assert counts["ours"] == {"tokens": counts["without"]["tokens"], "placeholders": 0}


def test_the_engine_reads_the_prompts_that_are_trained_on(runs):
    prompts = runs("adapo qwen2_5_vl")["own_prompts"]
    assert prompts["read"] == prompts["trained"]
    assert set(prompts["pictures"]) == {0, 1, 2}


def test_pixel_limits_that_differ_from_the_checkpoints_are_refused(runs):
    """An image of 56 by 56 pixels is four tokens for the checkpoint's processor, one for the trainer's."""
    message = runs("adapo qwen2_5_vl")["other_limits"]
    assert message is not None, "vLLM generated from a different prompt than the trainer's, and nothing was said"
    trained, read = map(int, re.search(r"(\d+) tokens in the trainer and (\d+) in vLLM", message).groups())
    assert read - trained in (3, 6)  # of a row with one image, or with two
    assert "pixel limits included" in message


def test_an_image_seen_before_an_update_is_encoded_anew(runs):
    rollout = runs("adapo qwen2_5_vl")["after_own_sync"]
    assert differences(rollout).mean() < TOLERANCE


def test_what_vllm_says_of_its_samples_serves_as_the_old_log_probabilities(runs):
    served = runs("adapo qwen2_5_vl")["served"]
    assert torch.equal(served["old"], served["sampled"])
    fewer, usual = served["passes"]
    assert fewer < usual  # the reference's alone
    own, other = served["gradients"]
    assert own.norm() > 0
    assert (own - other).norm() / own.norm() < 1e-3


def test_weights_that_come_in_buckets_are_those_that_come_one_by_one(runs):
    upstream, own = (runs("adapo qwen2_5_vl")["synced"][name] for name in ("upstream", "own"))
    assert upstream["weights"].keys() == own["weights"].keys()
    for name, weight in upstream["weights"].items():
        assert weight.any(), name
        assert torch.equal(own["weights"][name], weight), name
    assert (upstream["calls"] > 50, own["calls"]) == (True, 1)


def test_a_trained_policy_is_evaluated_with_the_engine_of_its_rollouts(runs):
    found = runs("adapo qwen2_5_vl")["evaluations"]
    assert found["vllm"] == found["transformers"]
    assert 7 < len(found["vllm"]["ids"]) <= 14  # some first answers ended


# --------------------------------------------------------------------------------------------------- tensor parallelism


def test_two_processes_that_share_an_engine_train_on_what_it_sampled(shared_runs):
    """Each on its own rows, with two turns; before any update and after each of three."""
    first, second = shared_runs("adapo", "qwen2_5_vl")
    assert first["tokens"] == second["tokens"]
    for number, rollouts in enumerate(zip(first["rollouts"], second["rollouts"], strict=True)):
        for rollout in rollouts:
            assert differences(rollout).mean() < TOLERANCE, f"rollout {number}"
        assert not torch.equal(*(rollout["pictures"] for rollout in rollouts))
    for own in (first, second):
        assert_told(own["two_ways"][16])
    assert first["two_ways"][16]["answers"] != second["two_ways"][16]["answers"]
    last = first["rollouts"][-1]
    assert (last["trained"] - last["initial"]).abs()[last["mask"]].mean() > 100 * TOLERANCE
    one, two = first["evaluations"], second["evaluations"]
    assert one["vllm"] == two["vllm"]  # both ask everything, together
    assert sorted(one["vllm"]["ids"]) == sorted(one["transformers"]["ids"] + two["transformers"]["ids"])
    assert one["vllm"]["ended"] == one["transformers"]["ended"] == two["transformers"]["ended"]


def test_they_sample_the_same_tokens_though_dropout_takes_their_random_states_apart(shared_runs):
    first, second = shared_runs("srpo", "internvl", "lora", "dropout")
    assert first["tokens"] == second["tokens"]
    assert len(first["tokens"]) == 4 * 12
    assert first["drawn_together"] == second["drawn_together"]
    assert first["drawn_alone"] != second["drawn_alone"]


# ------------------------------------------------------------------------------------------ two turns without a barrier


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_log_probabilities_are_those_of_turn_after_turn(runs, family):
    """Greedily, two generations a prompt; nearly all first answers are cut after 2 tokens, and few after 16."""
    cut, ended = set(), set()
    for ways in runs(f"adapo {family}")["two_ways"].values():
        (ids, env_mask, logprobs), plain = ways["without_barrier"], ways["turn_after_turn"]
        assert ids == plain[0]
        assert env_mask == plain[1]
        for own, other in zip(logprobs, plain[2], strict=True):
            assert own == pytest.approx(other, abs=TOLERANCE)
        for row, mask, images in zip(ids, env_mask, ways["pictures"], strict=True):
            between = [token for token, sampled in zip(row, mask, strict=True) if not sampled]
            assert between in ([], ways["followup"])
            (ended if between else cut).add(images)
    assert cut == ended == {0, 1, 2}  # each with any number of images


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_turn_does_not_wait_for_the_other_first_turns(runs, family):
    ways = runs(f"adapo {family}")["two_ways"][16]
    rows = len(ways["pictures"])

    def second_begins_first_ends(events):
        begins = [position for position, (what, _) in enumerate(events) if what == "begins"]
        first_turns = {events[position][1] for position in begins[:rows]}
        ends = [position for position, event in enumerate(events) if event[0] == "ends" and event[1] in first_turns]
        assert len(ends) == rows < len(begins)
        return begins[rows], ends[-1]

    begins, ends = second_begins_first_ends(ways["engine_without_barrier"]["events"])
    assert begins < ends
    begins, ends = second_begins_first_ends(ways["engine_turn_after_turn"]["events"])
    assert begins > ends


def assert_told(ways):
    """Each answer of each row was handed to graders once."""
    assert sorted(ways["told"]) == sorted(ways["answers"])
    assert len(ways["answers"]) > len(ways["pictures"])  # some rows have two


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_graded_while_others_are_sampled(runs, family):
    ways = runs(f"adapo {family}")["two_ways"][16]
    assert_told(ways)
    happened = [what for what, _ in ways["engine_without_barrier"]["events"]]
    assert happened.index("told") < len(happened) - 1 - happened[::-1].index("begins")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_second_prompt_comes_from_the_caches(runs, family):
    """Whole blocks of the first prompt and of the first answer, but for its last token, which no pass has read."""
    ways = runs(f"adapo {family}")["two_ways"][16]
    assert ways["engine_without_barrier"]["encoded"] == ways["different_pictures"]  # each once
    cached = read = 0
    for prompt, mask in zip(ways["prompts"], ways["without_barrier"][1], strict=True):
        if 0 in mask:
            first = len(prompt) + mask.index(0)
            cached += (first - 1) // ways["block"] * ways["block"]
            read += first + len(ways["followup"])
    [hit_rate] = ways["hit_rates"]
    assert cached > 0
    assert cached / read <= hit_rate < 1  # an equal row that was earlier may have left a block more


def test_a_row_that_has_no_room_gets_no_second_turn(runs):
    """About half of them. The others' second answers end where the context does."""
    run = runs("adapo qwen2_5_vl")
    short, roomy, context = run["short"], run["two_ways"][16], run["short"]["context"]
    ids, masks, logprobs = short["without_barrier"]
    assert (ids, masks) == short["turn_after_turn"][:2]
    for own, other in zip(logprobs, short["turn_after_turn"][2], strict=True):
        assert own == pytest.approx(other, abs=TOLERANCE)
    fits, no_room = set(), 0
    for prompt, row, mask, long_row, long_mask in zip(
        short["prompts"], ids, masks, *roomy["without_barrier"][:2], strict=True
    ):
        assert row == long_row[: len(row)]
        if 0 in long_mask:
            fits.add(0 in mask)
            assert (0 in mask) == (len(prompt) + long_mask.index(0) + len(short["followup"]) < context)
            no_room += 0 not in mask
        assert len(prompt) + len(row) <= context
        if len(row) < len(long_row) and 0 in mask:
            assert len(prompt) + len(row) == context
    assert fits == {True, False}
    assert short["no_room"] == [pytest.approx(no_room / len(ids))]
    assert (
        f"A prompt has {context} tokens, its images' included, but vLLM takes at most {context - 1}" in short["refused"]
    )


def test_vllm_still_adds_characters_to_request_ids():
    from vllm.v1.engine.input_processor import InputProcessor

    source = inspect.getsource(InputProcessor.assign_request_id)
    assert 'f"{request.external_req_id}-{random_uuid():.8}"' in source, "adapt `TwoTurns.generate`"


@pytest.mark.full  # test_served.py evaluates with vLLM in the process every day
def test_mmreason_evaluate_hands_its_dtype_to_vllm(tmp_path):
    """In float32 the answers to questions with none, one and two images are those of transformers."""
    launch("engines/vllm_evaluate.py", 1, tmp_path, seconds=400)
    run = torch.load(tmp_path / "results.pt")
    assert run["settings"]["dtype"] == "float32"
    assert run["vllm"]["ids"] == run["transformers"]["ids"]
    pairs = zip(run["vllm"]["logprobs"], run["transformers"]["logprobs"], strict=True)
    assert max(abs(own - other) for row in pairs for own, other in zip(*row, strict=True)) < TOLERANCE


# ------------------------------------------------------------------------------ what a newer TRL or vLLM makes needless


def test_trl_still_hands_over_expanded_placeholders(runs):
    prompts = runs("adapo qwen2_5_vl")["upstream_prompts"]
    corrupted = [read != trained for read, trained in zip(prompts["read"], prompts["trained"], strict=True)]
    assert corrupted == [images > 0 for images in prompts["pictures"]], (
        "TRL itself now gives a colocated vLLM one placeholder per image (huggingface/trl#6294). Delete "
        "`PromptMemory`, `unexpanded_prompts` and `remember_prompts` in engines/, and `_tokenize_prompts` in grpo.py"
    )


def test_trl_still_leaves_random_states_as_they_are():
    source = inspect.getsource(VLLMGeneration.generate)
    assert "seed" not in source, (
        "TRL itself may let processes that share a vLLM sample alike (huggingface/trl#3671): if "
        "test_they_sample_the_same_tokens_… passes without `_one_random_state` in compat/vllm.py, delete that"
    )
    assert "rng" not in source


def test_trl_still_leaves_the_encoder_cache(runs):
    rollout = runs("adapo qwen2_5_vl")["after_upstream_sync"]
    with_images = (rollout["pictures"] > 0).unsqueeze(1)
    assert differences(rollout, with_images).mean() > 100 * TOLERANCE, (
        "TRL itself now resets the encoder cache (huggingface/trl#7198). Delete `sync_weights` in compat/vllm.py and "
        "`reset_encoder_cache` in compat/vllm_client.py"
    )
    assert differences(rollout, ~with_images).mean() < TOLERANCE


def test_trl_still_compares_log_probabilities_over_different_tokens(runs):
    """Of a token that top-p 0.9 left, vLLM's probability is larger by a factor of 1 to 1/0.9."""
    rollout = runs("adapo qwen2_5_vl")["cut_sampling"]
    larger = (rollout["sampled"] - rollout["trained"])[rollout["mask"]]
    assert larger.min() > -TOLERANCE
    assert larger.max() < -math.log(0.9) + TOLERANCE
    assert larger.mean() > 100 * TOLERANCE, (
        "TRL itself now compares them over the same tokens (huggingface/trl#6789). Delete "
        "`vllm_importance_sampling_mode` in training/vllm_config.py"
    )


def test_vllm_still_refuses_the_names_of_llava_next(runs):
    name = runs("adapo llava_next")["upstream_name"]
    assert "vision_model" not in name, (
        f"vLLM itself now reads transformers 5's names of LLaVA-NeXT, as {name}. Delete `with_level` in "
        "compat/vllm_plugin.py"
    )


def test_vllm_still_takes_fused_experts_for_transposed():
    weight = torch.empty(2, 3, 5)
    assert RoutedExperts._orient_fused_weight(weight, True).shape == (2, 5, 3), (
        "vLLM itself now looks how experts lie. Delete `as_published` in compat/vllm_plugin.py"
    )
