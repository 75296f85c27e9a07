"""A tiny text-only language model that reasons about captions, trained on the rule of `miniature/reasoner.py`.

The example on the miniature asks it for its trajectories.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from ..generation.engine import Failure, Request, SamplingParams, derive_seed
from ..miniature.captions import NOT_SHOWN, SECOND_LOOK, caption, question_of, readings, write_trajectory
from ..miniature.corpus import corpus
from ..miniature.models import CHATML, CHATML_TOKENS, SIZES, drawn_weights, text_config
from ..miniature.reasoner import REASON, RuleReasoner, ask_miniature
from ..miniature.tasks import Problem, make_problems
from ..miniature.tokenizer import train_tokenizer
from ..scripts.cold_start import teach

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LESSONS = 6400
_TARGET_ACCURACY = 0.97


def reasoner_path(output_dir: str | Path, category: str, *, seed: int = 0) -> Path:
    """The checkpoint of a tiny text-only reasoner, which is trained on `RuleReasoner` unless it exists.

    It learns right captions of the category, held-out contents too: it may know every sum, as it sees none. Greedily it
    reasons mostly rightly. Sampled at temperature 1 it looks twice about as often as it was taught to, and errs more
    often: about one sum in four is wrong where the rule slipped in one of ten. It is asked in the words of `REASON`.

    Raises:
        RuntimeError: it did not learn to reason.
    """
    folder = Path(output_dir) / f"reasoner-{category}-1-slips0.1-looks0.3-seed{seed}"  # level, and the rule's rates
    if folder.exists():
        return folder
    problems = [p for split in ("train", "heldout") for p in make_problems([category], 800, split=split)]
    tokenizer = _tokenizer(problems)
    return teach(
        _build(tokenizer, seed).to(PartialState().device),
        tokenizer,
        _lessons(problems, RuleReasoner(problems), seed),
        folder,
        measure=partial(_accuracy, tokenizer=tokenizer, problems=problems[::16]),
        target_accuracy=_TARGET_ACCURACY,
        measure_every_steps=20,
        seed=seed,
    )


def _tokenizer(problems: Sequence[Problem]) -> PreTrainedTokenizerFast:
    spoken = [REASON, SECOND_LOOK, NOT_SHOWN] * 30
    captions = [caption(problem) for problem in problems[:100]]
    tokenizer = train_tokenizer(
        chain(corpus(in_steps=True), spoken, captions), special_tokens=CHATML_TOKENS, named_tokens=CHATML
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _build(tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    # Twice as wide between the layers as a policy: holds the sums, and learns them in fewer steps.
    config = Qwen2Config(**{**text_config(SIZES["demo"], tokenizer), "intermediate_size": 384})
    return drawn_weights(lambda: Qwen2ForCausalLM(config), tokenizer, seed)


def _messages(problem: Problem, description: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": ask_miniature(problem.prompt[0]["content"], description)}]


def _lessons(problems: Sequence[Problem], rule: RuleReasoner, seed: int) -> Dataset:
    """The rule's trajectories on right captions; every 16th caption lacks a sentence."""
    rng = random.Random(seed)
    rows = []
    for number in range(_LESSONS):
        problem = problems[number % len(problems)]
        sentences = readings(problem)
        if number % 16 == 0:
            sentences.pop(rng.randrange(len(sentences)))
        prompt = _messages(problem, " ".join(sentences))
        (drawn,) = rule.sample([Request(prompt, seed=derive_seed(seed, number))], SamplingParams())
        assert not isinstance(drawn, Failure)  # these are its own problems
        rows.append({"prompt": prompt, "completion": [{"role": "assistant", "content": drawn[0].text}]})
    rng.shuffle(rows)
    return Dataset.from_list(rows)


def _accuracy(model: PreTrainedModel, *, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem]) -> float:
    """The share of right captions with a right greedy answer."""
    model.eval()
    prompts = [_messages(problem, caption(problem)) for problem in problems]
    inputs = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=96, do_sample=False)
    written = tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    expected = [write_trajectory(question_of(problem), caption(problem)) for problem in problems]
    right = [_said(text) == _said(rule) for text, rule in zip(written, expected, strict=True)]
    return sum(right) / len(right)


def _said(trajectory: str) -> str:
    return trajectory.rpartition("</think>")[2]
