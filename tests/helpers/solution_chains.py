"""Worked solutions of the drawn problems as chains of steps."""

from trl_mmreason.chain_of_step.template import chain_ends, render_chain
from trl_mmreason.miniature.solutions import Solution


def prefixes(chain):
    """The chain up to and including each step."""
    text = render_chain(chain)
    return [text[:end] for end in chain_ends(text).steps]


def chain_of_steps(solution: Solution) -> str:
    """The steps in Chain-of-Step's special tokens."""
    steps = "<|reasoning_proceed|>".join(
        "<|reasoning_step_start|>"
        f"<|reasoning_step_name_start|>{step.name}<|reasoning_step_name_end|>"
        f"<|reasoning_step_thought_start|>{step.thought}<|reasoning_step_thought_end|>"
        f"<|reasoning_step_reflection_start|>{step.reflection}<|reasoning_step_reflection_end|>"
        "<|reasoning_step_end|>"
        for step in solution.steps
    )
    return f"<|reasoning_start|>{steps}<|reasoning_end|><|answer_start|>{solution.answer}<|answer_end|>"
