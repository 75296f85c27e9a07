"""`mmreason prefilter`: the questions that have something to teach a policy."""

from __future__ import annotations

import argparse
from typing import Any

from . import options, parsers

_BOUNDS: dict[str, Any] = {"low": 0.1, "high": 0.9}


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "prefilter",
        help="keep the questions that are neither too easy nor too hard for a policy",
        description="Let a policy answer each question several times and keep those that are neither too easy nor too "
        "hard for it.",
        epilog="example: mmreason prefilter data/train.jsonl data/kept.parquet --model Qwen/Qwen2.5-VL-3B-Instruct "
        "--n 8",
    )
    options.add_arguments(command)
    command.add_argument(
        "--rule",
        choices=("adapo", "srpo", "share"),
        default="adapo",
        help="adapo: two turns each, drop a question if all are right twice or all wrong twice; share: one turn each, "
        "keep it if the share of right answers lies between --low and --high; srpo: the same, of the first answers of "
        "responses in SRPO's format",
    )
    command.add_argument(
        "--low",
        type=parsers.share,
        help="--rule share, srpo: smallest share of right answers that is kept; 0.1 (default, SRPO), 0.4 in SOPHIA",
    )
    command.add_argument(
        "--high",
        type=parsers.share,
        help="--rule share, srpo: largest share of right answers that is kept; 0.9 (default, SRPO), 0.6 in SOPHIA",
    )
    command.add_argument("--n", type=parsers.count, default=8, help="answers, or pairs of answers, to each question")
    options.add_system_prompt(command, "null for none; --rule srpo: the paper's by default")
    command.set_defaults(run=_prefilter)


def _prefilter(arguments: argparse.Namespace) -> None:
    bounds: dict[str, Any] = {
        name: value for name in ("low", "high") if (value := getattr(arguments, name)) is not None
    }
    if bounds and arguments.rule == "adapo":
        raise SystemExit(f"mmreason prefilter: --{next(iter(bounds))} belongs to --rule share or srpo; add one of them")
    bounds = {**_BOUNDS, **bounds}
    if bounds["low"] > bounds["high"]:
        raise SystemExit(f"mmreason prefilter: got --low {bounds['low']} above --high {bounds['high']}")
    system_prompt = options.system_prompt("prefilter", arguments.system_prompt)

    def prefilter(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        policy = options.load_engine("prefilter", arguments)
        return _rule(arguments, system_prompt, bounds)(rows, policy, store, **settings)

    # SRPO's trainer puts its prompt before every question itself, so the rows have to stay without it.
    in_rows = None if arguments.rule == "srpo" else system_prompt
    options.run_pipeline("prefilter", arguments, prefilter, system_prompt=in_rows)


def _rule(arguments: argparse.Namespace, system_prompt: str | None, bounds: dict[str, Any]) -> Any:
    from functools import partial

    if arguments.rule == "adapo":
        from ...adapo.prefilter import prefilter

        return prefilter
    from ...jobs.difficulty import difficulty_filter

    if arguments.rule == "share":
        return partial(difficulty_filter, **bounds)
    from ...srpo.prompts import REFLECTION_PROMPT
    from ...srpo.protocols import FirstSolution

    prompt = REFLECTION_PROMPT if arguments.system_prompt is None else system_prompt
    return partial(difficulty_filter, **bounds, system_prompt=prompt, protocol=FirstSolution())
