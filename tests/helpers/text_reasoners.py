"""Text-only reasoners, random and tiny, and what they are asked."""

import torch
from support import drawn_rows
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from trl_mmreason.generation import Request
from trl_mmreason.miniature.corpus import corpus
from trl_mmreason.miniature.tokenizer import train_tokenizer

# As published text templates, it adds texts up, and so refuses contents in parts.
CHATML = (
    "{{ bos_token or '' }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' + (opening or '') }}{% endif %}"
)
WIDTHS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDTHS |= {"num_key_value_heads": 2, "max_position_embeddings": 1024, "initializer_range": 0.1}
REASONERS = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"pad_token": "<|endoftext|>"}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"bos_token": "<|endoftext|>"}),  # with nothing to pad with
}


def saved_reasoner(name, folder):
    """A random model, a quarter of whose vocabulary ends a turn, as in `support.saved_model`."""
    config_class, model_class, named_tokens = REASONERS[name]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    named_tokens = {"eos_token": "<|im_end|>", **named_tokens}
    tokenizer = train_tokenizer(corpus(), special_tokens=special, named_tokens=named_tokens)
    tokenizer.chat_template = CHATML
    size = len(tokenizer)
    torch.manual_seed(0)
    model = model_class(config_class(vocab_size=size, bos_token_id=None, eos_token_id=None, **WIDTHS))
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(size - size // 4, size)]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def text_requests(number, **fields):
    """Of several lengths, every other with a system message, every third with a beginning of the answer."""
    system = [{"role": "system", "content": "Think."}]
    return [
        Request(system * (k % 2) + row["prompt"], prefix=["", "", "So 1+1"][k % 3], seed=k, **fields)
        for k, row in enumerate(drawn_rows(number))
    ]


def plain_ids(tokenizer, request):
    """What the tokenizer itself makes of a conversation and of what the assistant has said already."""
    text = tokenizer.apply_chat_template(list(request.messages), tokenize=False, add_generation_prompt=True)
    return [i for part in (text, request.prefix) for i in tokenizer(part, add_special_tokens=False)["input_ids"]]
