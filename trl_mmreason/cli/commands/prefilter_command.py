"""Keep the questions that are neither too easy nor too hard for a policy.

Let a policy answer each question several times and keep those that are neither too easy nor too hard for it.

example: mmreason prefilter data/train.jsonl data/kept.parquet --model Qwen/Qwen2.5-VL-3B-Instruct --n 8
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ...scripts.refusals import WrongArgument
from . import command_options as options
from . import parsers

_BOUNDS: dict[str, Any] = {"low": 0.1, "high": 0.9}


def add(command: ArgumentParser) -> None:
    options.add_arguments(command)
    options.add_openai_only(command)
    rule = (
        "adapo: two turns each, drop a question if all are right twice or all wrong twice; share: one turn each, "
        "keep it if the share of right answers lies between --low and --high; srpo: the same, of the first answers of "
        "responses in SRPO's format"
    )
    command.add_argument("--rule", choices=("adapo", "srpo", "share"), default="adapo", help=rule)
    low = "--rule share, srpo: smallest share of right answers that is kept; 0.1 (default, SRPO), 0.4 in SOPHIA"
    high = "--rule share, srpo: largest share of right answers that is kept; 0.9 (default, SRPO), 0.6 in SOPHIA"
    command.add_argument("--low", type=parsers.share, help=low)
    command.add_argument("--high", type=parsers.share, help=high)
    command.add_argument("--n", type=parsers.count, default=8, help="answers, or pairs of answers, to each question")
    options.add_system_prompt(command, "null for none; --rule srpo: the paper's by default")


def run(arguments: Namespace) -> None:
    bounds = {name: value for name in _BOUNDS if (value := getattr(arguments, name)) is not None}
    if bounds and arguments.rule == "adapo":
        raise WrongArgument(f"--{next(iter(bounds))} belongs to --rule share or srpo; add one of them")
    bounds = {**_BOUNDS, **bounds}
    if bounds["low"] > bounds["high"]:
        raise WrongArgument(f"got --low {bounds['low']} above --high {bounds['high']}")
    is_srpo = arguments.rule == "srpo"
    system_prompt = options.system_prompt(arguments, is_srpo=is_srpo)

    def prefilter(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...adapo.prefilter import prefilter
        from ...jobs.difficulty import difficulty_filter
        from ...srpo.protocols import FirstSolution

        policy = options.load_engine(arguments)
        if arguments.rule == "adapo":
            return prefilter(rows, policy, store, **settings)
        if is_srpo:
            settings |= {"system_prompt": system_prompt, "protocol": FirstSolution()}
        return difficulty_filter(rows, policy, store, **bounds, **settings)

    # SRPO's trainer puts its prompt before every question itself, so the rows have to stay without it.
    options.run_pipeline(
        arguments,
        prefilter,
        f"new {'srpo' if is_srpo else 'adapo'} --model MODEL --data",
        system_prompt=None if is_srpo else system_prompt,
    )
