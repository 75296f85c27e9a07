"""Make SOPHIA's off-policy data: captions of a policy, trajectories of a reasoner.

Let a policy describe each image without its question, and a text-only reasoner answer from the descriptions; reward
the shortest right trajectory from a good description (SOPHIA, sections 4.1 and 4.2). Another selection needs no new
samples.

example: mmreason trajectories data/train.jsonl data/trajectories.parquet --model OpenGVLab/InternVL3-8B-hf
--reasoner REASONER --reasoner-server http://127.0.0.1:8000/v1
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import Any

from ...data.folders import check_model_path
from ...scripts.refusals import WrongArgument
from . import command_options as options
from .parsers import count, share

_RULES = ("sophia", "random", "without_caption_reward", "without_shortest")
_SELECTION = ("captions", "trajectories", "threshold", "keep", "rule", "unselected")
_TOKENS = 32768  # the paper's limit
_SHOWN = 10  # categories


def add(command: ArgumentParser) -> None:
    options.add_arguments(command)
    options.add_party(command, "reasoner", required=True)
    options.add_party(command, "hard_reasoner", "model that answers the questions of --hard-category instead")
    add, hard = command.add_argument, "value of the column category of hard questions; may be repeated"
    add("--hard-category", action="append", help=hard)
    add("--openai-only", action="store_true", help="send reasoners only OpenAI's own fields")
    add("--captions", type=count, default=8, help="captions sampled for each question")
    add("--trajectories", type=count, default=8, help="trajectories sampled for each caption")
    options.add_own_sampling(command, "caption", "a caption", max_new_tokens=_TOKENS)
    threshold = "share of right trajectories that a caption has to exceed"
    add("--threshold", type=share, default=0.75, help=threshold)
    add("--keep", type=count, default=1, help="trajectories kept for each question")
    rule = "which trajectories are kept; all rules but sophia are ablations"
    add("--rule", choices=_RULES, default="sophia", help=rule)
    add("--unselected", action="store_true", help="write the other trajectories too, with reward 0")
    add("--logprobs", action="store_true", help="write the reasoner's log-probabilities too")
    add("--tokenizer", help="path or Hub id of a tokenizer that counts tokens if a server does not")
    options.add_text(command, "--caption-prompt", "prompt for captions; by default the paper's")
    thinking = "system message of rows that think in tags, or null; by default the paper's"
    options.add_text(command, "--thinking-prompt", thinking)
    command.set_defaults(max_new_tokens=_TOKENS)


def run(arguments: Namespace) -> None:
    if bool(arguments.hard_reasoner) != bool(arguments.hard_category):
        raise WrongArgument("--hard-reasoner and --hard-category must be given together; got only one of them")
    fields, hard = selection_settings(arguments), frozenset(arguments.hard_category or ())
    count_tokens = None
    if arguments.tokenizer:
        from transformers import AutoTokenizer

        from ...compat.chat_template import token_counter

        check_model_path(arguments.tokenizer)
        count_tokens = token_counter(AutoTokenizer.from_pretrained(arguments.tokenizer))

    def sample(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...sophia.sampling import OffPolicySampling, make_off_policy_data

        categories = set(rows["category"][:])
        if hard and arguments.share is None and not hard & categories:
            known = ", ".join(map(repr, sorted(categories - {None})[:_SHOWN])) or "none"
            raise WrongArgument(f"--hard-category: no question has one of {sorted(hard)}; categories are {known}")
        params = replace(settings.pop("sampling_params"), logprobs=arguments.logprobs)
        return make_off_policy_data(
            rows,
            options.load_engine(arguments),
            options.load_engine(arguments, "reasoner"),
            store,
            OffPolicySampling(**fields, sampling_params=params, seed=settings.pop("seed")),
            hard_reasoner=options.load_engine(arguments, "hard_reasoner"),
            is_hard=(lambda row: row["category"] in hard) if hard else None,
            count_tokens=count_tokens,
            **settings,
        )

    options.run_pipeline(arguments, sample, "train sophia --config sophia/your_model.yaml --trajectory_dataset")


def selection_settings(arguments: Namespace) -> dict[str, Any]:
    """Fields of `OffPolicySampling` that the options decide."""
    return {
        "caption_sampling_params": options.own_sampling(arguments, "caption"),
        **{name: getattr(arguments, name) for name in _SELECTION},
        **options.texts(arguments, "thinking_prompt"),
        **{name: text for name, text in options.texts(arguments, "caption_prompt").items() if text is not None},
    }
