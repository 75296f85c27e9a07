"""Evaluate a policy on benchmarks.

Let a policy answer benchmarks, grade the answers, and write metrics with intervals, every sample, and a report.

example: mmreason evaluate mathvista own=data/test.jsonl --model Qwen/Qwen2.5-VL-3B-Instruct --adapter runs/adapo
--protocol two-turn
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...data.user_text import suggestion
from ...scripts.refusals import WrongArgument
from . import command_options as options
from .parsers import count, share

PROTOCOLS = ("direct", "two-turn", "reflection", "chain-of-step", "best-of-n", "step-beam")
_SCORED = ("best-of-n", "step-beam")
_IN_CHAINS = ("chain-of-step", *_SCORED)
_OF_PROTOCOL = {"followup": "two-turn", "step_weight": "best-of-n", "max_steps": "step-beam"}  # option → its protocol
_OWN_SPLIT = "test"


def add(command: ArgumentParser) -> None:
    add = command.add_argument
    benchmarks = (
        "name of a benchmark (docs/benchmarks.md), read from its Hub id or from SOURCE: another Hub id, a local file "
        "or folder. With a name of your own, SOURCE holds rows as for training"
    )
    add("benchmarks", nargs="+", metavar="BENCHMARK[=SOURCE]", help=benchmarks)
    add("--output", default="runs/evaluation", help="output folder, with a folder for each benchmark")
    options.add_policy(command)
    options.add_openai_only(command)
    add("--vllm", action="store_true", help="sample with vLLM, one on each GPU under accelerate launch")
    dtype = "--vllm: dtype of the engine; auto, the default, reads float32 checkpoints as bfloat16"
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"), help=dtype)
    add("--protocol", choices=PROTOCOLS, default="direct", help="how the policy is asked and graded")
    n = "samples of each question, or step-beam's candidates a step; by default 1, or 4 with --process-reward"
    add("--n", type=count, help=n)
    followup = "--protocol two-turn: user message after the first answer; AdaPO's by default"
    options.add_text(command, "--followup", followup)
    options.add_system_prompt(command, "null for none; reflection: the paper's by default")
    scorer = "--protocol best-of-n, step-beam: path or Hub id of the scorer, or URL of its `vllm serve`"
    add("--process-reward", help=scorer)
    add("--step-weight", type=share, help="--protocol best-of-n: weight of the step scores; 0.2 by default")
    add("--max-steps", type=count, help="--protocol step-beam: maximum steps of a chain; 16 by default")
    add("--split", help="split of the data set; by default the benchmark's, or test for rows of your own")
    add("--limit", type=count, help="use only the first LIMIT questions")
    options.add_text(command, "--prompt-template", "template that joins question, choices, hint and instruction")
    options.add_text(command, "--instruction", "text below the question, or null; the benchmark's by default")
    options.add_sampling(command)
    options.add_party(command, "judge", "model to ask about answers that the rules call wrong; text-only will do")
    answers = "declared ones alone, or what the last sentence with a value states, too (prose); by default as the "
    answers += "benchmark's authors take them: prose for MathVista, MathVerse, MathVision, if no judge extracts them"
    add("--answers", choices=("declared", "prose"), help=answers)
    extracts = "--judge: it looks for an answer where the rules find none, and the rules decide about what it finds"
    add("--judge-extracts-only", action="store_true", help=extracts)
    add("--shown", type=count, default=100, help="questions shown in the report")
    command.set_defaults(temperature=None, max_new_tokens=2048)  # one greedy sample, or several at temperature 1


class _Questions(NamedTuple):
    """The rows of a benchmark argument, and the record of their origin."""

    name: str
    rows: Any
    about: dict[str, Any]
    benchmark: Any


def run(arguments: Namespace) -> None:
    from ...evaluation.evaluation_report import REPORT, evaluate_into
    from ...evaluation.files import format_overview, format_results, refuse_folders
    from ...evaluation.runner import evaluate
    from ...jobs.store import Store

    _check_options(arguments)
    settings, judge = _settings(arguments)
    system_prompt = options.system_prompt(arguments, is_srpo=arguments.protocol == "reflection")
    loaded = [_load(arguments, benchmark) for benchmark in arguments.benchmarks]  # all, before anything takes time
    names = [questions.name for questions in loaded]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise WrongArgument(f"{', '.join(repeated)} given more than once; each needs its own folder")
    for name in names:
        refuse_folders(Path(arguments.output) / name, REPORT)
    engine, protocol, done = load_engine(arguments), _protocol(arguments), {}
    for questions in loaded:
        folder = Path(arguments.output) / questions.name
        asking = {"system_prompt": system_prompt, "description": questions.name, **settings}
        asking["grader"] = _grader(arguments, questions.benchmark, settings["grader"], judge)
        if arguments.share:  # asks and grades; results are computed when all shares are merged
            rows = options.rows_of_share(arguments, questions.rows)
            with Store(folder / "answers.sqlite", elsewhere="another --output") as store:
                evaluate(rows, engine, store, protocol, **asking)
            if options.is_main_process():
                options.print_share(arguments, len(rows), store.path)
            continue
        asking |= {"about": questions.about, "benchmark": questions.benchmark, "shown": arguments.shown}
        results = evaluate_into(folder, questions.rows, engine, protocol, command=arguments.command_line, **asking)
        if options.is_main_process():
            done[questions.name] = results
            # what the command is asked for
            print(f"{questions.about['title']}\n{format_results(results)}\n\n{folder / REPORT}\n")  # noqa: T201
    if len(done) > 1:
        print(format_overview(done))  # noqa: T201 - what the command is asked for
    counts = {name: results.counts for name, results in done.items() if arguments.protocol in _IN_CHAINS}
    chainless = [name for name, count in counts.items() if count["samples"] == count["failed"] + count["malformed"]]
    if chainless:
        raise WrongArgument(
            f"--protocol {arguments.protocol} found no chain of steps on {', '.join(chainless)}. Fix: a policy trained "
            "on chains (docs/chain_of_step.md), or a larger --max-new-tokens"
        )


def _check_options(arguments: Namespace) -> None:
    """Refuse options that do not go together; fill in `n` and `temperature`."""
    scored = arguments.protocol in _SCORED
    arguments.n = arguments.n or (4 if scored else 1)
    several = arguments.n > 1
    if arguments.temperature is None:
        arguments.temperature = 1.0 if several else 0.0
    if several and not arguments.temperature:
        raise WrongArgument(f"--n {arguments.n} needs a temperature above 0; greedy samples are all alike")
    if arguments.protocol == "best-of-n" and not several:
        raise WrongArgument("--protocol best-of-n needs --n 2 or more, got 1")
    if scored != bool(arguments.process_reward):
        came = "needs" if scored else "does not use"
        raise WrongArgument(
            f"--protocol {arguments.protocol} {came} --process-reward, which belongs to {' and '.join(_SCORED)}"
        )
    for name, protocol in _OF_PROTOCOL.items():
        if arguments.protocol != protocol:
            _refuse_unused(arguments, name, why=f"it belongs to --protocol {protocol}")
    if arguments.judge_extracts_only and not arguments.judge:
        raise WrongArgument("--judge-extracts-only needs --judge, the model that looks for answers")
    if arguments.vllm and (arguments.server or arguments.adapter):
        raise WrongArgument("--vllm samples merged models in this process; leave --server and --adapter out")
    if not arguments.vllm:
        _refuse_unused(arguments, "dtype", why="it belongs to --vllm")


def _refuse_unused(arguments: Namespace, *names: str, why: str) -> None:
    for name in names:
        if getattr(arguments, name) is not None:
            raise WrongArgument(f"--{name.replace('_', '-')} has no effect here, as {why}; remove it")


def _settings(arguments: Namespace) -> tuple[dict[str, Any], Any]:
    """Collect `evaluate`'s settings and the judge, if any, and check the servers before anything is loaded."""
    settings = options.sampling_settings(arguments)
    if arguments.protocol == "step-beam":
        settings["n"] = 1
    names = [benchmark.partition("=")[0].replace("/", "-") for benchmark in arguments.benchmarks]
    options.check_servers(arguments, *(Path(arguments.output) / name / "answers.sqlite" for name in names))
    if not arguments.judge:
        return settings, None
    from ...generation.engine import Chat

    return settings, Chat(options.load_engine(arguments, "judge"))


def _grader(arguments: Namespace, benchmark: Any, rules: Any, judge: Any) -> Any:
    """The rules, which may read prose, or the judge with them."""
    prescribed = benchmark is not None and benchmark.answers_in_prose and judge is None
    if arguments.answers == "prose" or (arguments.answers is None and prescribed):
        rules = replace(rules, prose=True)
    if judge is None:
        return rules
    from ...grading import JudgeGrader

    return JudgeGrader(judge, rules, compare=not arguments.judge_extracts_only)


def _load(arguments: Namespace, benchmark: str) -> _Questions:
    from ...evaluation.benchmarks import BENCHMARKS, TEMPLATE, load_benchmark
    from ...evaluation.provenance import digest_of
    from ...jobs.run import unique_ids

    name, _, source = benchmark.partition("=")
    known = BENCHMARKS.get(name)
    if known is None:
        _check_name(name, source, BENCHMARKS)
    is_file = Path(source).is_file()
    if is_file:
        _refuse_unused(arguments, "split", why=f"{source} is one split, whatever it is called")
    prompt: dict[str, Any] = {}
    shared = ("image_root", "min_pixels", "max_pixels")
    reading: dict[str, Any] = {"max_rows": arguments.limit, **{key: getattr(arguments, key) for key in shared}}
    if known is None:
        from ...data.row_loading import load_rows

        _refuse_unused(arguments, "prompt_template", "instruction", why="rows of your own are asked as they are")
        reading |= {"columns": arguments.columns, "video_frames": arguments.video_frames}
        reading["on_error"] = "raise"  # with rows left out it would be another one
        rows = load_rows(source, split=arguments.split or _OWN_SPLIT, **reading).dataset
    else:
        _refuse_unused(arguments, "columns", "video_frames", why=f"the columns of {name} are known")
        if known.draw:
            _refuse_unused(arguments, "image_root", why=f"{name} is drawn")
        own_instruction = options.texts(arguments, "instruction").get("instruction", known.instruction)
        template = TEMPLATE if arguments.prompt_template is None else arguments.prompt_template
        prompt = {"prompt_template": template, "instruction": own_instruction or ""}
        rows = load_benchmark(name, source or None, split=arguments.split, **reading, **prompt)
    unique_ids(rows)
    about = {
        "name": name,
        "title": known.title if known else name,
        "source": source or (known.source if known else name),
        "split": None if is_file else arguments.split or (known.split if known else _OWN_SPLIT),
        "questions": len(rows),
        "digest": digest_of(rows),
        **prompt,
    }
    return _Questions(name.replace("/", "-"), rows, about, known)


def _check_name(name: str, source: str, known: Any) -> None:
    """Refuse a name that is no benchmark and comes without a source, or that cannot be a folder's."""
    from ...data.row_sources import SUFFIXES

    if not source and (Path(name).exists() or Path(name).suffix in SUFFIXES):
        stem = "-".join(re.findall(r"[\w-]+", Path(name).resolve().stem)).lstrip("-") or "name"
        raise WrongArgument(f"{name!r} has no name, expected NAME=FILE; write {stem}={name}")
    if not re.fullmatch(r"\w[\w/.-]*", name) or ".." in name:
        raise WrongArgument(f"{name!r} cannot be the name of a benchmark; use letters, digits, - and _")
    if not source:
        near = suggestion(name, known)
        raise WrongArgument(
            f"there is no benchmark {name!r}{f'{near} There' if near else '; there'} are {', '.join(known)}. For "
            f"rows of your own: {name}=FILE"
        )


def load_engine(arguments: Namespace) -> Any:
    """Make the engine that answers as the policy."""
    if arguments.vllm:
        from ...generation.vllm_engine import VLLMProcess

        dtype = {"dtype": arguments.dtype} if arguments.dtype else {}
        return VLLMProcess(arguments.model, chat_template_kwargs=arguments.chat_template_kwargs, **dtype)
    # of several candidates servers tell the tokens only when asked for their ids
    counted: dict[str, Any] = {"extra_body": {"return_token_ids": True}} if arguments.protocol == "step-beam" else {}
    return options.load_engine(arguments, **counted)


def _protocol(arguments: Namespace) -> Any:
    """The protocol that the options name."""
    if arguments.protocol == "direct":
        from ...generation.protocols import Direct

        return Direct()
    if arguments.protocol == "two-turn":
        from ...adapo.prompts import EVALUATION_PROMPT
        from ...generation.protocols import TwoTurn

        return TwoTurn(options.text(arguments, "followup", EVALUATION_PROMPT))
    if arguments.protocol == "reflection":
        from ...srpo.protocols import Reflection

        return Reflection()
    from ...chain_of_step.process_reward_client import process_reward_from
    from ...chain_of_step.protocols import Chains, StepBeam

    if arguments.protocol == "chain-of-step":
        return Chains()
    process_reward = process_reward_from(arguments.process_reward)
    if arguments.protocol == "best-of-n":
        weight = {} if arguments.step_weight is None else {"step_weight": arguments.step_weight}
        return Chains(process_reward, **weight)
    return StepBeam(process_reward, arguments.n, arguments.max_steps or StepBeam.max_steps)
