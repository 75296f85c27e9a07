"""Text-only reasoners: one that follows a rule, and a tiny language model trained on it.

SOPHIA (arXiv:2507.16814) answers a question from a caption with such a reasoner. Both kinds here err and ramble, the
rule at known rates, so that a pipeline has something to select from.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from ..generation.engine import Failure, Request, Sample, SamplingParams, derive_seed
from .captions import NOT_SHOWN, SECOND_LOOK, caption, question_of, readings, write_trajectory
from .cold_start import teach
from .corpus import corpus
from .models import CHATML
from .tasks import Problem, make_problems
from .tokenizer import train_tokenizer

REASON = "Question: {question}\nVisual information:\n{caption}\n\nYour response:"
"""A question and a caption, in the words at the end of the prompt of Fig. A3."""

_ASKED = re.compile(
    r".*Question: (?P<question>.*?)\nVisual information:\n(?P<caption>.*)\n\nYour response:\s*", re.DOTALL
)


class RuleReasoner:
    """An `Engine` that reasons about captions by `write_trajectory`, with exactly known error rates.

    It reads the last question and caption of the last message, in the words of `REASON`, whatever stands before them.
    Of a problem it knows what the question says; the facts are those of the caption, right or wrong. What it writes
    depends on question, caption, the request's seed and the number of the sample, not on sampling parameters.

    Args:
        problems: those whose questions it understands.
        slip_rate: probability of a slip in the working.
        second_look_rate: probability of a second look at the image, whether it slips or not.
    """

    def __init__(self, problems: Iterable[Problem], *, slip_rate: float = 0.1, second_look_rate: float = 0.3) -> None:
        for name, rate in {"slip_rate": slip_rate, "second_look_rate": second_look_rate}.items():
            if not 0 <= rate <= 1:
                raise ValueError(f"RuleReasoner: got {name}={rate}, expected a probability from 0 to 1.")
        self._known = {problem.prompt[0]["content"]: question_of(problem) for problem in problems}
        self.slip_rate, self.second_look_rate = slip_rate, second_look_rate

    @property
    def settings(self) -> dict[str, Any]:
        """The reasoner's rates, and a fingerprint of its problems."""
        questions = hashlib.sha256(repr(sorted(self._known)).encode()).hexdigest()[:16]
        rates = {"slip_rate": self.slip_rate, "second_look_rate": self.second_look_rate}
        return {"kind": "rule reasoner", "questions": questions, **rates}

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Write n trajectories for each request, without tokens; a `Failure` for an unknown question."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> list[Sample] | Failure:
        match = _ASKED.fullmatch(request.messages[-1]["content"])
        if match is None:
            return Failure("the request does not end as SOPHIA's prompt for reasoners: question, caption, response")
        if match["question"] not in self._known:
            return Failure(f"the reasoner does not know the question {match['question'][:60]!r}")
        return [
            Sample(self._reason(match["question"], match["caption"], derive_seed(request.seed, k)), "stop")
            for k in range(request.n)
        ]

    def _reason(self, question: str, description: str, seed: int) -> str:
        rng = random.Random(repr((seed, question, description)))
        return write_trajectory(
            self._known[question],
            description,
            slip=rng.random() < self.slip_rate,
            second_look=rng.random() < self.second_look_rate,
            stream=str(rng.random()),
        )


_SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
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

    Args:
        output_dir: the checkpoint becomes a folder in it, whose name holds the other arguments.
        category: what questions it answers.
        seed: seed of its weights and lessons.

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
        chain(corpus(in_steps=True), spoken, captions), special_tokens=_SPECIAL_TOKENS, named_tokens=CHATML
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _build(tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=384,  # holds the sums, and learns them in fewer steps than half of it
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.1,  # as in `models`: a narrow model with the usual 0.02 learns slowly
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).float().eval()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


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


def ask_miniature(question: str, caption: str) -> str:
    """Write a tiny reasoner's prompt; the paper's would be a hundred times as long as the question."""
    return REASON.format(question=question, caption=caption)
