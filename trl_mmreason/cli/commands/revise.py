"""`mmreason revise`: the data of one iteration of STaR."""

from __future__ import annotations

import argparse
from typing import Any

from . import options, parsers


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "revise",
        help="make STaR's data: a policy's own right revisions of its wrong answers",
        description="Let a policy answer each question and revise its answer, and keep the first right revision of a "
        "wrong answer as a row of supervised training (AdaPO, appendix B).",
        epilog="example: mmreason revise data/train.jsonl data/revisions.parquet --model Qwen/Qwen2.5-VL-7B-Instruct",
    )
    options.add_arguments(command)
    command.add_argument("--revisions", type=parsers.count, default=2, help="revisions of each answer")
    command.add_argument("--n", type=parsers.count, default=1, help="trajectories sampled for each question")
    command.add_argument(
        "--followup",
        type=parsers.text_or_file,
        metavar="FILE|TEXT",
        help="user message after every answer but the last; AdaPO's by default",
    )
    options.add_system_prompt(command)
    command.set_defaults(run=_revise)


def _revise(arguments: argparse.Namespace) -> None:
    def revise(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...adapo.prompts import EVALUATION_PROMPT
        from ...baselines.star import make_revisions

        policy = options.load_engine("revise", arguments)
        followup = arguments.followup or EVALUATION_PROMPT
        return make_revisions(rows, policy, store, followup=followup, revisions=arguments.revisions, **settings)

    system_prompt = options.system_prompt("revise", arguments.system_prompt)
    options.run_pipeline("revise", arguments, revise, system_prompt=system_prompt)
