"""Tiny random models of text alone; their tokenizer stands where others have a processor."""

from families_parts import tokenizer_of
from further_families import text_of
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from trl_mmreason.miniature.models import CHATML, _trl_template


def llama():
    """A model of text with a token that begins every prompt."""
    named = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|pad|>"}
    special = ["<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>"]
    tokenizer = tokenizer_of(_trl_template("llama3_1"), *special, **named)
    return LlamaForCausalLM(LlamaConfig(**text_of(tokenizer))), tokenizer


def qwen3():
    """A model of text whose template drops the thoughts of earlier turns."""
    tokenizer = tokenizer_of(_trl_template("qwen3"), "<|im_start|>", **CHATML)
    return Qwen3ForCausalLM(Qwen3Config(**text_of(tokenizer, head_dim=16))), tokenizer
