"""The reasoning patterns that Chain-of-Step is compared with (arXiv:2509.19003, section 4.4, Table 4).

    chain_of_step   the chain: steps with name, thought and reflection, and the answer, in the template's tokens
    direct_prompt   asked to think step by step: the thoughts of all steps as one text, and the answer after them
    no_reason       the answer alone

All three learn from the same questions and chains. As the last two have no steps that could be scored, the paper trains
them on by outcome: `IterativeDPOTrainer` with `chains=False` and no process reward model. They are evaluated as any
policy that answers in plain text, by the protocol `direct`, on questions that `in_pattern` has rewritten likewise.
"""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from ..chain_of_step.config import ChainOfStepSFTConfig
from ..chain_of_step.recipe import PAPER
from ..chain_of_step.template import Chain, ChainError, parse_chain
from ..grading import extract_answer
from ..messages import completion_text, text_messages
from .sft import PlainSFTTrainer

PATTERNS = CHAIN_OF_STEP, DIRECT_PROMPT, NO_REASON = "chain_of_step", "direct_prompt", "no_reason"

STEP_BY_STEP = "Let's think step by step."
"""What stands below a question of `direct_prompt`: the words of Kojima et al. (2022), to whom the paper refers."""


class PatternSFTTrainer(PlainSFTTrainer):
    """Trains a policy on rows that `in_pattern` made without chains, with the recipe of `ChainOfStepSFTTrainer`."""

    _tag_names = ["trl", "trl-mmreason", "chain-of-step", "sft"]
    _name = "SFT in another reasoning pattern than Chain-of-Step's"
    _paper = PAPER
    _config = ChainOfStepSFTConfig
    _suffix = "pattern"


def in_pattern(rows: Dataset, pattern: str) -> Dataset:
    """Rewrite questions, and their chains if they have any, in a reasoning pattern.

    Args:
        rows: rows with `prompt`, and optionally `completion`, a whole chain; other columns stay as they are.
        pattern: one of `PATTERNS`. `chain_of_step` returns the rows as they came.

    Raises:
        ValueError: an unknown pattern, or a completion that is no whole chain; names the row.
    """
    if pattern not in PATTERNS:
        raise ValueError(f"in_pattern: unknown pattern {pattern!r}; expected one of {', '.join(PATTERNS)}.")
    if pattern == CHAIN_OF_STEP:
        return rows
    if pattern == DIRECT_PROMPT:
        rows = rows.map(lambda prompt: {"prompt": _instructed(prompt)}, input_columns="prompt")
    if "completion" not in rows.column_names:
        return rows
    write = one_text if pattern == DIRECT_PROMPT else _answer

    def rewrite(completion: Any, number: int) -> dict[str, str]:
        return {"completion": write(_whole_chain(completion, f"row {number}"))}

    return rows.map(rewrite, input_columns="completion", with_indices=True)


def one_text(chain: Chain) -> str:
    """Concatenate the thoughts of a whole chain, followed by its answer in a form that the grader reads."""
    thoughts = "\n".join(step.thought for step in chain.steps)
    answer = _answer(chain)
    return f"{thoughts}\n<answer>{extract_answer(answer) or answer}</answer>"


def _answer(chain: Chain) -> str:
    return chain.answer or ""


def _whole_chain(completion: Any, where: str) -> Chain:
    try:
        chain = parse_chain(completion_text(completion, where))
    except ChainError as error:
        raise ValueError(f"in_pattern: the completion of {where} is not a chain: {error}.") from error
    if chain.answer is None:
        raise ValueError(f"in_pattern: the chain of {where} has no answer, expected a whole one.")
    return chain


def _instructed(prompt: Any) -> Any:
    """The prompt with the instruction appended to its last message."""
    if isinstance(prompt, str):
        return f"{prompt}\n{STEP_BY_STEP}"
    *before, last = prompt
    return [*before, {**last, "content": f"{text_messages(prompt)[-1]['content']}\n{STEP_BY_STEP}"}]
