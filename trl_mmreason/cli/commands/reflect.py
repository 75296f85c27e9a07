"""`mmreason reflect`: the data of SRPO's cold start."""

from __future__ import annotations

import argparse
from typing import Any

from ...scripts.system_prompts import parse_optional_text
from . import options, parsers


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "reflect",
        help="make SRPO's cold-start data: solutions of a policy, reflections of a teacher",
        description="Let a policy solve each question, and a teacher who knows the answer reflect on a mix of right "
        "and wrong solutions (SRPO, section 3.1).",
        epilog="example: mmreason reflect data/train.jsonl data/rows.parquet --model Qwen/Qwen2.5-VL-7B-Instruct "
        "--teacher TEACHER --teacher-server http://127.0.0.1:8000/v1",
    )
    options.add_arguments(command, shared=False)
    options.add_party(
        command, "teacher", "path or Hub id of the teacher; with --teacher-server its name there", required=True
    )
    options.add_party(command, "scorer", "model that rates the reasoning, so that the best rated is used")
    command.add_argument("--scorer-text-only", action="store_true", help="do not show the scorer the pictures")
    command.add_argument("--openai-only", action="store_true", help="send teacher and scorer only OpenAI's own fields")
    command.add_argument("--size", type=parsers.count, help="rows to make; by default as many as the mix allows")
    command.add_argument(
        "--right-share", type=parsers.share, default=0.3, help="share of right first solutions among the rows"
    )
    command.add_argument("--n", type=parsers.count, default=1, help="first solutions to each question")
    command.add_argument("--second-thought", action="store_true", help="let the teacher write a second <think> too")
    command.add_argument(
        "--attempts",
        type=parsers.count,
        default=3,
        help="attempts to get a parsable reply from teacher or scorer",
    )
    options.add_own_sampling(command, "teacher", "a teacher's or scorer's reply", max_new_tokens=1024)
    command.add_argument(
        "--cot-prompt",
        type=parsers.text_or_file,
        metavar="FILE|TEXT",
        help="system message to the policy, or null; by default the paper's",
    )
    options.add_system_prompt(command, "null for none; by default the paper's. It is that of the rows")
    command.set_defaults(run=_reflect)


def _reflect(arguments: argparse.Namespace) -> None:
    options.check_parties("reflect", arguments, "teacher", "scorer")
    if arguments.scorer_text_only and not arguments.scorer:
        raise SystemExit("mmreason reflect: --scorer-text-only needs --scorer, the model")
    if arguments.share:
        raise SystemExit(
            "mmreason reflect: --share is not supported: the mix is chosen over all questions. Fix: give several "
            "--server, --teacher-server or --scorer-server instead"
        )
    fields = _settings(arguments)

    def reflect(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...srpo.cold_start import ReflectionMaking, make_reflections

        drawn = {name: settings.pop(name) for name in ("n", "sampling_params", "seed")}
        making = ReflectionMaking(**fields, **drawn)
        return make_reflections(
            rows,
            options.load_engine("reflect", arguments),
            options.load_engine("reflect", arguments, "teacher"),
            store,
            making,
            scorer=options.load_engine("reflect", arguments, "scorer"),
            **settings,
        )

    options.run_pipeline("reflect", arguments, reflect)


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    with options.exit_on("reflect", ValueError):
        cot_prompt = parse_optional_text("--cot-prompt", arguments.cot_prompt)
    prompts = {
        "cot_prompt": cot_prompt,
        "system_prompt": options.system_prompt("reflect", arguments.system_prompt),
    }
    return {
        "scorer_sees_images": not arguments.scorer_text_only,
        "teacher_sampling_params": options.own_sampling(arguments, "teacher"),
        **{name: getattr(arguments, name) for name in ("size", "right_share", "second_thought", "attempts")},
        **{name: prompt for name, prompt in prompts.items() if getattr(arguments, name) is not None},
    }
