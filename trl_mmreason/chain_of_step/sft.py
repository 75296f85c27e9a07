"""Supervised training on chains of steps (arXiv:2509.19003, sections 3.1 and 4.1)."""

from __future__ import annotations

from typing import Any

from ..training.sft import CompletionSFTTrainer
from .config import ChainOfStepSFTConfig
from .recipe import PAPER
from .template import EXAMPLE, SPECIAL_TOKENS, ChainError, parse_chain
from .tokens import add_chain_tokens, add_to_tokenizer


class ChainOfStepSFTTrainer(CompletionSFTTrainer):
    """Trains a policy to reason in steps, on whole chains, which `mmreason steps` makes; see `CompletionSFTTrainer`.

    A model that lacks the template's tokens gets them, with rows that start at the mean of their definitions. With a
    `peft_config` it needs them beforehand: `add_chain_tokens(model, processor)`, save both, and train an adapter of
    that with `LoraConfig(trainable_token_indices=trainable_token_indices(model))`.
    """

    _tag_names = ["trl", "trl-mmreason", "chain-of-step", "sft"]
    _name = "Chain-of-Step SFT"
    _paper = PAPER
    _config = ChainOfStepSFTConfig
    _suffix = "chain-of-step"
    _format = EXAMPLE

    args: ChainOfStepSFTConfig

    def check_tokenizer(self, processing_class: Any) -> None:
        """Add the tokens before TRL's constructor encodes the rows of a text-only policy."""
        self._are_new = add_to_tokenizer(processing_class) == {*SPECIAL_TOKENS}

    def add_tokens(self, policy: Any) -> None:
        add_chain_tokens(policy, self.processing_class, already_trained=False if self._are_new else None)

    @staticmethod
    def problem_of(completion: str) -> str | None:
        try:
            chain = parse_chain(completion)
        except ChainError as error:
            return str(error)
        return "the chain has no answer" if chain.answer is None else None
