"""`mmreason trajectories`: SOPHIA's off-policy data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...data.folders import check_model_path
from ...scripts.system_prompts import parse_optional_text
from . import options, parsers

_RULES = ("sophia", "random", "without_caption_reward", "without_shortest")
_SELECTION = ("captions", "trajectories", "threshold", "keep", "rule", "unselected")
_TOKENS = 32768  # the paper's limit


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "trajectories",
        help="make SOPHIA's off-policy data: captions of a policy, trajectories of a reasoner",
        description="Let a policy describe each picture without its question, and a text-only reasoner answer from the "
        "descriptions; reward the shortest right trajectory from a good description (SOPHIA, sections 4.1 and 4.2). "
        "Another selection needs no new samples.",
        epilog="example: mmreason trajectories data/train.jsonl data/trajectories.parquet "
        "--model OpenGVLab/InternVL3-8B-hf --reasoner REASONER --reasoner-server http://127.0.0.1:8000/v1",
    )
    options.add_arguments(command)
    options.add_party(
        command, "reasoner", "path or Hub id of the reasoner; with --reasoner-server its name there", required=True
    )
    options.add_party(command, "hard_reasoner", "model that answers the questions of --hard-category instead")
    command.add_argument(
        "--hard-category", action="append", help="value of the column category of hard questions; may be repeated"
    )
    command.add_argument("--openai-only", action="store_true", help="send reasoners only OpenAI's own fields")
    command.add_argument("--captions", type=parsers.count, default=8, help="captions sampled for each question")
    command.add_argument("--trajectories", type=parsers.count, default=8, help="trajectories sampled for each caption")
    options.add_own_sampling(command, "caption", "a caption", max_new_tokens=_TOKENS)
    command.add_argument(
        "--threshold",
        type=parsers.share,
        default=0.75,
        help="share of right trajectories that a caption has to exceed",
    )
    command.add_argument("--keep", type=parsers.count, default=1, help="trajectories kept for each question")
    command.add_argument(
        "--rule",
        choices=_RULES,
        default="sophia",
        help="which trajectories are kept; all rules but sophia are ablations",
    )
    command.add_argument("--unselected", action="store_true", help="write the other trajectories too, with reward 0")
    command.add_argument("--logprobs", action="store_true", help="write the reasoner's log-probabilities too")
    command.add_argument("--tokenizer", help="path or Hub id of a tokenizer that counts tokens if a server does not")
    command.add_argument(
        "--caption-prompt",
        type=parsers.text_or_file,
        metavar="FILE|TEXT",
        help="prompt for captions; by default the paper's",
    )
    command.add_argument(
        "--thinking-prompt",
        type=parsers.text_or_file,
        metavar="FILE|TEXT",
        help="system message of rows that think in tags, or null; by default the paper's",
    )
    command.set_defaults(run=_trajectories, max_new_tokens=_TOKENS)


def _trajectories(arguments: argparse.Namespace) -> None:
    if bool(arguments.hard_reasoner) != bool(arguments.hard_category):
        raise SystemExit(
            "mmreason trajectories: --hard-reasoner and --hard-category must be given together; got only one of them"
        )
    options.check_parties("trajectories", arguments, "reasoner", "hard_reasoner")
    with options.exit_on("trajectories", ValueError, OSError):
        fields = _settings(arguments)
        count_tokens = _counter(arguments.tokenizer) if arguments.tokenizer else None

    def sample(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...sophia.sampling import OffPolicySampling, make_off_policy_data
        from ...sophia.selection import UnknownLengths

        hard = frozenset(arguments.hard_category or ())
        drawn = {
            "sampling_params": replace(settings.pop("sampling_params"), logprobs=arguments.logprobs),
            "seed": settings.pop("seed"),
        }
        with options.exit_on("trajectories", UnknownLengths):
            return make_off_policy_data(
                rows,
                options.load_engine("trajectories", arguments),
                options.load_engine("trajectories", arguments, "reasoner"),
                store,
                OffPolicySampling(**fields, **drawn),
                hard_reasoner=options.load_engine("trajectories", arguments, "hard_reasoner"),
                is_hard=(lambda row: row["category"] in hard) if hard else None,
                count_tokens=count_tokens,
                **settings,
            )

    options.run_pipeline("trajectories", arguments, sample)


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    prompts = {"caption_prompt": arguments.caption_prompt, "thinking_prompt": arguments.thinking_prompt}
    own_prompts = {name: prompt for name, prompt in prompts.items() if prompt is not None}
    if "thinking_prompt" in own_prompts:
        own_prompts["thinking_prompt"] = parse_optional_text("--thinking-prompt", own_prompts["thinking_prompt"])
    return {
        "caption_sampling_params": options.own_sampling(arguments, "caption"),
        **{name: getattr(arguments, name) for name in _SELECTION},
        **own_prompts,
    }


def _counter(tokenizer: str) -> Callable[[str], int]:
    from transformers import AutoTokenizer

    from ...compat.chat_template import token_counter

    check_model_path(tokenizer)
    return token_counter(AutoTokenizer.from_pretrained(tokenizer))
