"""Trainers that are measured: GRPO and AdaPO, which stay where they are, and answers drawn beforehand for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PrinterCallback
from trl import GRPOTrainer
from workload import GROUP

from trl_mmreason import AdaPOTrainer
from trl_mmreason.timing import device_clock

REFERENCE: dict[str, Any] = {"beta": 0.001, "use_bias_correction_kl": False}  # the KL term as AdaPO has it
ALL_ROWS: dict[str, Any] = {"filter_zero_advantage": False, "filter_truncated": False}  # carry loss

Answers = list[list[int]]
"""Token ids of one turn, one list a row."""


@dataclass(frozen=True)
class Call:
    """One call of generation: its arguments, and the seconds it took."""

    arguments: tuple
    seconds: float


class TimedGRPO(GRPOTrainer):
    """Takes the time of generation and of scoring.

    Attributes:
        replayed: the answers of each turn, which then stand for sampled ones; `None` samples.
        calls: the calls of generation in the last batch.
        scoring_seconds: what `_generate_and_score_completions` took for it.
        shapes: of its prompts and completions.
    """

    replayed: list[Answers] | None = None

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: Any, has_tool_images: Any = False
    ) -> tuple[Answers, None]:
        arguments = (prompt_ids, images, multimodal_fields, num_generations, has_tool_images)
        start = device_clock()
        if self.replayed is None:
            # Sampled to the full length, so the token that ends a turn has to take the place of the last one.
            answers = [[*ids[:-1], self._tokenizer.eos_token_id] for ids in self.sample(*arguments)]
        else:
            answers = [list(ids) for ids in self.replayed[len(self.calls)]]
        self.calls.append(Call(arguments, device_clock() - start))
        return answers, None

    def sample(self, *arguments: Any) -> Answers:
        """TRL's generation, checked to have gone to the full length."""
        answers = super()._generate_single_turn(*arguments)[0]
        expected = self.generation_config.max_new_tokens
        if {len(ids) for ids in answers} != {expected}:
            raise RuntimeError(f"Expected {expected} tokens of every answer, got {[len(ids) for ids in answers]}.")
        return answers

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls: list[Call] = []
        start = device_clock()
        batch = super()._generate_and_score_completions(inputs)
        self.scoring_seconds = device_clock() - start
        self.shapes = [tuple(batch[name].shape) for name in ("prompt_ids", "completion_ids")]
        return batch


class TimedAdaPO(TimedGRPO, AdaPOTrainer):
    """`TimedGRPO` around AdaPO."""


def settings(rows: int, batch: int, **others: Any) -> dict[str, Any]:
    """Settings of a trainer that is measured: it stays where it is, keeps no state and writes nothing.

    Args:
        rows: trajectories of a rollout batch.
        batch: those of a micro-batch.
        others: settings besides.
    """
    on_gpu = torch.cuda.is_available()
    return {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": rows // batch,
        "num_generations": GROUP,
        "max_steps": 1,
        "learning_rate": 0.0,
        "optim": "sgd",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        **others,
    }


def prepare(trainer: GRPOTrainer) -> None:
    """Take the one step of `settings`, which prepares the model as in real training, and print nothing of it."""
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def train_on(trainer: GRPOTrainer, rows: list[dict[str, Any]]) -> None:
    """Train on a rollout batch: from sampling, or from replayed answers, to the gradients of all its micro-batches."""
    trainer._buffered_inputs = None
    steps = trainer.args.steps_per_generation
    for step in range(steps):
        with nullcontext() if step == steps - 1 else trainer.accelerator.no_sync(trainer.model_wrapped):
            trainer.training_step(trainer.model_wrapped, [dict(row) for row in rows], None)  # a rollout adds columns
    trainer.model_wrapped.zero_grad()


def draw_answers(trainer: GRPOTrainer, tokens: Sequence[int], endings: Sequence[str] | None = None) -> Answers:
    """Answers of so many random tokens, each ended by the end-of-turn token.

    Args:
        tokens: of each answer.
        endings: what stands before that token, one an answer.
    """
    tokenizer, rng = trainer._tokenizer, random.Random(0)
    words = [token for token in range(len(tokenizer)) if token not in tokenizer.added_tokens_decoder]
    ends = [tokenizer(ending)["input_ids"] for ending in endings] if endings else [[]] * len(tokens)
    return [
        [*rng.choices(words, k=length - len(end) - 1), *end, tokenizer.eos_token_id]
        for length, end in zip(tokens, ends, strict=True)
    ]


def draw_two_turns(trainer: GRPOTrainer, whole: Sequence[int]) -> list[Answers]:
    """First and second answers for AdaPO, which have so many tokens with the user's turn between them."""
    between = len(trainer._followup_ids)
    firsts = [(total - between) // 2 for total in whole]
    seconds = [total - between - first for total, first in zip(whole, firsts, strict=True)]
    return [draw_answers(trainer, firsts), draw_answers(trainer, seconds)]
