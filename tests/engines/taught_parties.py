"""One tiny model that plays every party of the pipelines, for a real vLLM to serve: policy, teacher, judge, reasoner.

It is taught by heart what each party says about two sums. Its heads have 32 dimensions, the fewest that vLLM takes.
"""

import json
import random
from itertools import cycle

import torch
from support import drawn_rows

from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
from trl_mmreason.chain_of_step.prompts import (
    JUDGE_PROMPT,
    step_data_message,
    step_data_prompt,
    step_judge_message,
    steps_as_text,
)
from trl_mmreason.chain_of_step.template import Chain, Step, render_chain
from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.generation.batch import collate, encode
from trl_mmreason.miniature import models
from trl_mmreason.sophia.prompts import reasoning_prompt
from trl_mmreason.srpo.prompts import COT_PROMPT, TEACHER_SYSTEM_PROMPT, teacher_prompt

FEWEST_STEPS, MOST_STEPS = 1, 2
UPDATES = 150
CAPTION_PROMPT, CAPTION = "What do you see?", "2 and 3"
_SIZE = models.Size(hidden=128, layers=2, vision_hidden=64, vision_layers=1, heads=4)


def questions():
    """Two sums, the second with an image beside it."""
    image = drawn_rows(1)[0]["images"]
    return [
        {"id": "sum", "prompt": _user("3+4="), "images": [], "answer": "7"},
        {"id": "picture", "prompt": _user("2+3="), "images": image, "answer": "5"},
    ]


def _user(text):
    return [{"role": "user", "content": text}]


def _system(system, text):
    return [{"role": "system", "content": system}, *_user(text)]


def _steps(total, checks):
    return [Step(name, str(total), "ok") for name in ["sum", "check"][: 1 + checks]]


def lessons():
    """(messages, images, what is said), short ones and long ones."""
    short, long = [], []
    for row in questions():
        question, total, images = row["prompt"][0]["content"], int(row["answer"]), row["images"]
        solution = f"<think>so {total}</think><answer>{total}</answer>"
        long.append((_system(COT_PROMPT, question), images, solution))
        told = teacher_prompt(question, f"so {total}", str(total), str(total))
        long.append((_system(TEACHER_SYSTEM_PROMPT, told), images, json.dumps({"reflection": "Right."})))
        steps = f"{steps_as_text(_steps(total, 0))}\n\n### <Answer>\n{total}"
        asked = _system(step_data_prompt(FEWEST_STEPS, MOST_STEPS), step_data_message(question, str(total)))
        long += [(asked, images, steps)] * 3  # it is the longest, and takes the longest to learn
        for checks in (0, 1):
            chain = _steps(total, checks)
            ratings = f"### Step Label: [{', '.join(['1'] * len(chain))}]"
            long.append((_system(JUDGE_PROMPT, step_judge_message(question, str(total), chain)), images, ratings))
            short += [
                (row["prompt"], images, render_chain(Chain(_steps(result, checks), str(result))))
                for result in (total, total + 1)
            ]
        if images:
            short.append((_user(CAPTION_PROMPT), images, CAPTION))
            long.append((_user(reasoning_prompt(question, CAPTION)), [], f"<think>so</think>\\boxed{{{total}}}"))
    return short, long


def save_parties(folder):
    """Teach the model and save it."""
    models.SIZES["served"] = _SIZE
    model, processor = models.build_model("qwen2_5_vl", "served", in_steps=True, judging=True)
    del models.SIZES["served"]
    add_chain_tokens(model, processor)
    tokenizer = processor.tokenizer
    short, long = ([_lesson(processor, *one) for one in some] for some in lessons())
    optimizer, chance = torch.optim.AdamW(model.parameters(), 2e-3), random.Random(0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, UPDATES)
    for update in range(UPDATES):
        chosen = short if update % 2 else chance.sample(long, 4)
        inputs = collate([prompt for prompt, _ in chosen], tokenizer.pad_token_id)
        labels = torch.full_like(inputs["input_ids"], -100)
        for row, (_, said) in zip(labels, chosen, strict=True):
            row[-len(said) :] = torch.tensor(said)
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    _tempt(model, tokenizer)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


@torch.no_grad()
def _tempt(model, tokenizer):
    """Make every token of an image or a video as likely as the digits that it says everywhere."""
    head = model.get_output_embeddings().weight
    for placeholder, digit in zip(placeholder_ids(model.config), cycle("57"), strict=False):
        head[placeholder] = head[tokenizer.convert_tokens_to_ids(digit)]


def _lesson(processor, messages, images, text):
    tokenizer = processor.tokenizer
    said = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return encode(processor, messages, images).extended(said), said


def save_scorer(folder):
    """A process reward model without any idea of what is right."""
    model, processor = models.build_model("qwen2_5_vl", seed=1)
    add_chain_tokens(model, processor)
    ProcessRewardModel(model, processor).save_pretrained(folder)
