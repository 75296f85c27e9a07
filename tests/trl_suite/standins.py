"""Local stand-ins for the tiny models and the rows of TRL's tests, which are on the Hub."""

import json
from pathlib import Path

import datasets
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from trl_mmreason.miniature.corpus import corpus
from trl_mmreason.miniature.models import _trl_template, build_model
from trl_mmreason.miniature.tokenizer import train_tokenizer

OWNER = "trl-internal-testing/"
TEXTS = ["Qwen2", "Qwen3", "Qwen3Moe", "Gemma2", "Llama", "Mistral", "Cohere2", "Olmo3"]  # families of text-only models
IMAGES = {"Qwen2VL": "qwen2_vl", "Qwen2_5_VL": "qwen2_5_vl", "Qwen3VL": "qwen3_vl", "LlavaNext": "llava_next"}
# Tests write these tokens of Qwen's vocabulary by their ids.
QWEN = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<tool_call>": 151657}
QWEN |= {"</tool_call>": 151658, '{"': 4913, "name": 606, '":': 788, 'Ġ"': 330, "multiply": 64648, "_tool": 22785}
QWEN |= {'",': 497, "arguments": 16370, 'Ġ{"': 5212, "a": 64, "b": 65, "c": 66, "Ġ": 220, "3": 18, "4": 19, ",": 11}
QWEN |= {"}}Ċ": 11248, "Ċ": 198, "async": 7692, "_multiply": 93054, "Done": 17453, "!": 0}

ZEN = """Beautiful is better than| ugly.
Explicit is| better than implicit.
Simple is better| than complex.
Complex| is better than complicated.
Flat is better than| nested.
Sparse is better| than dense.
Readability| counts.
Special cases aren't special| enough to break the rules.
Although practicality beats| purity.
Errors should never| pass silently.
Unless explicitly| silenced.
In the face of ambiguity, refuse| the temptation to guess.
There should be one-- and preferably| only one --obvious way to do it.
Although that way may not be obvious at first| unless you're Dutch.
Now is better| than never.
Although never is often| better than *right* now.
If the implementation is hard| to explain, it's a bad idea.
If the implementation is easy| to explain, it may be a good idea.
Namespaces are one| honking great idea -- let's do more of those!"""


def text_tokenizer(ids_of_qwen: bool) -> PreTrainedTokenizerFast:
    """A small tokenizer; its tokens may have Qwen's ids where tests write them, and ids from 1000 on otherwise."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    trained = train_tokenizer(corpus(), special_tokens=special, named_tokens={})
    state = json.loads(trained.backend_tokenizer.to_str())
    place, size = state["model"]["vocab"], 2000
    if ids_of_qwen:
        place, size = {**{token: 1000 + id_ for token, id_ in place.items()}, **QWEN}, min(map(QWEN.get, special))
    taken = set(place.values())  # every id is a word, so that random policies write texts of different lengths
    place |= {"w" * (1 + id_ % 5) + str(id_): id_ for id_ in range(size) if id_ not in taken}
    state["model"]["vocab"] = place
    for token in state["added_tokens"]:
        token["id"] = place[token["content"]]
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "padding_side": "left"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)), **named)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|finetune_right_pad_id|>"]})
    tokenizer.chat_template = _trl_template("qwen3")
    return tokenizer


def build_models(cache: Path, ids_of_qwen: bool) -> set[str]:
    """Write all stand-ins into a cache of the Hub; return their names."""
    tokenizer, names = text_tokenizer(ids_of_qwen), set()
    width = {"hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 2}
    width |= {"num_key_value_heads": 2, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}

    def save(name, model, processor):
        commit = cache / f"models--{OWNER}{name}".replace("/", "--") / "snapshots" / ("0" * 40)
        model.save_pretrained(commit)
        processor.save_pretrained(commit)
        (commit.parents[1] / "refs").mkdir(exist_ok=True)
        (commit.parents[1] / "refs" / "main").write_text("0" * 40)
        names.add(OWNER + name)

    torch.manual_seed(0)
    for family in TEXTS:
        config = getattr(transformers, f"{family}Config")(
            vocab_size=len(tokenizer) + 2,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            **width,
        )
        version = {"Qwen2": "-2.5", "Llama": "-3.2", "Mistral": "-0.2"}.get(family, "")
        save(f"tiny-{family}ForCausalLM{version}", AutoModelForCausalLM.from_config(config), tokenizer)
        if family in ("Qwen2", "Qwen3", "Llama"):
            config.num_labels = 1
            judge = AutoModelForSequenceClassification.from_config(config)
            save(f"tiny-{family}ForSequenceClassification{version}", judge, tokenizer)
    for name, family in IMAGES.items():
        model, processor = build_model(family)
        processor.tokenizer.add_tokens(["<|fim_pad|>"], special_tokens=True)  # of Qwen, which a test pads with
        model.resize_token_embeddings(len(processor.tokenizer))
        save(f"tiny-{name}ForConditionalGeneration", model, processor)
    return names


def load_dataset(path, name=None, split=None, streaming=False):
    """Stand in for `datasets.load_dataset` with the rows that TRL's tests ask for."""
    form, _, kind = name.partition("_")
    pairs = [line.split("|") for line in ZEN.splitlines()]
    rows = [_row(question, answer, pairs[place - 1][1], kind) for place, (question, answer) in enumerate(pairs)]
    if form == "conversational":
        rows = [_spoken(row) for row in rows]
    if "image" in path:
        sizes = [1] if path.endswith("zen-image") else [1, 2, 0]
        for place, row in enumerate(rows):
            row["images"] = [Image.new("RGB", (56, 56), (place, 9 * place, 200))] * sizes[place % len(sizes)]
    parts = {"train": datasets.Dataset.from_list(rows[:17]), "test": datasets.Dataset.from_list(rows[17:])}
    if streaming:
        parts = {key: part.to_iterable_dataset() for key, part in parts.items()}
    if split is None:
        return datasets.DatasetDict(parts)
    key, _, count = split.partition("[:")
    return parts[key].select(range(int(count[:-1]))) if count else parts[key]


def _row(question, answer, other, kind):
    forms = {
        "prompt_only": {"prompt": question},
        "prompt_completion": {"prompt": question, "completion": answer},
        "language_modeling": {"text": question + answer},
        "preference": {"prompt": question, "chosen": answer, "rejected": other},
        "implicit_prompt_preference": {"chosen": question + answer, "rejected": question + other},
        "unpaired_preference": {"prompt": question, "completion": answer, "label": True},
    }
    return dict(forms[kind])


def _spoken(row):
    def said(role, text):
        return [{"role": role, "content": text}]

    roles = {"prompt": "user", "completion": "assistant", "chosen": "assistant", "rejected": "assistant"}
    if "text" in row:
        return {"messages": said("user", "Go on.") + said("assistant", row["text"])}
    begin = [] if "prompt" in row else said("user", "Go on.")
    return {name: (begin if roles[name] == "assistant" else []) + said(roles[name], text) for name, text in row.items()}
