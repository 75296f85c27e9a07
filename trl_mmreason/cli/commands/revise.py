"""Make STaR's data: a policy's own right revisions of its wrong answers.

Let a policy answer each question and revise its answer, and keep the first right revision of a wrong answer as a row of
supervised training (AdaPO, appendix B).

example: mmreason revise data/train.jsonl data/revisions.parquet --model Qwen/Qwen2.5-VL-7B-Instruct
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from . import command_options as options
from .parsers import count


def add(command: ArgumentParser) -> None:
    options.add_arguments(command)
    options.add_openai_only(command)
    command.add_argument("--revisions", type=count, default=2, help="revisions of each answer")
    command.add_argument("--n", type=count, default=1, help="trajectories sampled for each question")
    options.add_text(command, "--followup", "user message after every answer but the last; AdaPO's by default")
    options.add_system_prompt(command)


def run(arguments: Namespace) -> None:
    def revise(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...adapo.prompts import EVALUATION_PROMPT
        from ...baselines.star import make_revisions

        policy = options.load_engine(arguments)
        followup = options.text(arguments, "followup", EVALUATION_PROMPT)
        return make_revisions(rows, policy, store, followup=followup, revisions=arguments.revisions, **settings)

    options.run_pipeline(
        arguments,
        revise,
        "train sft --config sft/qwen2_5_vl_7b_star.yaml --dataset_name",
        system_prompt=options.system_prompt(arguments),
    )
