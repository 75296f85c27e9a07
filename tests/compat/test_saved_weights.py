"""vLLM is handed each weight by the name and in the layout of a checkpoint."""

import inspect

import pytest
import torch
from all_families import FAMILIES
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from trl.generation import vllm_generation

from trl_mmreason.compat.saved_weights import saved_weights
from trl_mmreason.compat.vllm_plugin import as_published

JOINED = {"ernie4_5_vl_moe", "kimi_k25"}  # a weight of their checkpoints is made of several live ones
IN_MAKE_TEST = {"qwen2_5_vl", "llava_next", "aria", "paddleocr_vl"}


@pytest.mark.parametrize(
    "name", [name if name in IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.full) for name in FAMILIES]
)
def test_weights_one_by_one_are_those_of_a_checkpoint(name, tmp_path):
    model, _ = FAMILIES[name]()
    model.save_pretrained(tmp_path)
    checkpoint = {key: value for file in tmp_path.glob("*.safetensors") for key, value in load_file(file).items()}
    live, saved = dict(model.named_parameters()), saved_weights(model)
    found = dict(item for weight in live.items() for item in saved(*weight))
    if name in JOINED:
        assert all(found[key] is weight for key, weight in live.items())
        return
    buffers = {key for key in checkpoint if key.endswith(("e_score_correction_bias", "layer_scalar"))}
    assert found.keys() == checkpoint.keys() - buffers
    assert all(torch.equal(value, checkpoint[key]) for key, value in found.items())


def test_experts_whose_place_an_adapter_has_taken_stay_as_they_are():
    model, _ = FAMILIES["qwen3_vl_moe"]()
    name, experts = next(pair for pair in model.named_parameters() if pair[0].endswith("experts.gate_up_proj"))
    adapter = LoraConfig(r=2, target_parameters=["mlp.experts.gate_up_proj"], target_modules=["q_proj"])
    ((found, weight),) = saved_weights(get_peft_model(model, adapter))(name, experts)
    assert found == name
    assert weight is experts


def test_trl_still_hands_live_weights_to_vllm():
    assert "weight_conversion" not in inspect.getsource(vllm_generation), (
        "TRL itself now hands over what is saved. Delete compat/saved_weights.py"
    )


def test_live_experts_are_transposed_and_published_ones_are_not():
    """E = 2, H = 3, I = 5."""
    joined, down = torch.randn(2, 3, 10), torch.randn(2, 5, 3)
    published = {"gate_up_proj": joined, "down_proj": down, "gate_up_proj_scale": joined, "0.up_proj.weight": down[0]}
    live = {**published, "gate_up_proj": joined.mT, "down_proj": down.mT}
    for weights in (live, published):
        found = dict(as_published(weights.items(), 3))
        assert found.keys() == published.keys()
        assert all(torch.equal(found[name], weight) for name, weight in published.items())
