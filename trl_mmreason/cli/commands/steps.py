"""`mmreason steps`: the data of Chain-of-Step's supervised training."""

from __future__ import annotations

import argparse
from typing import Any

from . import options, parsers


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "steps",
        help="make Chain-of-Step's SFT data: a teacher writes the steps to known answers",
        description="Let a teacher who knows the answer write the steps to it (Chain-of-Step, section 3.2).",
        epilog="example: mmreason steps data/train.jsonl data/chains.parquet --teacher TEACHER "
        "--teacher-server http://127.0.0.1:8000/v1",
    )
    options.add_arguments(command, policy=False)
    options.add_party(
        command, "teacher", "path or Hub id of the teacher; with --teacher-server its name there", required=True
    )
    command.add_argument("--openai-only", action="store_true", help="send the teacher only OpenAI's own fields")
    command.add_argument(
        "--min-steps", type=parsers.count, default=5, help="minimum steps of a chain, also stated in the prompt"
    )
    command.add_argument(
        "--max-steps", type=parsers.count, default=10, help="maximum steps of a chain, also stated in the prompt"
    )
    command.add_argument(
        "--attempts", type=parsers.count, default=3, help="attempts to get a parsable chain from the teacher"
    )
    options.add_system_prompt(command, "null for none. The teacher does not see it")
    command.set_defaults(run=_steps, max_new_tokens=4096)  # ten detailed steps


def _steps(arguments: argparse.Namespace) -> None:
    options.check_parties("steps", arguments, "teacher")
    if arguments.min_steps > arguments.max_steps:
        bounds = f"--min-steps {arguments.min_steps} --max-steps {arguments.max_steps}"
        raise SystemExit(f"mmreason steps: got {bounds}, expected min ≤ max")

    def write(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...chain_of_step.data import make_step_data

        teacher = options.load_engine("steps", arguments, "teacher")
        bounds = {"min_steps": arguments.min_steps, "max_steps": arguments.max_steps}
        return make_step_data(rows, teacher, store, **bounds, attempts=arguments.attempts, **settings)

    system_prompt = options.system_prompt("steps", arguments.system_prompt)
    options.run_pipeline("steps", arguments, write, system_prompt=system_prompt)
