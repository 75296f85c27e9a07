"""The cold start of SRPO (section 3.1.2): supervised training on a solution, a reflection on it, and a better one."""

from __future__ import annotations

from ..training.sft import CompletionSFTTrainer
from .config import ReflectionSFTConfig
from .recipe import PAPER
from .response import problem_but_second_think
from .rewards import check_tags_survive


class ReflectionSFTTrainer(CompletionSFTTrainer):
    """Trains a policy on completions in SRPO's format, which `mmreason reflect` makes; see `CompletionSFTTrainer`.

    The second solution may do without its `<think>`, as in the paper's template.
    """

    _tag_names = ["trl", "trl-mmreason", "srpo", "sft"]
    _name = "SRPO cold start"
    _paper = PAPER
    _config = ReflectionSFTConfig
    _suffix = "reflection"
    _format = "<think>…</think> <answer>…</answer> <reflection>…</reflection> <think>…</think> <answer>…</answer>"

    args: ReflectionSFTConfig
    check_tokenizer = staticmethod(check_tags_survive)
    problem_of = staticmethod(problem_but_second_think)
