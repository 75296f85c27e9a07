"""Tiny random models that see an image as one piece, whole or scaled down."""

from families_parts import chatml_tokenizer, mistral_tokenizer, pixtral_images, pixtral_vision, tokenizer_of
from further_families import PATCH, SIDE, text_of, vision_of
from transformers import (
    AriaConfig,
    AriaForConditionalGeneration,
    AriaProcessor,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusProcessor,
    LightOnOcrConfig,
    LightOnOcrForConditionalGeneration,
    LightOnOcrProcessor,
    Llama4Config,
    Llama4ForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
)
from transformers.models.aria.image_processing_pil_aria import AriaImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil

from trl_mmreason.miniature.models import _trl_template

SQUARE = {"height": SIDE, "width": SIDE}


def aria():
    """A mixture of experts that counts its experts under names of its own, and is given a mask of an image's pixels."""
    tokenizer = chatml_tokenizer()
    experts = {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1, "intermediate_size": 32}
    side, patch = 980, 35  # its processor makes every image as large
    vision = vision_of(hidden_size=16, num_attention_heads=2, image_size=side, patch_size=patch)
    config = AriaConfig(
        text_config={"model_type": "aria_text", **text_of(tokenizer, **experts)},
        vision_config={"model_type": "idefics3_vision", **vision},
        projector_patch_to_query_dict={(side // patch) ** 2: 4},
        initializer_range=0.1,
        image_token_index=tokenizer.image_token_id,
    )
    processor = AriaProcessor(
        image_processor=AriaImageProcessorPil(max_image_size=side),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
        size_conversion={side: 4},
    )
    return AriaForConditionalGeneration(config), processor


def gemma3():
    """A model that attends to all of an image at once, and in every other layer to a window of what it has read."""
    named = {"bos_token": "<bos>", "eos_token": "<end_of_turn>", "image_token": "<image_soft_token>"}
    named |= {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = tokenizer_of(_trl_template("gemma3"), "<start_of_turn>", **named)
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24, "head_dim": 16}
    config = Gemma3Config(
        text_config=text_of(tokenizer, **layers, query_pre_attn_scalar=16),
        vision_config=vision_of(),
        mm_tokens_per_image=4,
        **{f"{kind}_token_index": getattr(tokenizer, f"{kind}_token_id") for kind in ("boi", "eoi", "image")},
    )
    processor = Gemma3Processor(
        image_processor=Gemma3ImageProcessorPil(size=SQUARE),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
        image_seq_length=4,
    )
    model = Gemma3ForConditionalGeneration(config)
    model.model.multi_modal_projector.mm_input_projection_weight.data.normal_(0, 0.1)  # else 0: no image would be seen
    return model, processor


def janus():
    """A model that draws as well, with parts for that alone; its processor returns tensors."""
    tokenizer = chatml_tokenizer()
    drawing = {"embed_dim": 8, "num_embeddings": 16, "latent_channels": 32, "base_channels": 32, "num_res_blocks": 1}
    drawing |= {"channel_multiplier": [1], "projection_dim": 64, "image_token_embed_dim": 64}
    config = JanusConfig(
        text_config={"model_type": "llama", **text_of(tokenizer, num_hidden_layers=1)},
        vision_config=vision_of(num_hidden_layers=1, mlp_ratio=2.0, projection_dim=64, num_image_tokens=16),
        vq_config=drawing,
        image_token_id=tokenizer.image_token_id,
    )
    processor = JanusProcessor(
        image_processor=JanusImageProcessorPil(size=SQUARE, min_size=PATCH),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
        num_image_tokens=16,
    )
    return JanusForConditionalGeneration(config), processor


def lighton_ocr():
    """A reader of documents that is told the sizes of images, and whose processor returns tensors."""
    tokenizer = chatml_tokenizer()
    config = LightOnOcrConfig(
        text_config={"model_type": "qwen3", **text_of(tokenizer, head_dim=16)},
        vision_config=pixtral_vision(),
        image_token_id=tokenizer.image_token_id,
    )
    return LightOnOcrForConditionalGeneration(config), sized_processor(tokenizer, merged=2)


def sized_processor(tokenizer, merged):
    """LightOnOCR's processor, also of models whose own is Pixtral's, which needs torchvision.

    Args:
        merged: how many patches are merged, of each side.
    """
    return LightOnOcrProcessor(
        image_processor=pixtral_images(merged * PATCH),
        tokenizer=tokenizer,
        patch_size=PATCH,
        spatial_merge_size=merged,
        chat_template=tokenizer.chat_template,
    )


def llama4():
    """A mixture of experts that attends within chunks; its images are read as LLaVA's, as its own need torchvision."""
    tokenizer = chatml_tokenizer()
    experts = {"num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1}
    experts |= {"intermediate_size": 32, "intermediate_size_mlp": 64, "head_dim": 16}
    vision = {
        "vision_output_dim": 32,
        "projector_input_dim": 32,
        "projector_output_dim": 32,
        "pixel_shuffle_ratio": 0.5,
    }
    config = Llama4Config(
        text_config=text_of(tokenizer, **experts, attention_chunk_size=32, no_rope_layer_interval=2),
        vision_config=vision_of(num_hidden_layers=2, intermediate_size=128, **vision),
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
    )
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=SQUARE),
        tokenizer=tokenizer,
        patch_size=2 * PATCH,  # two by two patches become one token
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
    )
    return Llama4ForConditionalGeneration(config), processor


def llava():
    """LLaVA 1.5: as many tokens for every image, and no field beside its pixels."""
    tokenizer = chatml_tokenizer()
    config = LlavaConfig(
        text_config={"model_type": "llama", **text_of(tokenizer)},
        vision_config={"model_type": "clip_vision_model", "projection_dim": 32, **vision_of()},
        image_token_index=tokenizer.image_token_id,
        image_seq_length=16,
    )
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=SQUARE),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # the class token of the vision encoder
        chat_template=tokenizer.chat_template,
    )
    return LlavaForConditionalGeneration(config), processor


def mistral3():
    """A model whose images are padded to the largest, with their sizes beside them; it merges patches."""
    tokenizer = mistral_tokenizer()
    config = Mistral3Config(
        text_config={"model_type": "mistral", **text_of(tokenizer, sliding_window=None)},
        vision_config=pixtral_vision(),
        image_token_index=tokenizer.image_token_id,
        spatial_merge_size=2,
    )
    return Mistral3ForConditionalGeneration(config), sized_processor(tokenizer, merged=2)


def pixtral():
    """A LLaVA whose images are padded to the largest, with their sizes beside them."""
    tokenizer = mistral_tokenizer()
    config = LlavaConfig(
        text_config={"model_type": "mistral", **text_of(tokenizer, sliding_window=None)},
        vision_config=pixtral_vision(),
        image_token_index=tokenizer.image_token_id,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        image_seq_length=1,
    )
    return LlavaForConditionalGeneration(config), sized_processor(tokenizer, merged=1)
