"""What vLLM is sent of a policy with an adapter, and that the policy stays as it is bit for bit; without vLLM."""

import copy

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from support import load
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

from trl_mmreason.compat.adapters import parts_shared_weight
from trl_mmreason.compat.merged_adapters import merged_parameters
from trl_mmreason.generation.model_loading import load_model

ALL = {"r": 4, "lora_alpha": 32, "target_modules": "all-linear"}
ROWS = {**ALL, "exclude_modules": ["lm_head"], "trainable_token_indices": {"embed_tokens": [1, 2], "lm_head": [2, 3]}}
ADAPTERS = {
    "LoRA": LoraConfig(**ALL),
    "DoRA": LoraConfig(**ALL, use_dora=True),
    "biases": LoraConfig(target_modules=["q_proj"], lora_bias=True),
    "embeddings and convolutions": LoraConfig(target_modules=["embed_tokens", "patch_embed.proj"]),
    "rows of embeddings": LoraConfig(**ROWS),
    "modules_to_save": LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head", "merger"]),
    "another tuner": IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
}


def adapted(model, config):
    """The model with an adapter that has been trained."""
    torch.manual_seed(0)
    model = get_peft_model(model, config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn_like(weight)
    return model


def state_of(model):
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def changed(before, after):
    assert before.keys() == after.keys()
    return [name for name in before if not torch.equal(before[name], after[name])]


@pytest.mark.parametrize(
    ("adapter", "dtype"),
    [*((name, torch.bfloat16) for name in ADAPTERS), ("LoRA", torch.float16), ("LoRA", torch.float32)],
)
def test_merged_weights_are_sent_and_nothing_is_written_into_the_policy(checkpoints, adapter, dtype):
    model, _ = load(checkpoints("qwen2_5_vl"))
    names = [name for name, _ in model.named_parameters()]
    model = adapted(model.to(dtype), ADAPTERS[adapter])
    before, generator = state_of(model), torch.random.get_rng_state()
    for _ in range(3):  # a sync before each rollout
        sent = {name: weight.clone() for name, weight in merged_parameters(model)}
    assert changed(before, state_of(model)) == []
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert sorted(sent) == sorted(names)
    assert changed(sent, dict(copy.deepcopy(model).merge_and_unload().named_parameters())) == []


def test_a_second_adapter_is_not_sent_and_one_may_have_any_name(checkpoints):
    """TRL adds a copy named "ref" for the KL term; it sends its `modules_to_save`, and those of no other name."""
    model, _ = load(checkpoints("qwen2_5_vl"))
    names = sorted(name for name, _ in model.named_parameters())
    config = ADAPTERS["modules_to_save"]
    model = get_peft_model(model, config, adapter_name="mine")
    model.add_adapter("ref", config)
    head = model.get_base_model().lm_head.modules_to_save
    with torch.no_grad():
        head["mine"].weight += 1.0
    sent = dict(merged_parameters(model))
    assert sorted(sent) == names
    assert torch.equal(sent["lm_head.weight"], head["mine"].weight)


def tied(path):
    model, _ = load(path)
    model.config.tie_word_embeddings = model.config.text_config.tie_word_embeddings = True
    model.lm_head.weight = model.get_input_embeddings().weight
    return model


TIED = {  # adapters of a base that shares embeddings and LM head, and whether it does afterwards
    "neither": (LoraConfig(target_modules=["q_proj"]), True),
    "embeddings": (LoraConfig(target_modules=["q_proj", "embed_tokens"]), False),
    "head": (LoraConfig(target_modules=["lm_head"]), False),
    "each otherwise": (LoraConfig(target_modules=["lm_head", "embed_tokens"]), False),
    "both": (LoraConfig(target_modules=["embed_tokens"], ensure_weight_tying=True), True),
    "rows of both": (LoraConfig(target_modules=["q_proj"], trainable_token_indices=[25, 26]), True),
    "rows of the head": (LoraConfig(target_modules=["q_proj"], trainable_token_indices={"lm_head": [25]}), False),
    "a whole head": (LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]), False),
}


@pytest.mark.parametrize("name", TIED)
@pytest.mark.filterwarnings("ignore:Model.*tie_word_embeddings")
def test_a_merged_model_says_what_the_adapter_says(name, checkpoints, tmp_path):
    """PEFT merges the adapter of a weight that is shared into the other's place, too: 1.3 to 15 logits off."""
    config, shared = TIED[name]
    tied(checkpoints("qwen2_5_vl")).save_pretrained(tmp_path / "base")
    model = adapted(AutoModelForImageTextToText.from_pretrained(tmp_path / "base", dtype=torch.float32), config).eval()
    assert parts_shared_weight(model) is not shared
    model.save_pretrained(tmp_path / "adapter")
    ids = torch.arange(20, 40)[None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        loaded, _ = load_model(str(tmp_path / "adapter"))
        torch.testing.assert_close(loaded(input_ids=ids).logits, expected, atol=1e-5, rtol=0)
        assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) is shared
        loaded.save_pretrained(tmp_path / "whole")
        again = AutoModelForImageTextToText.from_pretrained(tmp_path / "whole", dtype=torch.float32).eval()
        torch.testing.assert_close(again(input_ids=ids).logits, expected, atol=1e-5, rtol=0)


def test_tied_rows_are_sent_once(checkpoints):
    model = tied(checkpoints("qwen2_5_vl"))
    names = sorted(name for name, _ in model.named_parameters())
    model = adapted(model, LoraConfig(target_modules=["q_proj"], trainable_token_indices=[1, 2]))
    sent = dict(merged_parameters(model))
    assert sorted(sent) == names
    rows = model.get_base_model().get_input_embeddings().token_adapter.trainable_tokens_delta["default"]
    assert torch.equal(sent["model.language_model.embed_tokens.weight"][1:3], rows)


@pytest.mark.parametrize("dora", [False, True])
def test_weights_in_4_bit_are_sent_whole_and_kept_in_4_bit(checkpoints, dora):
    """Merging them in place rounds the merged weight to 4 bit again, in the policy and in what is sent."""
    kind = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, **kind)
    path = checkpoints("qwen2_5_vl")
    plain = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.bfloat16)
    model = AutoModelForImageTextToText.from_pretrained(path, quantization_config=quantization, dtype=torch.bfloat16)
    targets = r".*language_model.*(q_proj|down_proj)"
    model = adapted(model, LoraConfig(r=4, target_modules=targets, use_dora=dora))
    before = state_of(model)
    sent = {name: weight.clone() for name, weight in merged_parameters(model)}
    assert changed(before, state_of(model)) == []
    shapes = {name: (weight.shape, weight.dtype) for name, weight in plain.named_parameters()}
    assert {name: (weight.shape, weight.dtype) for name, weight in sent.items()} == shapes
    name = "model.language_model.layers.0.self_attn.q_proj"
    layer = model.get_base_model().get_submodule(name)
    x = torch.eye(plain.get_submodule(name).in_features, dtype=torch.bfloat16)
    layer.train()  # else bitsandbytes packs the weight for AVX512-BF16, and PEFT's DoRA reads it as if it had not
    with torch.no_grad():
        trained = layer(x) - (0 if layer.base_layer.bias is None else layer.base_layer.bias)
    assert (sent[f"{name}.weight"].T - trained).abs().max() <= 2**-7 * trained.abs().max()  # of one rounding
    frozen = "model.language_model.layers.0.self_attn.k_proj.weight"
    assert 0 < (sent[frozen] - plain.get_parameter(frozen)).abs().max() < 0.1
