"""Make SRPO's cold-start data: solutions of a policy, reflections of a teacher.

Let a policy solve each question, and a teacher who knows the answer reflect on a mix of right and wrong solutions
(SRPO, section 3.1).

example: mmreason reflect data/train.jsonl data/rows.parquet --model Qwen/Qwen2.5-VL-7B-Instruct
--teacher TEACHER --teacher-server http://127.0.0.1:8000/v1
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ...scripts.refusals import WrongArgument
from . import command_options as options
from . import parsers


def add(command: ArgumentParser) -> None:
    options.add_arguments(command, shared=False)
    options.add_party(command, "teacher", required=True)
    options.add_party(command, "scorer", "model that rates the reasoning, so that the best rated is used")
    add = command.add_argument
    add("--scorer-text-only", action="store_true", help="do not show the scorer the images")
    add("--openai-only", action="store_true", help="send teacher and scorer only OpenAI's own fields")
    add("--size", type=parsers.count, help="rows to make; by default as many as the mix allows")
    add("--right-share", type=parsers.share, default=0.3, help="share of right first solutions among the rows")
    add("--n", type=parsers.count, default=1, help="first solutions to each question")
    add("--second-thought", action="store_true", help="let the teacher write a second <think> too")
    attempts = "attempts to get a parsable reply from teacher or scorer"
    add("--attempts", type=parsers.count, default=3, help=attempts)
    options.add_own_sampling(command, "teacher", "a teacher's or scorer's reply", max_new_tokens=1024)
    options.add_text(command, "--cot-prompt", "system message to the policy, or null; by default the paper's")
    options.add_system_prompt(command, "null for none; by default the paper's. It is that of the rows")


def run(arguments: Namespace) -> None:
    if arguments.scorer_text_only and not arguments.scorer:
        raise WrongArgument("--scorer-text-only needs --scorer, the model")
    if arguments.share:
        raise WrongArgument(
            "--share is not supported: the mix is chosen over all questions. Fix: give several --server, "
            "--teacher-server or --scorer-server instead"
        )
    fields = making_settings(arguments)

    def reflect(rows: Any, store: Any, settings: dict[str, Any]) -> Any:
        from ...srpo.cold_start import ReflectionMaking, make_reflections

        drawn = {name: settings.pop(name) for name in ("n", "sampling_params", "seed")}
        policy, teacher = options.load_engine(arguments), options.load_engine(arguments, "teacher")
        making, scorer = ReflectionMaking(**fields, **drawn), options.load_engine(arguments, "scorer")
        return make_reflections(rows, policy, teacher, store, making, scorer=scorer, **settings)

    options.run_pipeline(arguments, reflect, "new reflection_sft --model MODEL --data")


def making_settings(arguments: Namespace) -> dict[str, Any]:
    """Fields of `ReflectionMaking` that the options decide."""
    given = {} if arguments.system_prompt is None else {"system_prompt": options.system_prompt(arguments)}
    return {
        "scorer_sees_images": not arguments.scorer_text_only,
        "teacher_sampling_params": options.own_sampling(arguments, "teacher"),
        **{name: getattr(arguments, name) for name in ("size", "right_share", "second_thought", "attempts")},
        **options.texts(arguments, "cot_prompt"),
        **given,
    }
