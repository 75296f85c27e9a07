"""Which adapters a vLLM can hold as they are, and what it gets of them. With vLLM itself: tests/engines."""

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from support import load

from trl_mmreason import RolloutConfig
from trl_mmreason.compat.saved_weights import saved_weights
from trl_mmreason.compat.vllm_adapters import adapter_tensors, engine_settings

ALL = {"r": 4, "lora_alpha": 32, "target_modules": "all-linear"}
LANGUAGE = {**ALL, "exclude_modules": ".*visual.*"}
REFUSED = {
    "has no DoraLinear": LoraConfig(**ALL, use_dora=True),
    "trains biases": LoraConfig(**LANGUAGE, lora_bias=True),
    r"'lm_head' itself \(modules_to_save\)": LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]),
    r"embed_tokens' itself \(trainable_token_indices\)": LoraConfig(**LANGUAGE, trainable_token_indices=[1, 2]),
    "does not adapt 'model.visual.patch_embed.proj' as Conv3d": LoraConfig(target_modules=["patch_embed.proj"]),
    "of type IA3": IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "rank 513, and vLLM takes 512": LoraConfig(target_modules=["q_proj"], rank_pattern={"layers.1.+q_proj": 513}),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_vllm_cannot_hold_is_refused_with_the_fix(checkpoints, problem):
    model = get_peft_model(load(checkpoints("qwen2_5_vl"))[0], REFUSED[problem])
    with pytest.raises(ValueError, match=f"vllm_lora=True: .*{problem}.* Fix: vllm_lora=False"):
        engine_settings(model)


def test_a_policy_without_an_adapter_is_refused(checkpoints):
    with pytest.raises(ValueError, match="the policy has no adapter"):
        engine_settings(load(checkpoints("qwen2_5_vl"))[0])


def test_vllm_makes_room_for_the_highest_rank_and_for_towers_where_they_are_adapted(checkpoints):
    model = get_peft_model(load(checkpoints("qwen2_5_vl"))[0], LoraConfig(**ALL, rank_pattern={"q_proj": 9}))
    assert engine_settings(model)["max_lora_rank"] == 16
    assert engine_settings(model)["enable_tower_connector_lora"]
    model = get_peft_model(load(checkpoints("qwen2_5_vl"))[0], LoraConfig(**LANGUAGE))
    assert engine_settings(model)["max_lora_rank"] == 8
    assert not engine_settings(model)["enable_tower_connector_lora"]


def test_the_product_of_what_is_sent_is_what_the_adapter_adds(checkpoints):
    model, _ = load(checkpoints("qwen2_5_vl"))
    settings = {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"down_proj": 8}, "use_rslora": True}
    config = LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "down_proj", "qkv", "embed_tokens"], **settings)
    model = get_peft_model(model, config)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn_like(weight)
    sent = adapter_tensors(model, saved_weights(model))
    layers = {name: layer for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}
    assert len(sent) == 2 * len(layers) > 0
    for name, layer in layers.items():
        name = name.replace("model.language_model.", "model.")  # as checkpoints of Qwen2.5-VL have it
        name = name.replace("model.visual.", "visual.")
        if f"{name}.lora_embedding_A" in sent:
            product = (sent[f"{name}.lora_embedding_B"] @ sent[f"{name}.lora_embedding_A"]).T
        else:
            product = sent[f"{name}.lora_B.weight"] @ sent[f"{name}.lora_A.weight"]
        torch.testing.assert_close(product, layer.get_delta_weight("default"))


def test_a_server_gets_merged_weights(tmp_path):
    with pytest.raises(ValueError, match="vllm_lora=True is for use_vllm=True with vllm_mode='colocate'"):
        RolloutConfig(str(tmp_path), use_cpu=True, use_vllm=True, vllm_mode="server", vllm_lora=True)
