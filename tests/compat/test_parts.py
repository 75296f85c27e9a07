"""The parts of a model: which parameter belongs where, what is said of it, and that exactly the chosen ones move."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support import load
from transformers import AutoModelForCausalLM, Qwen2Config

from trl_mmreason.compat.model_parts import PARTS, parts_of, train_only

VISION = {
    "qwen2_vl": ["model.visual.patch_embed", "model.visual.blocks"],
    "qwen2_5_vl": ["model.visual.patch_embed", "model.visual.blocks"],
    "qwen3_vl": ["model.visual.patch_embed", "model.visual.pos_embed", "model.visual.blocks"],
    "internvl": ["model.vision_tower"],
    "llava_next": ["model.vision_tower"],
}
PROJECTOR = {
    "qwen2_vl": ["model.visual.merger"],
    "qwen2_5_vl": ["model.visual.merger"],
    "qwen3_vl": ["model.visual.merger", "model.visual.deepstack_merger_list"],
    "internvl": ["model.multi_modal_projector"],
    "llava_next": ["model.image_newline", "model.multi_modal_projector"],
}
LANGUAGE = ["model.language_model", "lm_head"]


def test_the_parts_of_every_family(family, checkpoints):
    model, _ = load(checkpoints(family))
    parts = train_only(model, ["language"])
    assert parts["vision"].modules == VISION[family]
    assert parts["projector"].modules == PROJECTOR[family]
    assert parts["language"].modules == LANGUAGE
    for name, part in parts.items():
        size = sum(
            parameter.numel()
            for module in part.modules
            for key, parameter in model.named_parameters()
            if key == module or key.startswith(f"{module}.")
        )
        assert (part.trained, part.frozen) == ((size, 0) if name == "language" else (0, size))
    assert sum(part.trained + part.frozen for part in parts.values()) == model.num_parameters()


@pytest.mark.parametrize("chosen", [[part] for part in PARTS])
def test_exactly_the_chosen_parts_have_a_gradient(chosen, family, checkpoints):
    from PIL import Image

    model, processor = load(checkpoints(family))
    place = parts_of(model)
    train_only(model, chosen)
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]
    text = processor.apply_chat_template(message, add_generation_prompt=True)
    image = Image.effect_noise((84, 56), 99).convert("RGB")
    inputs = processor(images=[image], text=[text], return_tensors="pt")
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    moving = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert moving <= {name for name in place if place[name] == chosen[0]}
    # Of some encoders the last layer is not used, and LLaVA-NeXT's newline only where an image is tiled.
    idle = {name for name in place if place[name] == chosen[0]} - moving
    assert all("post_layernorm" in name or ".layers.2." in name for name in idle), idle


def test_what_was_frozen_before_stays_so(checkpoints):
    model, _ = load(checkpoints("internvl"))
    model.get_input_embeddings().requires_grad_(False)
    parts = train_only(model, ["language", "projector"])
    assert parts["language"].frozen == model.get_input_embeddings().weight.numel()
    assert parts["projector"].frozen == 0
    assert str(parts["projector"]) == (
        f"{parts['projector'].trained:,} of {parts['projector'].trained:,} parameters (model.multi_modal_projector)"
    )


def test_an_adapter_belongs_to_what_it_adapts(family, checkpoints):
    model, _ = load(checkpoints(family))
    model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    parts = train_only(model, ["language"])
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name and ".language_model." in name for name in trained)
    assert parts["vision"].trained == parts["projector"].trained == 0


def test_an_adapter_without_weights_in_the_chosen_part_is_refused(checkpoints):
    model, _ = load(checkpoints("qwen2_5_vl"))
    model = get_peft_model(model, LoraConfig(r=2, target_modules=r".*language_model.*\.q_proj"))
    with pytest.raises(ValueError, match=r"nothing in \['vision'\] can be trained"):
        train_only(model, ["vision"])


def test_unknown_parts_are_refused(checkpoints):
    model, _ = load(checkpoints("qwen2_5_vl"))
    with pytest.raises(ValueError, match=r"\['audio'\], expected one or more of"):
        train_only(model, ["audio"])


def test_a_part_without_weights_is_refused(checkpoints):
    model, _ = load(checkpoints("internvl"))
    model.model.multi_modal_projector = torch.nn.Identity()
    with pytest.raises(ValueError, match="has no projector; leave it out"):
        train_only(model, ["projector", "language"])
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_text_only_model_is_language_alone():
    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = AutoModelForCausalLM.from_config(Qwen2Config(vocab_size=32, intermediate_size=16, **tiny))
    parts = train_only(model, ["language"])
    assert parts["language"].trained == sum(parameter.numel() for parameter in model.parameters())
    with pytest.raises(ValueError, match="has no vision; leave it out"):
        train_only(model, ["vision", "language"])
