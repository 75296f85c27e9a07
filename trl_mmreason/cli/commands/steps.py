"""Make Chain-of-Step's SFT data: a teacher writes the steps to known answers.

Let a teacher who knows the answer write the steps to it (Chain-of-Step, section 3.2).

example: mmreason steps data/train.jsonl data/chains.parquet --teacher TEACHER
--teacher-server http://127.0.0.1:8000/v1
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ...scripts.refusals import WrongArgument
from . import command_options as options
from .parsers import count


def add(command: ArgumentParser) -> None:
    options.add_arguments(command, policy=False)
    options.add_party(command, "teacher", required=True)
    add = command.add_argument
    add("--openai-only", action="store_true", help="send the teacher only OpenAI's own fields")
    add("--min-steps", type=count, default=5, help="minimum steps of a chain, also stated in the prompt")
    add("--max-steps", type=count, default=10, help="maximum steps of a chain, also stated in the prompt")
    add("--attempts", type=count, default=3, help="attempts to get a parsable chain from the teacher")
    options.add_system_prompt(command, "null for none. The teacher does not see it")
    command.set_defaults(max_new_tokens=4096)  # ten detailed steps


def run(arguments: Namespace) -> None:
    bounds = {"min_steps": arguments.min_steps, "max_steps": arguments.max_steps}
    if arguments.min_steps > arguments.max_steps:
        given = f"--min-steps {arguments.min_steps} --max-steps {arguments.max_steps}"
        raise WrongArgument(f"got {given}, expected min ≤ max")

    def write(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...chain_of_step.data import make_step_data

        teacher = options.load_engine(arguments, "teacher")
        return make_step_data(rows, teacher, store, **bounds, attempts=arguments.attempts, **settings)

    options.run_pipeline(
        arguments,
        write,
        "train chain_of_step --config chain_of_step/your_model.yaml --step_dataset",
        system_prompt=options.system_prompt(arguments),
    )
