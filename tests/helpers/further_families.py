"""Tiny random models of families of which training has to take care, each with its processor, in a few lines."""

import torch
from transformers import (
    AyaVisionConfig,
    AyaVisionForConditionalGeneration,
    AyaVisionProcessor,
    GenerationConfig,
    Glm4vMoeConfig,
    Glm4vMoeForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    MllamaConfig,
    MllamaForConditionalGeneration,
    MllamaProcessor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from trl_mmreason.miniature.corpus import corpus
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.tokenizer import train_tokenizer

SIDE, PATCH = 56, 14
COHERE = (
    "{% for m in messages %}<|START_OF_TURN_TOKEN|>{% if m['role'] == 'assistant' %}<|CHATBOT_TOKEN|><|START_RESPONSE|>"
    "{% else %}<|USER_TOKEN|>{% endif %}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{% if p['type'] == 'image' %}<image>{% else %}{{ p['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{% if m['role'] == 'assistant' %}<|END_RESPONSE|>{% endif %}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}IMAGE{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}<eos>\n{% endfor %}"
)


def tokenizer_with(special, template, **named):
    named = {"eos_token": "<eos>", "pad_token": "<pad>", **named}
    tokenizer = train_tokenizer(corpus(), special_tokens=[*named.values(), *special], named_tokens=named)
    tokenizer.chat_template = template
    return tokenizer


def text_of(tokenizer, **more):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 1024, "initializer_range": 0.1}
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {**sizes, **ids, "vocab_size": len(tokenizer), **more}


def vision_of(**more):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    return {**sizes, "image_size": SIDE, "patch_size": PATCH, **more}


def granite_vision():
    """A LLaVA-NeXT whose language model, but not the whole model, divides logits by 8."""
    _, processor = build_model("llava_next", "test")
    scaled = {"model_type": "granite", "logits_scaling": 8.0, "tie_word_embeddings": False}
    config = LlavaNextConfig(
        text_config=text_of(processor.tokenizer, **scaled, attention_multiplier=0.25),
        vision_config={"model_type": "clip_vision_model", "projection_dim": 32, **vision_of()},
        image_token_index=processor.tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=processor.image_processor.image_grid_pinpoints,
        image_seq_length=16,
    )
    return LlavaNextForConditionalGeneration(config), processor


def aya_vision():
    """A model that leaves its language model's `logit_scale` out, and a template that ends answers with two tokens."""
    special = ["<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>"]
    special += ["<|END_RESPONSE|>", "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "TILE", "TILE_GLOBAL"]
    tokenizer = tokenizer_with(special, COHERE, eos_token="<|END_OF_TURN_TOKEN|>", image_token="<image>")
    patch = tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>")
    config = AyaVisionConfig(
        text_config={"model_type": "cohere2", **text_of(tokenizer, logit_scale=0.25, sliding_window=64)},
        vision_config={"model_type": "siglip_vision_model", **vision_of(vision_use_head=False)},
        image_token_index=patch,
        downsample_factor=2,
    )
    processor = AyaVisionProcessor(
        image_processor=GotOcr2ImageProcessorPil(size={"height": SIDE, "width": SIDE}, crop_to_patches=False),
        tokenizer=tokenizer,
        patch_size=PATCH,
        img_size=SIDE,
        image_token="<image>",
        downsample_factor=2,
        tile_token="TILE",
        tile_global_token="TILE_GLOBAL",
        chat_template=COHERE,
    )
    return AyaVisionForConditionalGeneration(config), processor


def paligemma():
    """A model that sees all of its prompt at once, and a processor that takes no text without an image."""
    template = PLAIN.replace("IMAGE", "<image>")
    tokenizer = tokenizer_with([], template, bos_token="<bos>", image_token="<image>")
    images = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    images.image_seq_length = 16
    config = PaliGemmaConfig(
        text_config={"model_type": "gemma", **text_of(tokenizer, head_dim=16, num_image_tokens=16)},
        vision_config={"model_type": "siglip_vision_model", **vision_of(projection_dim=64, vision_use_head=False)},
        image_token_index=tokenizer.image_token_id,
        projection_dim=64,
        hidden_size=64,
    )
    processor = PaliGemmaProcessor(image_processor=images, tokenizer=tokenizer, chat_template=template)
    return PaliGemmaForConditionalGeneration(config), processor


def mllama():
    """A model whose images are seen by cross-attention, and whose head has no row for their placeholder."""
    template = PLAIN.replace("IMAGE", "<|image|>")
    tokenizer = tokenizer_with([], template, bos_token="<bos>")
    size = len(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|image|>"]})
    layers = {"num_hidden_layers": 3, "cross_attention_layers": [1]}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 4}
    vision |= {"intermediate_size": 64, "vision_output_dim": 64, "image_size": SIDE, "patch_size": PATCH}
    vision |= {"intermediate_layers_indices": [0], "max_num_tiles": 1, "supported_aspect_ratios": [[1, 1]]}
    config = MllamaConfig(
        text_config=text_of(tokenizer, vocab_size=size, rope_parameters=rope, **layers),
        vision_config=vision,
        image_token_index=size,
    )
    processor = MllamaProcessor(
        image_processor=MllamaImageProcessorPil(size={"height": SIDE, "width": SIDE}, max_image_tiles=1),
        tokenizer=tokenizer,
        chat_template=template,
    )
    return MllamaForConditionalGeneration(config), processor


def glm_experts():
    """A mixture of experts whose configuration counts them under another name than TRL's."""
    _, processor = build_model("qwen2_vl", "test")
    tokenizer = processor.tokenizer
    experts = {"moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0}
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 4, "image_size": SIDE, "patch_size": PATCH}
    ids = {f"{kind}_token_id": tokenizer.convert_tokens_to_ids(f"<|{kind}_pad|>") for kind in ("image", "video")}
    config = Glm4vMoeConfig(
        text_config=text_of(tokenizer, first_k_dense_replace=1, rope_parameters=rope, **experts),
        vision_config={**vision, "out_hidden_size": 64, "intermediate_size": 64},
        **ids,
    )
    return Glm4vMoeForConditionalGeneration(config), processor


def internvl_experts():
    """A mixture of experts that returns no logits of its routers, and refuses the attention of its vision encoder."""
    _, processor = build_model("internvl", "test")
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64, "head_dim": 16}
    config = InternVLConfig(
        text_config={"model_type": "gpt_oss", **text_of(processor.tokenizer, **experts)},
        vision_config=vision_of(image_size=[SIDE, SIDE], patch_size=[PATCH, PATCH]),
        image_token_id=processor.tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    return InternVLForConditionalGeneration(config), processor


def saved(make, folder):
    """Save a model whose answers end often; return the folder."""
    torch.manual_seed(0)
    model, processor = make()
    size = model.get_output_embeddings().out_features
    ends = [processor.tokenizer.eos_token_id, *range(size - size // 4, size)]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=processor.tokenizer.pad_token_id)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)
