"""A tiny Gemma 3, a family that the package does not name, for the examples of docs/extend.md."""

import torch
from support import ends_often
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    GenerationConfig,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from trl_mmreason.miniature.corpus import corpus
from trl_mmreason.miniature.models import _trl_template
from trl_mmreason.miniature.tokenizer import train_tokenizer

SIDE, PATCH, IMAGE_TOKENS = 56, 14, 4
NAMED = {
    "bos_token": "<bos>",
    "eos_token": "<end_of_turn>",
    "pad_token": "<pad>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}


def save_gemma3(folder):
    """Save a random model with its processor; a quarter of its tokens end a turn."""
    tokenizer = train_tokenizer(corpus(), special_tokens=[*NAMED.values(), "<start_of_turn>"], named_tokens=NAMED)
    tokenizer.chat_template = _trl_template("gemma3")
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "initializer_range": 0.1,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": PATCH,
    }
    ids = {f"{name}_token_index": getattr(tokenizer, f"{name}_token_id") for name in ("boi", "eoi", "image")}
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=IMAGE_TOKENS, **ids)
    )
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    ends_often(model, tokenizer)
    model.save_pretrained(folder)
    Gemma3Processor(
        image_processor=Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
        image_seq_length=IMAGE_TOKENS,
    ).save_pretrained(folder)
    return str(folder)
