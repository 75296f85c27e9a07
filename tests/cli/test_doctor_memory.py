"""`mmreason doctor`: the memory of a stage of training, from one layer to the finding."""

import json
from types import SimpleNamespace

import pytest
import torch
from all_families import FAMILIES
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from benchmarks.memory import CASES, build_published, fitting, measured_and_estimated, needs_of, save_case
from benchmarks.training import LANGUAGE
from trl_mmreason import (
    AdaPOConfig,
    ChainOfStepGRPOConfig,
    IterativeDPOConfig,
    MixedGroupsGRPOConfig,
    SRPOConfig,
)
from trl_mmreason.cli.doctor.layer_bytes import (
    Images,
    LiveBytes,
    Precision,
    image_tokens,
    images_of,
    language_layer,
    longest_list,
    measure_layer,
    vision_layer,
)
from trl_mmreason.cli.doctor.memory import (
    CONTEXT_BYTES,
    GIB,
    build_without_weights,
    check_memory,
    count_parameters,
    estimate_memory,
    training_memory,
    weight_bytes,
    workload_of,
)
from trl_mmreason.cli.doctor.passes import Passes, Workload, cache_bytes, head_bytes, pass_bytes
from trl_mmreason.cli.doctor.settings import read_settings
from trl_mmreason.compat.model_parts import freeze_vision_encoder, parts_of
from trl_mmreason.miniature.models import build_model
from trl_mmreason.scripts.recipes import ROOT

FLOAT32 = Precision(torch.float32, torch.float32, None)
BFLOAT16 = Precision(torch.bfloat16, torch.float32, torch.bfloat16)
NOTHING = Passes(0, 0, 0, 0, ())


def large():
    """Qwen2.5-VL-7B without weights."""
    return build_published("Qwen2.5-VL-7B")


# ----------------------------------------------------------------------------------------------------------- live bytes


def test_a_storage_counts_once_while_anything_holds_it():
    """Vectors of 4,000 bytes: a view adds none, and what is freed stays in the peak."""
    with LiveBytes() as memory:
        first = torch.ones(1000)
        view = first[:10]
        second = first + 1
        assert (memory.live, memory.peak) == (8000, 8000)
        del first, second
        assert (memory.live, memory.peak) == (4000, 8000)  # the view holds it
        del view
        assert memory.live == 0


def test_what_autograd_keeps_is_alive():
    """exp keeps its result of 4,000 bytes, although no name holds it."""
    weight = torch.ones(1000, requires_grad=True)
    with LiveBytes() as memory:
        total = weight.exp().sum()
        assert memory.live == 4004
        total.backward()
        del total
        assert memory.live == weight.grad.nbytes == 4000


def test_bytes_of_a_linear_layer():
    """5 rows from 10 to 20 values: an output of 400 bytes; backwards beside it its gradient of 400, that of the input
    of 200, and that of the weight of 800 before it is added to the one that is there."""
    layer = nn.Linear(10, 20, bias=False, device="meta")

    def inputs_of(dtype):
        return torch.empty(5, 10, dtype=dtype, requires_grad=True), {}

    assert measure_layer(layer, inputs_of, FLOAT32) == (400, 400, 400, 1800)
    layer.weight.requires_grad_(False)
    assert measure_layer(layer, inputs_of, FLOAT32) == (400, 400, 400, 1000)


# --------------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ("lora", "autocast", "low", "high"), [(False, True, 63, 67), (True, False, 84, 92), (True, True, 69, 72)]
)
def test_a_layer_of_a_7b_keeps_what_was_measured(lora, autocast, low, high):
    """Bytes per token and channel in bfloat16, all weights, or LoRA in float32, which reads a copy of its own; under
    autocast that is in bfloat16. 34 by the formula of arXiv:2205.05198, for a layer of other proportions."""
    model = large()
    if lora:
        model = get_peft_model(model, LoraConfig(r=32, target_modules=LANGUAGE))
    precision = BFLOAT16 if autocast else BFLOAT16._replace(computing=None)
    layer, measured = language_layer(model, 1, 1000, precision, masked=False)
    assert measured
    assert low <= layer.kept / (1000 * 3584) <= high
    assert layer.output == 2 * 1000 * 3584


def test_layers_of_every_family_are_measured(family):
    model, _ = build_model(family, "test")
    for layer, measured in (
        language_layer(model, 2, 50, FLOAT32, masked=True),
        vision_layer(model, images_of(model, 4), FLOAT32),
    ):
        assert measured
        assert 0 < layer.output < layer.kept < layer.training


def test_a_layer_without_data_takes_what_a_real_one_takes(family):
    """To the byte, forwards and backwards, in float32 with a mask."""
    model, _ = build_model(family, "test")
    expected, _ = language_layer(model, 2, 50, FLOAT32, masked=True)
    decoder, hidden = model.get_decoder(), torch.randn(2, 50, 64, requires_grad=True)
    layer = longest_list(decoder)[-1]
    positions = torch.arange(50).expand(*([3] if "qwen" in family else []), 2, 50)
    arguments = {"position_embeddings": decoder.rotary_emb(hidden, positions)}
    arguments["attention_mask"] = torch.ones(2, 1, 50, 50, dtype=torch.bool).tril()
    for weight in layer.parameters():
        weight.grad = torch.zeros_like(weight)
    with LiveBytes() as memory:
        memory.hold([hidden, *arguments["position_embeddings"], arguments["attention_mask"]])
        memory.hold(each for weight in layer.parameters() for each in (weight, weight.grad))
        before = memory.live
        output = layer(hidden, **arguments)
        kept, memory.peak = memory.live - before, memory.live
        output.backward(torch.ones_like(output))
        assert (kept, memory.peak - before) == (expected.kept, expected.training)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_update_of_a_small_model_is_its_layers_and_its_head(checkpointing):
    """Of a text-only model with three layers, trained whole: what layers keep, or hand on, and the largest moment."""
    model = text_only()
    work = Workload(rows=2, prompt=40, image=0, answers=1, answer=10, passes=2, checkpointing=checkpointing)
    layer, _ = language_layer(model, 2, 50, FLOAT32, masked=True)
    head = head_bytes(2 * 10, 64, 8, FLOAT32, trained=True, on_cpu=False)
    begun = 2 * 50 * 64 * 4 + 2 * 50**2  # embeddings, and a mask of bytes
    kept = 3 * (layer.output if checkpointing else layer.kept)
    most = layer.training if checkpointing else layer.training - layer.kept
    assert pass_bytes(model, work, FLOAT32).at_head == begun + kept + max(head, most)


def text_only(**sizes):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 3} | sizes
    return build_without_weights(AutoConfig.for_model("qwen2", **{"num_key_value_heads": 2, "vocab_size": 8} | sizes))


def test_a_layer_that_cannot_be_run_is_taken_to_be_a_usual_one():
    """34 values are kept per token and channel."""
    model = text_only()
    del model.model.rotary_emb
    layer, measured = language_layer(model, 2, 50, BFLOAT16, masked=True)
    assert not measured
    assert layer.kept == 34 * 2 * 50 * 64 * 2
    assert pass_bytes(model, Workload(2, 40, 0, 1, 10), BFLOAT16).stated == ("language",)


@pytest.mark.parametrize(
    ("name", "stated"), [("gemma4", ("language", "vision")), ("llama4", ("language", "vision")), ("smolvlm", ())]
)
def test_other_families_have_an_estimate_too(name, stated):
    """Layers that are called otherwise, and a width of heads that differs between layers."""
    model, _ = FAMILIES[name]()
    work = Workload(rows=2, prompt=100, image=64, answers=1, answer=20, sampled=4, samples=True)
    passes = pass_bytes(model, work, BFLOAT16)
    assert passes.stated == stated
    assert min(passes.at_head, passes.at_end, passes.rollout, passes.inputs) > 0


@pytest.mark.parametrize("trained", [True, False])
def test_the_head_takes_what_trl_s_own_takes(trained):
    """On a CPU, where its backward pass is made of operations that can be counted."""
    tokens, hidden, words = 50, 16, 300
    states = torch.randn(tokens, hidden, requires_grad=True)
    weight = torch.randn(words, hidden, requires_grad=trained)
    targets = torch.zeros(tokens, dtype=torch.long)
    with LiveBytes() as memory:
        memory.hold([states, weight, targets])
        before = memory.live
        scored = ChunkedLogProbFunction.apply(states * 1, weight, None, targets, 1.0, 32_768)
        scored[0].sum().backward()
    expected = head_bytes(tokens, hidden, words, FLOAT32, trained=trained, on_cpu=True)
    assert memory.peak - before == pytest.approx(expected, rel=0.03)


def test_a_head_on_a_gpu_is_in_float32_twice():
    """4,096 tokens at a time, of 32,768 words: a tile of 256 MiB, gradients of hidden states and weight in float32 and
    as bfloat16, and the hidden states: a 7B's weight has 2.03 GiB for its gradient in float32."""
    tokens, hidden, words = 10_000, 3584, 152_064
    whole = head_bytes(tokens, hidden, words, BFLOAT16, trained=True, on_cpu=False)
    assert whole == 2**28 + tokens * hidden * 2 + (tokens + words) * hidden * 6
    assert words * hidden * 4 / GIB == pytest.approx(2.03, abs=0.005)
    frozen = head_bytes(tokens, hidden, words, BFLOAT16, trained=False, on_cpu=False)
    assert whole - frozen == words * hidden * 6


def test_images_are_read_in_patches_or_in_tiles():
    """An image of 448 pixels: 32 × 32 patches of 14, four of which make a token; or a tile of 32 × 32 and one more."""
    model = large()
    assert image_tokens(model, 448 * 448) == 256
    assert images_of(model, 256, 2) == Images(2 * 1024, 1, 2 * 2 * 3 * 448 * 448)  # twice for two frames
    model = build_published("InternVL3-8B")
    assert image_tokens(model, 896 * 896) == 4 * 256
    assert images_of(model, 4 * 256) == Images(4 * 1025, 4, 4 * 3 * 448 * 448)


# ------------------------------------------------------------------------------------------------------------- estimate


@pytest.mark.parametrize(("zero_stage", "expected"), [(0, 120.0), (2, 16.64), (3, 1.875)])
def test_model_states_are_those_of_the_zero_paper(zero_stage, expected):
    """Its Figure 1: 7.5 B parameters on 64 GPUs take 120, 16.6 and 1.9 GB; 2Ψ + 14Ψ/64 = 15 + 1.64 in stage 2."""
    bytes_of = {"trained_bytes": 2, "optimizer_bytes": 12}
    memory = training_memory(15e9, 7.5e9, NOTHING, **bytes_of, zero_stage=zero_stage, processes=64)
    states = memory.weights + memory.gradients + memory.optimizer
    assert states / 1e9 == pytest.approx(expected, abs=0.01)
    # gradients are sent in buckets of 5e8, and ZeRO-3 holds 1e9 weights of others
    assert memory.buffers == {0: 0, 2: 1e9, 3: 3e9}[zero_stage]


def test_an_adapter_has_gradients_and_states_of_its_own_weights_only():
    """500 bytes of weights, 10 trained ones in float32: 40 + 80 bytes, and passes that are given."""
    passes = Passes(at_head=70, at_end=7, rollout=100, inputs=3, stated=())
    memory = training_memory(500, 10, passes, trained_bytes=4, optimizer_bytes=8)
    assert memory == (500, 80, 3, 40, 70, 100)
    assert memory.total == 500 + 80 + 3 + 40 + 70  # more than the rollout, which has no gradients


def test_gradients_of_a_single_pass_come_as_activations_go():
    """At the head there are none of 40 bytes yet: 70 then, 40 + 7 at the end."""
    passes = Passes(at_head=70, at_end=7, rollout=0, inputs=0, stated=())
    memory = training_memory(0, 10, passes, trained_bytes=4, optimizer_bytes=0, accumulates=False)
    assert memory.gradients + memory.activations == 70
    passes = passes._replace(at_head=45)
    memory = training_memory(0, 10, passes, trained_bytes=4, optimizer_bytes=0, accumulates=False)
    assert memory.gradients + memory.activations == 47


def test_parameters_are_counted_without_weights(checkpoints, family):
    model, _ = build_model(family, "test")
    empty = build_without_weights(AutoConfig.from_pretrained(checkpoints(family)))
    assert {weight.device.type for weight in empty.parameters()} == {"meta"}
    assert count_parameters(empty) == count_parameters(model) == sum(weight.numel() for weight in model.parameters())
    adapted = get_peft_model(empty, LoraConfig(r=4, target_modules=r".*language_model.*\.q_proj"))
    assert count_parameters(adapted, trained=True) == 2 * (64 * 4 + 4 * 64)  # two layers, from 64 to 64


def test_embeddings_and_head_are_not_loaded_in_4_bit():
    """7B: 1.09 B of both and few others in bfloat16; the others at half a byte and 1/64 + 1/4096 for the scales."""
    model, settings = large(), {"dtype": "bfloat16", "load_in_4bit": True, "load_in_8bit": False}
    linear = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear)) - 152_064 * 3584
    others = count_parameters(model) - linear
    assert 2 * 152_064 * 3584 < others < 1.003 * 2 * 152_064 * 3584
    held = weight_bytes(model, settings | {"use_bnb_nested_quant": True})
    assert held == pytest.approx(2 * others + linear * (0.5 + 1 / 64 + 1 / 4096))
    assert weight_bytes(model, settings | {"use_bnb_nested_quant": False}) == 2 * others + linear * (0.5 + 4 / 64)


def settings_of(tmp_path, kinds=None, /, **given):
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(given))
    return read_settings(str(path), kinds)[1]["training"]


SMALL = {"per_device_train_batch_size": 1, "max_prompt_length": 4, "max_completion_length": 2, "bf16": False}


@pytest.mark.parametrize(
    ("kind", "settings", "copies", "rows", "tokens"),
    [
        (AdaPOConfig, {}, 2, "1 row", 8),  # a reference for its KL term, and two answers
        (AdaPOConfig, {"evaluation_prompt": None, "beta": 0.0}, 1, "1 row", 6),
        (ChainOfStepGRPOConfig, {}, 1, "1 row", 6),
        (ChainOfStepGRPOConfig, {"beta": 0.1}, 2, "1 row", 6),
        (IterativeDPOConfig, {}, 2, "2 rows", 6),  # a pair
    ],
)
def test_memory_of_weights_and_tokens_follows_the_method_s_own_defaults(tmp_path, kind, settings, copies, rows, tokens):
    """In float32: 4 bytes a weight for each copy, 4 of gradients, 8 of moments."""
    model = text_only()
    weights = count_parameters(model)
    given = settings_of(tmp_path, {"training": kind}, **SMALL, freeze_vision_encoder=False, **settings)
    need = estimate_memory(model, given, 8).needs["one GPU"]
    assert (need.weights, need.gradients, need.optimizer) == (copies * 4 * weights, 4 * weights, 8 * weights)
    (finding,) = check_memory(model, given, "training")
    assert f"; {rows} of {tokens} tokens at a time)" in finding.text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"sampled": 4, "questions": 1, "samples": True, "passes": 4}),  # 1 row in each of 4 passes
        (
            {"steps_per_generation": 16},
            {"sampled": 16, "questions": 2, "passes": 4},
        ),  # 8 answers to each of 2 questions
        ({"use_vllm": True}, {"sampled": 4, "samples": False}),
        ({"attn_implementation": "flash_attention_2"}, {"masked": False}),
        # 16 tokens: two rows of 8 fit a pass, so that 3 rows are several passes
        (
            {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 1, "max_tokens_per_micro_batch": 17},
            {"rows": 2, "passes": 3},
        ),
        ({"max_prompt_length": None}, {"prompt": 1024, "image": 768}),
        ({"max_prompt_length": None, "max_pixels": 112 * 112}, {"image": 16}),
    ],
)
def test_what_settings_ask_of_a_model(tmp_path, settings, expected):
    model, _ = build_model("qwen2_5_vl", "test")
    given = {**SMALL, "gradient_accumulation_steps": 4, "num_generations": 8, **settings}
    work = workload_of(model, settings_of(tmp_path, {"training": AdaPOConfig}, **given))
    assert {name: getattr(work, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("optim", "states"), [("adamw_torch", 8), ("adamw_8bit", 2), ("sgd", 0), ("lion_32bit", 4), ("paged_lion_8bit", 1)]
)
def test_an_optimizer_s_states_go_by_its_name(tmp_path, optim, states):
    """Two moments of four bytes, or as many as it has, of a byte in 8 bits."""
    model = text_only()
    given = settings_of(tmp_path, {"training": ChainOfStepGRPOConfig}, **SMALL, optim=optim)
    need = estimate_memory(model, given, 8).needs["one GPU"]
    assert need.optimizer == states * count_parameters(model)


@pytest.mark.parametrize(
    ("kind", "frozen"), [(SRPOConfig, ["vision"]), (MixedGroupsGRPOConfig, ["vision", "projector"]), (AdaPOConfig, [])]
)
def test_frozen_parts_have_no_gradients(tmp_path, kind, frozen):
    model, _ = build_model("llava_next", "test")
    place = parts_of(model)
    trained = sum(weight.numel() for name, weight in model.named_parameters() if place[name] not in frozen)
    estimate = estimate_memory(model, settings_of(tmp_path, {"training": kind}, **SMALL), 8)
    assert (estimate.trained, estimate.needs["one GPU"].gradients) == (trained, 4 * trained)


def test_a_frozen_encoder_keeps_nothing():
    """8 layers of vision keep 53 bytes per patch and channel, the projector counting as one; frozen they keep none."""
    whole, frozen = large(), large()
    freeze_vision_encoder(frozen)
    work = Workload(rows=1, prompt=1100, image=1024, answers=1, answer=100, passes=2, masked=False)
    layer, _ = vision_layer(whole, images_of(whole, 1024), BFLOAT16)
    kept = pass_bytes(whole, work, BFLOAT16).at_head - pass_bytes(frozen, work, BFLOAT16).at_head
    assert kept == 33 * layer.kept


def test_a_rollout_holds_keys_and_values_up_to_the_bound():
    """7B: two of 4 heads of 128 values in 28 layers, 57,344 bytes a token in bfloat16. 32 trajectories of a prompt and
    two answers have 18.8 GiB at the bound. Their second prompts take less, as two of them are read at a time; under
    ZeRO-3 all are read at once, and take more."""
    model = get_peft_model(large(), LoraConfig(r=8, target_modules=LANGUAGE))
    assert cache_bytes(model, 2) == 57_344
    work = Workload(1, 1024, 0, answers=1, answer=10_000, sampled=32, questions=4, samples=True)
    held = 32 * 11_024 * 57_344
    once = pass_bytes(model, work, BFLOAT16).rollout
    assert held < once < 1.03 * held
    twice = work._replace(answers=2, answer=5000)
    assert pass_bytes(model, twice, BFLOAT16).rollout == once
    assert pass_bytes(model, twice._replace(sharded=True), BFLOAT16).rollout > 1.5 * held
    # vLLM instead is handed the embeddings, of 1.02 GiB, by a copy that it copies
    assert pass_bytes(model, work._replace(samples=False), BFLOAT16).rollout == 2 * 2 * 152_064 * 3584


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({}, "train an adapter (--use_peft), lower"),
        ({"gradient_accumulation_steps": 800}, "sample fewer trajectories at a time (lower --steps_per_generation)"),
    ],
)
def test_a_gpu_that_is_too_small_is_named_with_what_helps(tmp_path, monkeypatch, settings, fix):
    """10 MiB beside CUDA's context: an update of 8 tokens takes little, and 800 trajectories at once take most."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    card = SimpleNamespace(total_memory=CONTEXT_BYTES + 10 * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    model, _ = build_model("qwen2_5_vl", "test")
    given = settings_of(tmp_path, {"training": AdaPOConfig}, **{**SMALL, "max_completion_length": 100, **settings})
    (finding,) = check_memory(model, given, "training")
    assert finding.level == "FAIL"
    assert finding.text.endswith("The GPU leaves 0.0.")
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize(
    ("times", "level", "said"), [(1.2, "ok", "It fits: one GPU."), (1.1, "note", "It may fit"), (0.9, "FAIL", "leaves")]
)
def test_what_fits_by_less_than_fifteen_percent_may_not_fit(tmp_path, monkeypatch, times, level, said):
    """The GPU has so many times the estimate beside CUDA's context."""
    model, _ = build_model("qwen2_5_vl", "test")
    given = settings_of(tmp_path, {"training": AdaPOConfig}, **SMALL)
    need = estimate_memory(model, given, 1).needs["one GPU"].total
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    card = SimpleNamespace(total_memory=CONTEXT_BYTES + times * need)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    (finding,) = check_memory(model, given, "training")
    assert finding.level == level
    assert said in finding.text


def test_a_model_without_the_parts_to_freeze_is_a_finding(tmp_path):
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 8}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **sizes))
    (finding,) = check_memory(model, settings_of(tmp_path, {"training": SRPOConfig}, **SMALL), "training")
    assert finding.level == "FAIL"
    assert "Qwen2ForCausalLM has no vision encoder; set it to False" in finding.text


@pytest.mark.parametrize(
    ("settings", "gib"),
    [
        # 2^30 parameters and few more in two bytes or four, by the number of GPUs that share them
        ({"bf16": True}, 2),
        ({"bf16": False}, 4),
        ({"bf16": True, "vllm_dtype": "float32"}, 4),
        ({"bf16": True, "vllm_tensor_parallel_size": 8}, 0.25),
    ],
)
def test_a_colocated_vllm_has_to_fit_its_share_which_holds_so_many_trajectories(tmp_path, monkeypatch, settings, gib):
    """In a share of a quarter; a token of a trajectory has 2 · 3 · 2 · 32 values, shared out as the weights are."""
    given = {"use_vllm": True, "vllm_gpu_memory_utilization": 0.25, "max_prompt_length": 4, "max_completion_length": 60}
    model = text_only(vocab_size=2**24, tie_word_embeddings=True)
    asked = settings_of(tmp_path, **given, **settings)
    found, _ = check_memory(model, asked, "training")
    gpu = 4 * gib
    assert f"holds {gib + 0.004:.1f} GiB of weights on each GPU, of which it has 25%" in found.text
    assert f"each GPU needs well over {gpu:.0f} GiB, as a trajectory of 64 tokens takes 0 MiB of cache" in found.text
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    for size, level in ((gpu, "FAIL"), (gpu + 0.1, "ok")):
        card = SimpleNamespace(total_memory=size * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, card=card: card)
        found = next(check_memory(model, asked, "training"))
        assert found.level == level
    whole = count_parameters(model) * gib / 2**30
    parts = settings.get("vllm_tensor_parallel_size", 1)
    each = 64 * 2 * 3 * 2 * 32 * (gib * parts) / parts
    holds = int((card.total_memory / 4 - whole * 2**30) / each)
    assert f"{holds} trajectories of 64 tokens; {8 * parts} are sampled at a time (max_num_seqs)." in found.text
    served = settings_of(tmp_path, **given, **settings, vllm_mode="server")
    assert not [finding for finding in check_memory(model, served, "training") if "vLLM" in finding.text]


# ---------------------------------------------------------------------------------------------------------- what is run


@pytest.mark.full
@pytest.mark.parametrize("case", [CASES[3], CASES[7]], ids=str)
def test_the_estimate_is_within_a_tenth_of_what_a_run_takes(case, tmp_path):
    save_case(case.family, tmp_path / "policy")
    for peak, estimate in measured_and_estimated(case, tmp_path / "policy", 48, 4).values():
        assert peak == pytest.approx(estimate, rel=0.1)


def test_the_page_has_what_the_command_says():
    """A row of each table."""
    page, name = (ROOT / "docs/what-fits.md").read_text(), "Qwen2.5-VL-3B, QLoRA"
    gib, seconds = needs_of(*name.split(", "))
    own, served = (" | ".join(fitting(both[place]) for both in gib.values()) for place in (0, 1))
    assert f"| {name} | {own} |" in page
    assert f"| {name} | {served} | {seconds:.0f} |" in page
