"""Options shared by the commands that sample answers and write rows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..files import NoSuchFolder, atomic_path, check_model_folder
from . import parsers


def add_arguments(command: argparse.ArgumentParser, *, output: str, policy: bool = True, shared: bool = True) -> None:
    """Declare data, policy, sampling and store.

    Args:
        output: what the command writes, and where.
        policy: whether it samples one; otherwise it declares whom it asks itself.
        shared: whether machines can share it; otherwise `--share` is not in its help, and the command refuses it.
    """
    command.add_argument("dataset", metavar="DATASET", help="Hub id, local file or folder of questions")
    command.add_argument("output", metavar="OUTPUT", help=output)
    if policy:
        add_policy(command)
    command.add_argument("--store", help="file that stores every answer; by default beside OUTPUT")
    command.add_argument("--split", default="train", help="split of DATASET to read")
    add_reading(command)
    add_share(command, shown=shared)
    add_sampling(command)


def add_policy(command: argparse.ArgumentParser) -> None:
    """Declare the policy."""
    command.add_argument("--model", required=True, help="path or Hub id of the policy; with --server its name there")
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter for it")
    add_server(command, "--server", "the policy's")
    command.add_argument(
        "--chat-template-kwargs",
        type=parsers.json_object,
        metavar="JSON",
        help='arguments of the policy\'s chat template, as in training: {"enable_thinking": false}',
    )


def add_party(command: argparse.ArgumentParser, party: str, help_text: str, *, required: bool = False) -> None:
    """Declare a second model, such as a judge, and its server.

    Args:
        party: what the arguments call it, such as "teacher".
        help_text: help text of the option that names the model.
        required: whether there has to be one.
    """
    option = _option(party)
    command.add_argument(option, help=help_text, required=required)
    add_server(command, f"{option}-server", f"the {party.replace('_', ' ')}'s")


def add_server(command: argparse.ArgumentParser, option: str, whose: str) -> None:
    """Declare the address of a model's server."""
    command.add_argument(
        option,
        action="append",
        type=parsers.address,
        metavar="URL",
        help=f"address of {whose} OpenAI-compatible server, as in http://127.0.0.1:8000/v1; repeat the option to share "
        "the work among several servers of this model; the run continues while one of them answers",
    )


def add_system_prompt(command: argparse.ArgumentParser, otherwise: str = "null for none") -> None:
    """Declare the system prompt.

    Args:
        otherwise: the end of the help text: what else may be given, the default, and who sees it.
    """
    command.add_argument(
        "--system-prompt",
        metavar="NAME|FILE|TEXT",
        help=f"system message: sophia for SOPHIA's slow-thinking prompt (Fig. A4), a file, or the text; {otherwise}",
    )


def system_prompt(name: str, value: str | None) -> str | None:
    """The text that `--system-prompt` means; `None` for "null" and without the option.

    Args:
        name: name of the command, for error messages.
        value: see `read_system_prompt`.
    """
    from ..system_prompts import read_system_prompt

    with exit_on(name, OSError, ValueError):
        return read_system_prompt("--system-prompt", value)


def add_reading(command: argparse.ArgumentParser) -> None:
    """Declare how the files of a data set are read."""
    command.add_argument(
        "--columns", type=parsers.json_object, help='our column names → the source\'s, as JSON: {"answer": "solution"}'
    )
    command.add_argument("--image-root", help="base folder of relative picture paths; by default the file's")


def add_share(command: argparse.ArgumentParser, *, shown: bool = True) -> None:
    """Declare which share of the questions this machine processes.

    Args:
        shown: whether the option is in the command's help.
    """
    text = (
        "process only share K of M (0 ≤ K < M) and write only the store; `mmreason merge` joins the stores; for "
        "machines without a common disk"
    )
    command.add_argument(
        "--share",
        type=parsers.share_of_machines,
        metavar="K/M",
        help=text if shown else argparse.SUPPRESS,
    )


def add_sampling(command: argparse.ArgumentParser) -> None:
    """Declare how answers are sampled and graded."""
    command.add_argument("--max-new-tokens", type=parsers.count, default=1024, help="token limit of each answer")
    command.add_argument(
        "--temperature", type=parsers.temperature, default=1.0, help="sampling temperature; 0 is greedy"
    )
    command.add_argument("--top-p", type=parsers.top_p, default=1.0, help="top-p of sampling; 1 keeps all tokens")
    command.add_argument(
        "--tolerance",
        choices=("strict", "lenient"),
        default="strict",
        help="relative tolerance of numbers: strict, 1e-6; lenient, 1e-2 where the right answer is a decimal",
    )
    command.add_argument("--batch-size", type=parsers.count, default=32, help="answers sampled in one batch")
    command.add_argument("--seed", type=int, default=0, help="seed of sampling")
    command.add_argument("--retry-failed", action="store_true", help="repeat requests that failed in an earlier run")


def running(name: str) -> str:
    """Help text on killed runs, keys and GPUs, for each command that samples."""
    return (
        "A killed run resumes. Servers get the key in OPENAI_API_KEY. Several GPUs: accelerate launch -m "
        f"trl_mmreason.cli {name} …"
    )


def add_own_sampling(command: argparse.ArgumentParser, option: str, what: str, *, max_new_tokens: int) -> None:
    """Declare token limit and temperature for another party's samples; `own_sampling` reads them.

    Args:
        option: prefix of both options, such as "judge".
        what: what is sampled, for the help.
        max_new_tokens: default of the token limit.
    """
    command.add_argument(
        f"--{option}-max-new-tokens", type=parsers.count, default=max_new_tokens, help=f"token limit of {what}"
    )
    command.add_argument(
        f"--{option}-temperature", type=parsers.temperature, default=1.0, help=f"sampling temperature of {what}"
    )


DTYPE_CHOICES = ("auto", "float32", "bfloat16", "float16")
"""Data types of weights, as `--dtype` names them."""

QUESTIONS = "questions"
"""Stage of the store that keeps the system prompt, which the ids of the answers do not contain."""

ROWS = "parquet file for the rows, pictures included"
"""Help of OUTPUT, for the commands that write rows."""


def run_pipeline(
    name: str,
    arguments: argparse.Namespace,
    pipeline: Callable[..., Any],
    *,
    system_prompt: str | None = None,
) -> None:
    """Load the rows, run the pipeline, write its rows and print its summary.

    Args:
        name: name of the command, for error messages.
        pipeline: called with the rows, the store and the settings; returns something with `rows`.
        system_prompt: put before every question.
    """
    from ..data import load_rows
    from ..rows import DataError
    from ..sampling.engine import UnsuitableEngine
    from ..sampling.store import SettingsChanged, Store, StoreError

    if not arguments.output.endswith(".parquet"):
        raise SystemExit(f"mmreason {name}: OUTPUT is {arguments.output!r}, expected a path ending in .parquet")
    settings = sampling_settings(arguments)
    store_path = arguments.store or f"{arguments.output}.sqlite"
    check_servers(name, arguments, store_path)
    with exit_on(name, DataError, SettingsChanged, StoreError, UnsuitableEngine):
        loaded = load_rows(
            arguments.dataset,
            split=arguments.split,
            columns=arguments.columns,
            image_root=arguments.image_root,
            system_prompt=system_prompt,
        )
        rows = rows_of_share(name, arguments, loaded.dataset)
        with Store(store_path) as store:
            result = pipeline(rows, store, settings)
    if not is_main_process():
        return
    if arguments.share:
        print_share(arguments, len(rows), store.path)
        return
    if not len(result.rows):
        raise SystemExit(f"mmreason {name}: no row was made; OUTPUT is not written\n{result}")
    with atomic_path(arguments.output) as unfinished:
        result.rows.to_parquet(unfinished)
    print(f"{result}\n{arguments.output}")  # noqa: T201 - what the command is asked for


def is_main_process() -> bool:
    """Whether this process writes and prints the command's result."""
    return int(os.environ.get("RANK", "0")) == 0


def rows_of_share(name: str, arguments: argparse.Namespace, rows: Any) -> Any:
    """The questions that this machine processes: all, or its --share."""
    if arguments.share is None:
        return rows
    first, machines = arguments.share
    if first >= len(rows):
        raise SystemExit(
            f"mmreason {name}: --share {first}/{machines} of {len(rows)} questions is empty; use fewer machines"
        )
    return rows.select(range(first, len(rows), machines))


def print_share(arguments: argparse.Namespace, questions: int, store: Any) -> None:
    """Print the finished share, and the next step."""
    first, machines = arguments.share
    # what the command is asked for
    print(  # noqa: T201
        f"share {first}/{machines}: {questions} questions are done\n{store}\nWhen all {machines} shares are done, "
        "merge their stores with `mmreason merge`, and run this command without --share on the merged store."
    )


def sampling_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Collect the settings of sampling, grading and storing, as pipelines name them."""
    from ..grading import Grader
    from ..sampling import SamplingParams

    return {
        **({"n": arguments.n} if "n" in arguments else {}),
        "sampling_params": SamplingParams(arguments.max_new_tokens, arguments.temperature, arguments.top_p),
        "grader": Grader(tolerance=arguments.tolerance),
        **{name: getattr(arguments, name) for name in ("seed", "batch_size", "retry_failed")},
    }


def own_sampling(arguments: argparse.Namespace, option: str) -> Any:
    """Sampling parameters from the options that `add_own_sampling` declared."""
    from ..sampling import SamplingParams

    return SamplingParams(getattr(arguments, f"{option}_max_new_tokens"), getattr(arguments, f"{option}_temperature"))


def check_parties(name: str, arguments: argparse.Namespace, *parties: str) -> None:
    """Refuse a server without its model's name, and --openai-only without a server."""
    served = [party for party in parties if getattr(arguments, f"{party}_server")]
    for party in served:
        if not getattr(arguments, party):
            option = _option(party)
            raise SystemExit(f"mmreason {name}: {option}-server needs {option}, the model's name there")
    if arguments.openai_only and not served:
        expected = " or ".join(f"{_option(party)}-server" for party in parties)
        raise SystemExit(f"mmreason {name}: --openai-only needs {expected}")


def check_servers(name: str, arguments: argparse.Namespace, *stores: str | Path) -> None:
    """End the command if no server of a party answers, before rows are read or a model is loaded.

    Args:
        name: name of the command, for error messages.
        arguments: with a server of the policy, of parties that `add_party` declared, or of a process reward model.
        *stores: files with answers. Where all are there, nothing is asked: a finished run needs no server.
    """
    from ..sampling.server_engine import ServerError

    if all(Path(store).exists() for store in stores):
        return
    served = [option for option, value in vars(arguments).items() if value and f"_{option}".endswith("_server")]
    with exit_on(name, ServerError):
        for option in served:
            load_engine(name, arguments, option.removesuffix("server").removesuffix("_") or None).check()
    if str(getattr(arguments, "process_reward", "")).startswith(("http://", "https://")):
        from ..chain_of_step.client import ProcessRewardClient, ProcessRewardServerError

        with exit_on(name, ProcessRewardServerError, ValueError):
            ProcessRewardClient(arguments.process_reward).settings  # noqa: B018 - asks the server


def load_engine(name: str, arguments: argparse.Namespace, party: str | None = None, **server_options: Any) -> Any:
    """Make the engine of a model behind servers, or of one in this process.

    Args:
        name: name of the command, for error messages.
        party: one that `add_party` declared; by default the policy. `None` is returned where its model is not named.
        **server_options: arguments of `ServerEngine`.
    """
    from ..sampling.server_engine import ServerEngine
    from ..sampling.transformers_engine import TransformersEngine

    template: dict[str, Any] = {}
    if party is None:
        model, servers, adapter = arguments.model, arguments.server, arguments.adapter
        template = template_options(arguments)
        server_options["extra_body"] = {**server_options.get("extra_body", {}), **template}
    else:
        model, servers, adapter = getattr(arguments, party), getattr(arguments, f"{party}_server"), None
        server_options["openai_only"] = arguments.openai_only
    if model is None:
        return None
    if servers and adapter:
        raise SystemExit(
            f"mmreason {name}: --adapter has no effect with --server, which loads its own; remove one of them"
        )
    if not servers:
        check_folders(name, model, adapter)
    with exit_on(name, ValueError, OSError, ImportError):
        if servers:
            return ServerEngine(model, servers, **server_options)
        return TransformersEngine(model, adapter=adapter, batch_size=arguments.batch_size, **template)


def template_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """`chat_template_kwargs` as a keyword of engines and of vLLM's server; empty without any."""
    template_kwargs = arguments.chat_template_kwargs
    return {"chat_template_kwargs": template_kwargs} if template_kwargs else {}


def check_folders(name: str, *paths: str | None) -> None:
    """Refuse model paths that are not folders with a model; possible Hub ids pass.

    Args:
        name: name of the command, for error messages.
        *paths: what came for a model or an adapter.
    """
    for path in paths:
        with exit_on(name, NoSuchFolder):
            if path is not None:
                check_model_folder(path)


def _option(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"


@contextmanager
def exit_on(name: str, *expected: type[Exception]) -> Iterator[None]:
    """End the command with the message of such an error, without a traceback."""
    try:
        yield
    except expected as error:
        raise SystemExit(f"mmreason {name}: {error}") from error
