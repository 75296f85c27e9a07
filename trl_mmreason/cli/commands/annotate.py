"""Make a process reward model's data: chains of a policy, labelled step by step.

Let a policy answer each question in chains of steps, and label every step by the outcomes of continuations after it, or
by a judge who knows the answer (Chain-of-Step, section 3.3).

example: mmreason annotate data/train.jsonl data/labels.parquet --model runs/sft/model --by monte-carlo
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ...scripts.refusals import WrongArgument
from . import command_options as options
from .parsers import count


def add(command: ArgumentParser) -> None:
    options.add_arguments(command)
    add = command.add_argument
    add("--by", choices=("monte-carlo", "judge"), required=True, help="source of the labels")
    add("--paths", type=count, default=16, help="chains sampled for each question")
    add("--n", type=count, default=16, help="--by monte-carlo: continuations sampled after each step")
    labels = "--by monte-carlo: soft, the share of right continuations; hard, 1 if any is right"
    add("--labels", choices=("soft", "hard"), default="soft", help=labels)
    options.add_party(command, "judge")
    add("--openai-only", action="store_true", help="send the judge only OpenAI's own fields")
    add("--attempts", type=count, default=3, help="attempts to get a parsable reply from the judge")
    options.add_own_sampling(command, "judge", "the judge's reply", max_new_tokens=4096)
    options.add_system_prompt(command, "null for none. The judge does not see it")
    command.set_defaults(top_p=0.95)  # the paper's value


def run(arguments: Namespace) -> None:
    if (arguments.by == "judge") and not arguments.judge:
        raise WrongArgument("--by judge needs --judge, the model")
    if (arguments.by != "judge") and arguments.judge:
        raise WrongArgument("--judge has no effect with --by monte-carlo; leave one of them out")
    system_prompt = options.system_prompt(arguments)

    def annotate(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...chain_of_step.data import PATHS, annotate_by_judge, annotate_by_monte_carlo, chains_of
        from ...chain_of_step.protocols import sample_paths

        store.open_stage("questions", {"system_prompt": system_prompt}, results=PATHS)  # no part of the answers' ids
        policy, judge = options.load_engine(arguments), options.load_engine(arguments, "judge")
        paths = sample_paths(rows, policy, store, PATHS, **{**settings, "n": arguments.paths})
        chains = chains_of(rows, paths)
        if judge is None:
            annotated = annotate_by_monte_carlo(chains.rows, policy, store, **settings, labels=arguments.labels)
        else:
            asking = {name: settings[name] for name in ("seed", "batch_size", "retry_failed")}
            asking |= {"sampling_params": options.own_sampling(arguments, "judge"), "attempts": arguments.attempts}
            annotated = annotate_by_judge(chains.rows, judge, store, **asking)
        return annotated._replace(dropped={**chains.dropped, **annotated.dropped})

    options.run_pipeline(
        arguments,
        annotate,
        "train chain_of_step --config chain_of_step/your_model.yaml --label_dataset",
        system_prompt=system_prompt,
    )
