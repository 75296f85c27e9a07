"""`mmreason annotate`: the data of a process reward model."""

from __future__ import annotations

import argparse
from typing import Any

from . import options, parsers


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "annotate",
        help="make a process reward model's data: chains of a policy, labelled step by step",
        description="Let a policy answer each question in chains of steps, and label every step by the outcomes of "
        "continuations after it, or by a judge who knows the answer (Chain-of-Step, section 3.3).",
        epilog="example: mmreason annotate data/train.jsonl data/labels.parquet --model runs/sft/model "
        "--by monte-carlo",
    )
    options.add_arguments(command)
    command.add_argument("--by", choices=("monte-carlo", "judge"), required=True, help="source of the labels")
    command.add_argument("--paths", type=parsers.count, default=16, help="chains sampled for each question")
    command.add_argument(
        "--n", type=parsers.count, default=16, help="--by monte-carlo: continuations sampled after each step"
    )
    command.add_argument(
        "--labels",
        choices=("soft", "hard"),
        default="soft",
        help="--by monte-carlo: soft, the share of right continuations; hard, 1 if any is right",
    )
    options.add_party(command, "judge", "path or Hub id of the judge; with --judge-server its name there")
    command.add_argument("--openai-only", action="store_true", help="send the judge only OpenAI's own fields")
    command.add_argument(
        "--attempts", type=parsers.count, default=3, help="attempts to get a parsable reply from the judge"
    )
    options.add_own_sampling(command, "judge", "the judge's reply", max_new_tokens=4096)
    options.add_system_prompt(command, "null for none. The judge does not see it")
    command.set_defaults(run=_annotate, top_p=0.95)  # the paper's value


def _annotate(arguments: argparse.Namespace) -> None:
    judged = arguments.by == "judge"
    if judged != bool(arguments.judge):
        raise SystemExit(
            "mmreason annotate: --by judge needs --judge, the model"
            if judged
            else "mmreason annotate: --judge has no effect with --by monte-carlo; leave one of them out"
        )
    options.check_parties("annotate", arguments, "judge")
    system_prompt = options.system_prompt("annotate", arguments.system_prompt)

    def annotate(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...chain_of_step.data import PATHS, annotate_by_judge, annotate_by_monte_carlo, chains_of
        from ...chain_of_step.protocols import sample_paths

        store.open_stage(options.QUESTIONS, {"system_prompt": system_prompt}, results=PATHS)
        policy, judge = options.load_engine("annotate", arguments), options.load_engine("annotate", arguments, "judge")
        paths = sample_paths(rows, policy, store, PATHS, **{**settings, "n": arguments.paths})
        chains = chains_of(rows, paths)
        if judge is None:
            annotated = annotate_by_monte_carlo(chains.rows, policy, store, **settings, labels=arguments.labels)
        else:
            asking = {name: settings[name] for name in ("seed", "batch_size", "retry_failed")}
            asking |= {"sampling_params": options.own_sampling(arguments, "judge"), "attempts": arguments.attempts}
            annotated = annotate_by_judge(chains.rows, judge, store, **asking)
        return annotated._replace(dropped={**chains.dropped, **annotated.dropped})

    options.run_pipeline("annotate", arguments, annotate, system_prompt=system_prompt)
