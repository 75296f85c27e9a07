"""Tiny vision-language models of five families: real `transformers` classes from small configs.

A model is saved with `save_pretrained` and loaded with `AutoModelForImageTextToText` and `AutoProcessor` like any
checkpoint. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import (
    GenerationConfig,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ..compat import torchvision_free
from ..data.folders import MINIATURE_RECORD
from .corpus import corpus
from .tokenizer import train_tokenizer

PATCH = 14  # pixels; two by two patches are merged into one image token
IMAGE = 56  # pixels, the side of a miniature image and of one tile


@dataclass(frozen=True)
class Size:
    """Widths and depths of a miniature model."""

    hidden: int
    layers: int
    vision_hidden: int
    vision_layers: int
    heads: int = 4


SIZES = {
    "test": Size(hidden=64, layers=2, vision_hidden=32, vision_layers=2),
    # With one vision layer it learns to see soonest.
    "demo": Size(hidden=96, layers=2, vision_hidden=64, vision_layers=1),
    "study": Size(hidden=384, layers=6, vision_hidden=192, vision_layers=4, heads=6),
}

# 0.02, the usual value, leaves models this narrow almost silent: they then take four times as long to learn to see.
_INITIALIZER_RANGE = 0.1


def text_config(
    size: Size, tokenizer: PreTrainedTokenizerFast, *, mrope: bool = False, interleaved: bool = False
) -> dict[str, Any]:
    """Configuration of a language model of this size; with `mrope` as in the Qwen-VL families."""
    head_dim = size.hidden // size.heads
    config = {
        "vocab_size": len(tokenizer),
        "hidden_size": size.hidden,
        "intermediate_size": 2 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads // 2,
        "head_dim": head_dim,
        "max_position_embeddings": 4096,
        "initializer_range": _INITIALIZER_RANGE,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if mrope:  # rotary frequencies are shared out over time, height and width; the parts sum to half a head
        third = head_dim // 6
        sections = [head_dim // 2 - 2 * third, third, third]
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
        if interleaved:  # what transformers does for the family anyway, and vLLM only if the config says so
            config["rope_parameters"]["mrope_interleaved"] = True
    return config


def _qwen_vision_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    names = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    names |= {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    return {f"{name}_token_id": tokenizer.convert_tokens_to_ids(token) for name, token in names.items()}


def _later_widths(size: Size) -> dict[str, Any]:
    """Widths of the vision tower from Qwen2.5-VL on, which names its own and the language model's."""
    return {
        "hidden_size": size.vision_hidden,
        "intermediate_size": 2 * size.vision_hidden,
        "out_hidden_size": size.hidden,
    }


def _internvl(size: Size, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    vision = {
        "num_hidden_layers": size.vision_layers,
        "hidden_size": size.vision_hidden,
        "intermediate_size": 2 * size.vision_hidden,
        "num_attention_heads": size.heads,
        "image_size": (IMAGE, IMAGE),
        "patch_size": (PATCH, PATCH),
        "initializer_range": _INITIALIZER_RANGE,
        "layer_scale_init_value": 1.0,
    }
    text = {"model_type": "qwen2", **text_config(size, tokenizer)}
    return InternVLForConditionalGeneration(
        InternVLConfig(
            text_config=text,
            vision_config=vision,
            image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
            image_seq_length=(IMAGE // PATCH) ** 2 // 4,
            tie_word_embeddings=False,
        )
    )


def _llava_next(size: Size, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    vision = {
        "model_type": "clip_vision_model",
        "num_hidden_layers": size.vision_layers + 1,  # the features are taken from the last layer but one
        "hidden_size": size.vision_hidden,
        "intermediate_size": 2 * size.vision_hidden,
        "projection_dim": size.vision_hidden,
        "num_attention_heads": size.heads,
        "image_size": IMAGE,
        "patch_size": PATCH,
        "initializer_range": _INITIALIZER_RANGE,
    }
    text = {"model_type": "llama", **text_config(size, tokenizer)}
    return LlavaNextForConditionalGeneration(
        LlavaNextConfig(
            text_config=text,
            vision_config=vision,
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            image_grid_pinpoints=[[IMAGE, 2 * IMAGE], [2 * IMAGE, IMAGE]],
            image_seq_length=(IMAGE // PATCH) ** 2,
        )
    )


def _video_processor(class_name: str) -> Any:
    """The family's video processor; without torchvision a stand-in of the same name."""
    stand_in = getattr(torchvision_free, "VideoProcessorStandIn", None)
    if stand_in is not None:
        return stand_in(video_processor_type=class_name)
    return getattr(transformers, class_name)()


def _internvl_processor(tokenizer: PreTrainedTokenizerFast) -> ProcessorMixin:
    images = GotOcr2ImageProcessorPil(size={"height": IMAGE, "width": IMAGE}, crop_to_patches=True, max_patches=4)
    return InternVLProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        video_processor=_video_processor("InternVLVideoProcessor"),
        image_seq_length=(IMAGE // PATCH) ** 2 // 4,
        chat_template=tokenizer.chat_template,
    )


def _llava_next_processor(tokenizer: PreTrainedTokenizerFast) -> ProcessorMixin:
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": IMAGE},
        crop_size={"height": IMAGE, "width": IMAGE},
        image_grid_pinpoints=[[IMAGE, 2 * IMAGE], [2 * IMAGE, IMAGE]],
    )
    return LlavaNextProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # the class token of the vision tower
        chat_template=tokenizer.chat_template,
    )


# The template of the HF-native InternVL checkpoints, in which an image is one placeholder that the processor expands.
_INTERNVL_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<IMG_CONTEXT>\n{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _trl_template(name: str) -> str:
    return (importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()


CHATML = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class Family:
    """A model family: special tokens, chat template, model and processor."""

    special_tokens: list[str]
    named_tokens: dict[str, str]
    template: Callable[[], str]
    model: Callable[[Size, PreTrainedTokenizerFast], PreTrainedModel]
    processor: Callable[[PreTrainedTokenizerFast], ProcessorMixin]


def _qwen(
    name: str,
    template: str,
    video_class: str,
    vision: Callable[[Size], dict[str, Any]],
    *,
    interleaved: bool = False,
) -> Family:
    """A Qwen-VL family by the name that its classes begin with; `vision` gives its own settings of the vision tower."""

    def model(size: Size, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
        shared = {
            "depth": size.vision_layers,
            "num_heads": size.heads,
            "patch_size": PATCH,
            "initializer_range": _INITIALIZER_RANGE,
        }
        text = text_config(size, tokenizer, mrope=True, interleaved=interleaved)
        ids = _qwen_vision_ids(tokenizer)
        config_class = getattr(transformers, f"{name}Config")
        config = config_class(text_config=text, vision_config={**shared, **vision(size)}, **ids)
        return getattr(transformers, f"{name}ForConditionalGeneration")(config)

    def processor(tokenizer: PreTrainedTokenizerFast) -> ProcessorMixin:
        pixels = {"shortest_edge": (2 * PATCH) ** 2, "longest_edge": (4 * IMAGE) ** 2}
        return getattr(transformers, f"{name}Processor")(
            image_processor=Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=2, size=pixels),
            tokenizer=tokenizer,
            video_processor=_video_processor(video_class),
            chat_template=tokenizer.chat_template,
        )

    return Family(
        [*CHATML_TOKENS, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
        {**CHATML, "image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
        lambda: _trl_template(template),
        model,
        processor,
    )


FAMILIES = {
    # Qwen2-VL and Qwen2.5-VL speak the same template and share their video processor.
    "qwen2_vl": _qwen(
        "Qwen2VL",
        "qwen2_5_vl",
        "Qwen2VLVideoProcessor",
        lambda size: {"embed_dim": size.vision_hidden, "mlp_ratio": 2, "hidden_size": size.hidden},
    ),
    "qwen2_5_vl": _qwen(
        "Qwen2_5_VL",
        "qwen2_5_vl",
        "Qwen2VLVideoProcessor",
        lambda size: (
            _later_widths(size) | {"window_size": 8 * PATCH, "fullatt_block_indexes": [size.vision_layers - 1]}
        ),
    ),
    "qwen3_vl": _qwen(
        "Qwen3VL",
        "qwen3_vl",
        "Qwen3VLVideoProcessor",
        lambda size: _later_widths(size) | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
        interleaved=True,
    ),
    "internvl": Family(
        [*CHATML_TOKENS, "<img>", "</img>", "<IMG_CONTEXT>", "<video>"],
        {
            **CHATML,
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        lambda: _INTERNVL_TEMPLATE,
        _internvl,
        _internvl_processor,
    ),
    "llava_next": Family(
        ["<pad>", "<s>", "</s>", "<image>"],
        {"eos_token": "</s>", "pad_token": "<pad>", "image_token": "<image>"},
        lambda: _trl_template("llava_next"),
        _llava_next,
        _llava_next_processor,
    ),
}


def build_model(
    family: str, size: str = "test", *, seed: int = 0, in_steps: bool = False, judging: bool = False
) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Build a randomly initialised model of a family, and its processor.

    Args:
        family: one of `FAMILIES`.
        size: one of `SIZES`: `test` fits a unit test, `demo` learns on two CPU cores in minutes, `study` is for a GPU.
        seed: seed of the weights; the global random state of torch is left as it was.
        in_steps: whether its tokenizer knows the words of solutions in steps.
        judging: whether it knows those of a judge.

    Returns:
        The model in float32 and evaluation mode, and its left-padding processor.
    """
    if family not in FAMILIES:
        raise ValueError(f"build_model: unknown family {family!r}; expected one of {sorted(FAMILIES)}.")
    if size not in SIZES:
        raise ValueError(f"build_model: unknown size {size!r}; expected one of {sorted(SIZES)}.")
    parts = FAMILIES[family]
    tokenizer = train_tokenizer(
        corpus(in_steps=in_steps, judging=judging),
        special_tokens=parts.special_tokens,
        named_tokens=parts.named_tokens,
    )
    tokenizer.chat_template = parts.template()
    model = drawn_weights(lambda: parts.model(SIZES[size], tokenizer), tokenizer, seed)
    setattr(model.config, MINIATURE_RECORD, f"{family}/{size}")  # for the cards of all that it becomes
    return model, parts.processor(tokenizer)


def drawn_weights(
    build: Callable[[], PreTrainedModel], tokenizer: PreTrainedTokenizerFast, seed: int
) -> PreTrainedModel:
    """Build a model with this seed, in float32 and evaluation mode; torch's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build().float().eval()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model
