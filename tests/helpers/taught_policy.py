"""A tiny policy that writes chains: often whole ones, right or one off, and often malformed ones."""

from functools import cache

import torch
from support import drawn_rows

from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
from trl_mmreason.chain_of_step.template import Chain, Step, render_chain
from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.generation.batch import collate, encode
from trl_mmreason.miniature.models import build_model


def questions():
    """Two sums, the second with an image beside it."""
    texts = [[{"role": "user", "content": question}] for question in ("3+4=", "2+3=")]
    images = [[], drawn_rows(1)[0]["images"]]
    return [
        {"id": id_, "prompt": prompt, "images": own, "answer": total}
        for id_, prompt, own, total in zip(("sum", "picture"), texts, images, "75", strict=True)
    ]


@cache
def teach():
    """Model and processor after some seconds of training on four chains a question; not to be changed."""
    model, processor = build_model("qwen2_5_vl")
    add_chain_tokens(model, processor)
    tokenizer = processor.tokenizer
    prompts, completions = [], []
    for row in questions():
        for result in (int(row["answer"]), int(row["answer"]) + 1):
            for checks in (0, 1):
                steps = [Step(name, str(result), "ok") for name in ["sum", "check"][: 1 + checks]]
                text = render_chain(Chain(steps, str(result)))
                completions.append([*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id])
                prompts.append(encode(processor, row["prompt"], row["images"]).extended(completions[-1]))
    inputs = collate(prompts, tokenizer.pad_token_id)
    labels = torch.full_like(inputs["input_ids"], -100)
    for row, completion in zip(labels, completions, strict=True):
        row[-len(completion) :] = torch.tensor(completion)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(70):
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, processor


def reward_model(seed=1):
    """A process reward model without any idea of what is right."""
    model, processor = build_model("qwen2_5_vl", seed=seed)
    add_chain_tokens(model, processor)
    return ProcessRewardModel(model, processor)
