"""The cold start of SRPO (section 3.1.2): supervised training on a solution, a reflection on it, and a better one."""

from __future__ import annotations

from ..sft import CompletionSFTTrainer
from .config import ReflectionSFTConfig
from .paper import PAPER
from .response import parse_reflection_response
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

    @staticmethod
    def problem_of(completion: str) -> str | None:
        response = parse_reflection_response(completion)
        unthought = response.second_think is None and response.second_answer is not None
        if unthought and response.reflection_span is not None:
            behind = response.reflection_span[1]
            response = parse_reflection_response(f"{completion[:behind]}<think>…</think>{completion[behind:]}")
        return response.problem
