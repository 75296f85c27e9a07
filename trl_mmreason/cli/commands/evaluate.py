"""`mmreason evaluate`: a policy on benchmarks, and how every number was made."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, NamedTuple

from ...data.user_text import suggestion
from ...scripts.system_prompts import parse_optional_text
from . import options, parsers

PROTOCOLS = ("direct", "two-turn", "reflection", "chain-of-step", "best-of-n", "step-beam")
_SCORED = ("best-of-n", "step-beam")
_IN_CHAINS = ("chain-of-step", *_SCORED)
_OWN_SPLIT = "test"


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "evaluate",
        help="evaluate a policy on benchmarks",
        description="Let a policy answer benchmarks, grade the answers, and write metrics with intervals, "
        "every sample, and a report.",
        epilog="example: mmreason evaluate mathvista own=data/test.jsonl --model Qwen/Qwen2.5-VL-3B-Instruct "
        "--adapter runs/adapo --protocol two-turn",
    )
    command.add_argument(
        "benchmarks",
        nargs="+",
        metavar="BENCHMARK[=SOURCE]",
        help="name of a benchmark (docs/benchmarks.md), read from its Hub id or from SOURCE: another Hub id, a local "
        "file or folder. With a name of your own, SOURCE holds rows as for training",
    )
    command.add_argument("--output", default="runs/evaluation", help="output folder, with a folder for each benchmark")
    options.add_policy(command)
    command.add_argument(
        "--vllm", action="store_true", help="sample with vLLM, one on each GPU under accelerate launch"
    )
    command.add_argument(
        "--dtype",
        choices=options.DTYPE_CHOICES,
        help="--vllm: dtype of the engine; auto, the default, reads float32 checkpoints as bfloat16",
    )
    _add_protocol(command)
    command.add_argument(
        "--split", help="split of the data set; by default the benchmark's, or test for rows of your own"
    )
    command.add_argument("--limit", type=parsers.count, help="use only the first LIMIT questions")
    command.add_argument(
        "--prompt-template",
        type=parsers.text_or_file,
        metavar="FILE|TEXT",
        help="template that joins question, choices, hint and instruction",
    )
    command.add_argument(
        "--instruction",
        type=parsers.text_or_file,
        metavar="FILE|TEXT",
        help="text below the question, or null; the benchmark's by default",
    )
    options.add_sampling(command)
    options.add_party(command, "judge", "model to ask about answers that the rules call wrong; text-only will do")
    command.add_argument(
        "--judge-extracts-only",
        action="store_true",
        help="--judge: it looks for an answer where the rules find none, and the rules decide about what it finds",
    )
    command.add_argument("--shown", type=parsers.count, default=100, help="questions shown in the report")
    # one greedy sample, or several at temperature 1; the judge may be a hosted one
    command.set_defaults(run=_evaluate, temperature=None, max_new_tokens=2048, openai_only=True)


def _add_protocol(command: argparse.ArgumentParser) -> None:
    command.add_argument("--protocol", choices=PROTOCOLS, default="direct", help="how the policy is asked and graded")
    command.add_argument(
        "--n",
        type=parsers.count,
        help="samples of each question, or step-beam's candidates a step; by default 1, or 4 with --process-reward",
    )
    command.add_argument(
        "--followup",
        type=parsers.text_or_file,
        metavar="FILE|TEXT",
        help="--protocol two-turn: user message after the first answer; AdaPO's by default",
    )
    options.add_system_prompt(command, "null for none; reflection: the paper's by default")
    command.add_argument(
        "--process-reward",
        help="--protocol best-of-n, step-beam: path or Hub id of the scorer, or URL of `mmreason serve-prm`",
    )
    command.add_argument(
        "--step-weight", type=parsers.share, help="--protocol best-of-n: weight of the step scores; 0.2 by default"
    )
    command.add_argument(
        "--max-steps", type=parsers.count, help="--protocol step-beam: maximum steps of a chain; 16 by default"
    )


class _Questions(NamedTuple):
    """The rows of a benchmark argument, and the record of their origin."""

    name: str
    rows: Any
    about: dict[str, Any]
    benchmark: Any


def _evaluate(arguments: argparse.Namespace) -> None:
    from ...chain_of_step.client import ProcessRewardServerError
    from ...evaluation.evaluation_report import REPORT, evaluate_into
    from ...evaluation.files import format_overview, format_results, refuse_folders
    from ...generation.engine import UnsuitableEngine
    from ...jobs.store import SettingsChanged, StoreError

    settings = _settings(arguments)
    system_prompt = options.system_prompt("evaluate", arguments.system_prompt)
    with options.exit_on("evaluate", ValueError):  # problems of rows, their ids and splits
        loaded = [_load(arguments, benchmark) for benchmark in arguments.benchmarks]  # all, before anything takes time
    _refuse_repeated([questions.name for questions in loaded])
    for questions in loaded:
        refuse_folders(Path(arguments.output) / questions.name, REPORT)
    done: dict[str, Any] = {}
    with options.exit_on("evaluate", SettingsChanged, StoreError, UnsuitableEngine, ProcessRewardServerError):
        engine, protocol, system_prompt = _engine(arguments), *_protocol(arguments, system_prompt)
        for questions in loaded:
            folder = Path(arguments.output) / questions.name
            if arguments.share:
                _do_share(arguments, folder, questions, engine, protocol, system_prompt, settings)
                continue
            results = evaluate_into(
                folder,
                questions.rows,
                engine,
                protocol,
                command=arguments.command_line,
                about=questions.about,
                benchmark=questions.benchmark,
                shown=arguments.shown,
                system_prompt=system_prompt,
                description=questions.name,
                **settings,
            )
            if options.is_main_process():
                done[questions.name] = results
                # what the command is asked for
                print(f"{questions.about['title']}\n{format_results(results)}\n\n{folder / REPORT}\n")  # noqa: T201
    if len(done) > 1:
        print(format_overview(done))  # noqa: T201 - what the command is asked for
    chainless = [name for name, results in done.items() if arguments.protocol in _IN_CHAINS and not _chains(results)]
    if chainless:
        raise SystemExit(
            f"mmreason evaluate: --protocol {arguments.protocol} found no chain of steps on {', '.join(chainless)}. "
            "Fix: a policy trained on chains (docs/chain_of_step.md), or a larger --max-new-tokens"
        )


def _chains(results: Any) -> int:
    """Number of samples that are whole chains of steps."""
    return int(results.counts["samples"] - results.counts["failed"] - results.counts["malformed"])


def _do_share(
    arguments: argparse.Namespace,
    folder: Path,
    questions: _Questions,
    engine: Any,
    protocol: Any,
    system_prompt: str | None,
    settings: dict[str, Any],
) -> None:
    """Ask and grade this machine's questions only; results are computed when all shares are merged."""
    from ...evaluation.runner import evaluate
    from ...jobs.store import Store

    rows = options.rows_of_share("evaluate", arguments, questions.rows)
    with Store(folder / "answers.sqlite") as store:
        evaluate(rows, engine, store, protocol, system_prompt=system_prompt, description=questions.name, **settings)
    if options.is_main_process():
        options.print_share(arguments, len(rows), store.path)


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Check options before anything is loaded; collect `evaluate`'s settings."""
    scored = arguments.protocol in _SCORED
    if arguments.n is None:
        arguments.n = 4 if scored else 1
    several = arguments.n > 1
    if arguments.temperature is None:
        arguments.temperature = 1.0 if several else 0.0
    if several and not arguments.temperature:
        raise SystemExit(
            f"mmreason evaluate: --n {arguments.n} needs a temperature above 0; greedy samples are all alike"
        )
    if arguments.protocol == "best-of-n" and not several:
        raise SystemExit("mmreason evaluate: --protocol best-of-n needs --n 2 or more, got 1")
    if scored != bool(arguments.process_reward):
        came = "needs" if scored else "does not use"
        raise SystemExit(
            f"mmreason evaluate: --protocol {arguments.protocol} {came} --process-reward, which belongs to "
            f"{' and '.join(_SCORED)}"
        )
    for name, protocol in (("followup", "two-turn"), ("step_weight", "best-of-n"), ("max_steps", "step-beam")):
        if arguments.protocol != protocol:
            _refuse_unused(arguments, name, why=f"it belongs to --protocol {protocol}")
    if arguments.judge_server and not arguments.judge:
        raise SystemExit("mmreason evaluate: --judge-server needs --judge, the model's name there")
    if arguments.judge_extracts_only and not arguments.judge:
        raise SystemExit("mmreason evaluate: --judge-extracts-only needs --judge, the model that looks for answers")
    if arguments.vllm and (arguments.server or arguments.adapter):
        raise SystemExit(
            "mmreason evaluate: --vllm samples merged models in this process; leave --server and --adapter out"
        )
    if not arguments.vllm:
        _refuse_unused(arguments, "dtype", why="it belongs to --vllm")
    settings = options.sampling_settings(arguments)
    if arguments.protocol == "step-beam":
        settings["n"] = 1
    names = [benchmark.partition("=")[0].replace("/", "-") for benchmark in arguments.benchmarks]
    stores = [Path(arguments.output) / name / "answers.sqlite" for name in names]
    options.check_servers("evaluate", arguments, *stores)
    if arguments.judge:
        from ...generation.engine import Chat
        from ...grading import JudgeGrader

        judge = Chat(options.load_engine("evaluate", arguments, "judge"))
        settings["grader"] = JudgeGrader(judge, settings["grader"], compare=not arguments.judge_extracts_only)
    return settings


def _load(arguments: argparse.Namespace, benchmark: str) -> _Questions:
    from ...data.row_sources import SUFFIXES
    from ...data.rows import DataError
    from ...evaluation.benchmarks import BENCHMARKS, TEMPLATE, load_benchmark
    from ...evaluation.provenance import digest_of
    from ...jobs.run import unique_ids

    name, _, source = benchmark.partition("=")
    known = BENCHMARKS.get(name)
    if known is None and not source and (Path(benchmark).exists() or Path(benchmark).suffix in SUFFIXES):
        stem = "-".join(re.findall(r"[\w-]+", Path(benchmark).resolve().stem)).lstrip("-") or "name"
        raise DataError(f"{benchmark!r} has no name, expected NAME=FILE; write {stem}={benchmark}")
    if not re.fullmatch(r"\w[\w/.-]*", name) or ".." in name:  # the name becomes a folder
        raise DataError(f"{name!r} cannot be the name of a benchmark; use letters, digits, - and _")
    if known is None and not source:
        near = suggestion(name, BENCHMARKS)
        raise DataError(
            f"there is no benchmark {name!r}{f'{near} There' if near else '; there'} are {', '.join(BENCHMARKS)}. For "
            f"rows of your own: {name or 'name'}=FILE"
        )
    is_file = Path(source).is_file()
    if is_file:
        _refuse_unused(arguments, "split", why=f"{source} is one split, whatever it is called")
    prompt: dict[str, str] = {}
    if known is None:
        _refuse_unused(arguments, "prompt_template", "instruction", why="rows of your own are asked as they are")
        rows = _own_rows(arguments, source)
    else:
        _refuse_unused(arguments, "columns", why=f"the columns of {name} are known")
        if known.draw:
            _refuse_unused(arguments, "image_root", why=f"{name} is drawn")
        own_instruction = parse_optional_text("--instruction", arguments.instruction) or ""
        prompt = {
            "prompt_template": arguments.prompt_template or TEMPLATE,
            "instruction": known.instruction if arguments.instruction is None else own_instruction,
        }
        rows = load_benchmark(
            name,
            source or None,
            split=arguments.split,
            image_root=arguments.image_root,
            max_rows=arguments.limit,
            **prompt,
        )
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


def _refuse_unused(arguments: argparse.Namespace, *names: str, why: str) -> None:
    for name in names:
        if getattr(arguments, name) is not None:
            raise SystemExit(f"mmreason evaluate: --{name.replace('_', '-')} has no effect here, as {why}; remove it")


def _own_rows(arguments: argparse.Namespace, source: str) -> Any:
    from ...data.row_loading import load_rows

    loaded = load_rows(
        source,
        split=arguments.split or _OWN_SPLIT,
        columns=arguments.columns,
        image_root=arguments.image_root,
        max_rows=arguments.limit,
        on_error="raise",  # with rows left out it would be another benchmark
    )
    return loaded.dataset


def _refuse_repeated(names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SystemExit(f"mmreason evaluate: {', '.join(repeated)} given more than once; each needs its own folder")


def _engine(arguments: argparse.Namespace) -> Any:
    if arguments.vllm:
        from ...generation.vllm_engine import VLLMProcess

        with options.exit_on("evaluate", ValueError, OSError, ImportError):
            dtype = {"dtype": arguments.dtype} if arguments.dtype else {}
            return VLLMProcess(arguments.model, **options.template_options(arguments), **dtype)
    # of several candidates servers tell the tokens only when asked for their ids
    counted: dict[str, Any] = {"extra_body": {"return_token_ids": True}} if arguments.protocol == "step-beam" else {}
    return options.load_engine("evaluate", arguments, **counted)


def _protocol(arguments: argparse.Namespace, system_prompt: str | None) -> tuple[Any, str | None]:
    """The protocol and its system prompt: `system_prompt`, unless the protocol has its own."""
    if arguments.protocol == "direct":
        from ...generation.protocols import Direct

        return Direct(), system_prompt
    if arguments.protocol == "two-turn":
        from ...adapo.prompts import EVALUATION_PROMPT
        from ...generation.protocols import TwoTurn

        return TwoTurn(arguments.followup or EVALUATION_PROMPT), system_prompt
    if arguments.protocol == "reflection":
        from ...srpo.prompts import REFLECTION_PROMPT
        from ...srpo.protocols import Reflection

        return Reflection(), REFLECTION_PROMPT if arguments.system_prompt is None else system_prompt
    from ...chain_of_step.protocols import Chains, StepBeam

    if arguments.protocol == "chain-of-step":
        return Chains(), system_prompt
    process_reward = _process_reward(arguments.process_reward)
    if arguments.protocol == "best-of-n":
        weight = {} if arguments.step_weight is None else {"step_weight": arguments.step_weight}
        return Chains(process_reward, **weight), system_prompt
    return StepBeam(process_reward, arguments.n, arguments.max_steps or StepBeam.max_steps), system_prompt


def _process_reward(source: str) -> Any:
    from ...chain_of_step.client import process_reward_from

    with options.exit_on("evaluate", ValueError, OSError):
        return process_reward_from(source)
