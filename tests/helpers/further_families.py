"""Tiny random models of families of which training has to take care, each with its processor, in a few lines."""

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
import transformers
from transformers import (
    AyaVisionConfig,
    AyaVisionForConditionalGeneration,
    AyaVisionProcessor,
    DeepseekVLConfig,
    DeepseekVLForConditionalGeneration,
    DeepseekVLProcessor,
    GenerationConfig,
    Glm4vMoeConfig,
    Glm4vMoeForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
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
    ProcessorMixin,
)
from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import DeepseekVLImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from trl_mmreason.compat import torchvision_free
from trl_mmreason.miniature.corpus import corpus
from trl_mmreason.miniature.models import SIZES, _trl_template, build_model
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


_settled = dict  # what becomes of a text model's settings


@contextmanager
def wide_heads(**text):
    """Build models with half as many heads, which are twice as wide, as vLLM needs them.

    Args:
        **text: further settings of the text model.
    """

    def halved(settings):
        heads = {name: settings[name] // 2 for name in ("num_attention_heads", "num_key_value_heads")}
        width = {"head_dim": 2 * settings["head_dim"]} if "head_dim" in settings else {}
        if rope := settings.get("rope_parameters"):
            sections = {name: [2 * part for part in value] for name, value in rope.items() if name == "mrope_section"}
            width["rope_parameters"] = {**rope, **sections}
        return {**settings, **heads, **width, **text}

    test = replace(SIZES["test"], heads=SIZES["test"].heads // 2)
    with patch.dict(SIZES, test=test), patch.dict(globals(), _settled=halved):
        yield


def text_of(tokenizer, **more):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 1024, "initializer_range": 0.1}
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return _settled({**sizes, **ids, "vocab_size": len(tokenizer), **more})


def vision_of(**more):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    return {**sizes, "image_size": SIDE, "patch_size": PATCH, **more}


def video_processor(kind, **settings):
    """The family's video processor; without torchvision a stand-in with the settings that its processor reads."""
    stand_in = getattr(torchvision_free, "VideoProcessorStandIn", None)
    return stand_in(video_processor_type=kind, **settings) if stand_in else getattr(transformers, kind)()


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
    model = MllamaForConditionalGeneration(config)
    for gate in ("cross_attn_attn_gate", "cross_attn_mlp_gate"):  # closed at first: no image would be seen
        getattr(model.model.language_model.layers[1], gate).data.fill_(1.0)
    return model, processor


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


def idefics3():
    """A model that reads an image's tiles, with a mask of their pixels, as many for each row as the largest has."""
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 3) for column in range(1, 3)]
    special = ["<|begin_of_text|>", "<|im_start|>", "<fake_token_around_image>", "<global-img>", *tiles]
    named = {"eos_token": "<end_of_utterance>", "pad_token": "<|im_end|>", "image_token": "<image>"}
    named |= {"global_image_token": "<global-img>", "fake_image_token": "<fake_token_around_image>"}
    special = [token for token in special if token not in named.values()]
    tokenizer = tokenizer_with(special, _trl_template("idefics3"), **named)
    config = Idefics3Config(
        text_config={"model_type": "llama", **text_of(tokenizer)},
        vision_config=vision_of(),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    images = Idefics3ImageProcessorPil(size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE})
    processor = Idefics3Processor(
        image_processor=images, tokenizer=tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template
    )
    return Idefics3ForConditionalGeneration(config), processor


def deepseek_vl():
    """A model whose processor returns tensors of ids, which it pads by itself."""
    template = PLAIN.replace("IMAGE", "<image>")
    tokenizer = tokenizer_with([], template, bos_token="<bos>", image_token="<image>")
    config = DeepseekVLConfig(
        text_config={"model_type": "llama", **text_of(tokenizer)},
        vision_config={"model_type": "siglip_vision_model", **vision_of(vision_use_head=False)},
        image_token_id=tokenizer.image_token_id,
    )
    images = DeepseekVLImageProcessorPil(size={"height": SIDE, "width": SIDE}, min_size=PATCH)
    processor = DeepseekVLProcessor(
        image_processor=images, tokenizer=tokenizer, chat_template=template, num_image_tokens=16
    )
    return DeepseekVLForConditionalGeneration(config), processor


def gemma4():
    """A model that is told where each patch of an image lies, and attends to all of an image at once."""
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration, Gemma4Processor  # not in transformers 5.17
    from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    named = {"eos_token": "<turn|>", "bos_token": "<bos>", "boi_token": "<|image>", "eoi_token": "<image|>"}
    named |= {"image_token": "<|image|>", "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
    special = ["<|turn>", "<|video|>", "<|channel>", "<channel|>", "<|think|>"]
    tokenizer = tokenizer_with(special, _trl_template("gemma4_v5"), **named)
    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24}
    layers |= {"vocab_size_per_layer_input": len(tokenizer), "hidden_size_per_layer_input": 8, "head_dim": 16}
    layers |= {"final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision", "num_kv_shared_layers": 0}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision |= {"num_key_value_heads": 4, "head_dim": 8, "patch_size": 8, "pooling_kernel_size": 2}
    config = Gemma4Config(
        text_config=text_of(tokenizer, **layers),
        vision_config={**vision, "position_embedding_size": 256},
        audio_config=None,
        **{
            f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id")
            for kind in ("boi", "eoi", "image", "audio", "boa")
        },
        video_token_id=tokenizer.convert_tokens_to_ids("<|video|>"),
    )
    processor = Gemma4Processor(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessorPil(patch_size=8, pooling_kernel_size=2, max_soft_tokens=70),
        tokenizer=tokenizer,
        video_processor=video_processor("Gemma4VideoProcessor"),
        chat_template=tokenizer.chat_template,
        image_seq_length=70,
    )
    return Gemma4ForConditionalGeneration(config), processor


def saved(make, folder):
    """Save a model whose answers end often; return the folder."""
    torch.manual_seed(0)
    model, processor = make()
    tokenizer = processor.tokenizer if isinstance(processor, ProcessorMixin) else processor
    size = model.get_output_embeddings().out_features
    ends = [tokenizer.eos_token_id, *range(size - size // 4, size)]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)
