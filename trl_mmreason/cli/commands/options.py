"""Options shared by the commands that sample answers and write rows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...data.folders import NoSuchFolder, atomic_path, check_model_folder
from . import parsers


def add_arguments(command: argparse.ArgumentParser, *, policy: bool = True, shared: bool = True) -> None:
    """Declare data, policy, sampling and store of a command that writes rows.

    Args:
        policy: whether it samples one; otherwise it declares whom it asks itself.
        shared: argument of `add_sampling`.
    """
    command.add_argument("dataset", metavar="DATASET", help="Hub id, local file or folder of questions")
    command.add_argument("output", metavar="OUTPUT", help="parquet file for the rows, pictures included")
    if policy:
        add_policy(command)
    command.add_argument("--store", help="file that stores every answer; by default beside OUTPUT")
    command.add_argument("--split", default="train", help="split of DATASET to read")
    add_sampling(command, shared=shared)


def add_policy(command: argparse.ArgumentParser) -> None:
    """Declare the policy."""
    command.add_argument("--model", required=True, help="path or Hub id of the policy; with --server its name there")
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter for it")
    _add_server(command, "--server", "the policy's")
    template = 'arguments of the policy\'s chat template, as in training: {"enable_thinking": false}'
    command.add_argument("--chat-template-kwargs", type=parsers.json_object, metavar="JSON", help=template)


def add_party(command: argparse.ArgumentParser, party: str, help_text: str, *, required: bool = False) -> None:
    """Declare a second model, such as a judge, and its server.

    Args:
        party: what the arguments call it, such as "teacher".
        help_text: help text of the option that names the model.
        required: whether there has to be one.
    """
    option = _option(party)
    command.add_argument(option, help=help_text, required=required)
    _add_server(command, f"{option}-server", f"the {party.replace('_', ' ')}'s")


def _add_server(command: argparse.ArgumentParser, option: str, whose: str) -> None:
    server = (
        f"address of {whose} OpenAI-compatible server, as in http://127.0.0.1:8000/v1; repeat the option to share the "
        "work among several servers of this model; the run continues while one of them answers"
    )
    command.add_argument(option, action="append", type=parsers.address, metavar="URL", help=server)


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
    """The text that `--system-prompt` means to the command `name`; `None` for "null" and without the option."""
    from ...scripts.system_prompts import read_system_prompt

    with exit_on(name, OSError, ValueError):
        return read_system_prompt("--system-prompt", value)


def add_sampling(command: argparse.ArgumentParser, *, shared: bool = True) -> None:
    """Declare how the files of a data set are read, which questions are asked, and how answers are sampled and graded.

    Args:
        command: its description gets a word on killed runs, keys and GPUs.
        shared: whether machines can share the work; otherwise `--share` is not in the help, and the command refuses it.
    """
    module = command.prog.replace("mmreason", "trl_mmreason.cli.main")
    command.description = (
        f"{command.description} A killed run resumes. Servers get the key in OPENAI_API_KEY. Several GPUs: accelerate "
        f"launch -m {module} …"
    )
    add, columns = command.add_argument, 'our column names → the source\'s, as JSON: {"answer": "solution"}'
    add("--columns", type=parsers.json_object, help=columns)
    add("--image-root", help="base folder of relative picture paths; by default the file's")
    share = (
        "process only share K of M (0 ≤ K < M) and write only the store; `mmreason merge` joins the stores; for "
        "machines without a common disk"
    )
    share = share if shared else argparse.SUPPRESS
    add("--share", type=parsers.share_of_machines, metavar="K/M", help=share)
    add("--max-new-tokens", type=parsers.count, default=1024, help="token limit of each answer")
    add("--temperature", type=parsers.temperature, default=1.0, help="sampling temperature; 0 is greedy")
    add("--top-p", type=parsers.top_p, default=1.0, help="top-p of sampling; 1 keeps all tokens")
    tolerance = "relative tolerance of numbers: strict, 1e-6; lenient, 1e-2 where the right answer is a decimal"
    add("--tolerance", choices=("strict", "lenient"), default="strict", help=tolerance)
    add("--batch-size", type=parsers.count, default=32, help="answers sampled in one batch")
    add("--seed", type=int, default=0, help="seed of sampling")
    add("--retry-failed", action="store_true", help="repeat requests that failed in an earlier run")


def add_own_sampling(command: argparse.ArgumentParser, option: str, what: str, *, max_new_tokens: int) -> None:
    """Declare token limit and temperature for another party's samples; `own_sampling` reads them.

    Args:
        option: prefix of both options, such as "judge".
        what: name of the samples, for the help.
        max_new_tokens: default of the token limit.
    """
    limit, temperature = f"token limit of {what}", f"sampling temperature of {what}"
    command.add_argument(f"--{option}-max-new-tokens", type=parsers.count, default=max_new_tokens, help=limit)
    command.add_argument(f"--{option}-temperature", type=parsers.temperature, default=1.0, help=temperature)


DTYPE_CHOICES = ("auto", "float32", "bfloat16", "float16")
"""Data types of weights, as `--dtype` names them."""

QUESTIONS = "questions"
"""Stage of the store that keeps the system prompt, which the ids of the answers do not contain."""


def run_pipeline(
    name: str, arguments: argparse.Namespace, pipeline: Callable[..., Any], *, system_prompt: str | None = None
) -> None:
    """Load the rows, run the pipeline, write its rows and print its summary.

    Args:
        name: name of the command, for error messages.
        pipeline: called with the rows, the store and the settings; returns something with `rows`.
        system_prompt: put before every question.
    """
    from ...data.row_loading import load_rows
    from ...data.rows import DataError
    from ...generation.engine import UnsuitableEngine
    from ...jobs.store import SettingsChanged, Store, StoreError

    if not arguments.output.endswith(".parquet"):
        raise SystemExit(f"mmreason {name}: OUTPUT is {arguments.output!r}, expected a path ending in .parquet")
    settings = sampling_settings(arguments)
    store_path = arguments.store or f"{arguments.output}.sqlite"
    check_servers(name, arguments, store_path)
    reading = {key: getattr(arguments, key) for key in ("split", "columns", "image_root")}
    with exit_on(name, DataError, SettingsChanged, StoreError, UnsuitableEngine):
        loaded = load_rows(arguments.dataset, system_prompt=system_prompt, **reading)
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
    print(  # noqa: T201 - what the command is asked for
        f"share {first}/{machines}: {questions} questions are done\n{store}\nWhen all {machines} shares are done, "
        "merge their stores with `mmreason merge`, and run this command without --share on the merged store."
    )


def sampling_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Collect the settings of sampling, grading and storing, as pipelines name them."""
    from ...generation import SamplingParams
    from ...grading import Grader

    return {
        **({"n": arguments.n} if "n" in arguments else {}),
        "sampling_params": SamplingParams(arguments.max_new_tokens, arguments.temperature, arguments.top_p),
        "grader": Grader(tolerance=arguments.tolerance),
        **{name: getattr(arguments, name) for name in ("seed", "batch_size", "retry_failed")},
    }


def own_sampling(arguments: argparse.Namespace, option: str) -> Any:
    """Sampling parameters from the options that `add_own_sampling` declared."""
    from ...generation import SamplingParams

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
        arguments: arguments that may name a server of the policy, of parties of `add_party`, or of a process reward
            model.
        *stores: files with answers. Where all are there, nothing is asked: a finished run needs no server.
    """
    from ...generation.server_engine import ServerError

    if all(Path(store).exists() for store in stores):
        return
    served = [option for option, value in vars(arguments).items() if value and f"_{option}".endswith("_server")]
    with exit_on(name, ServerError):
        for option in served:
            load_engine(name, arguments, option.removesuffix("server").removesuffix("_") or None).check()
    if str(getattr(arguments, "process_reward", "")).startswith(("http://", "https://")):
        from ...chain_of_step.client import ProcessRewardClient, ProcessRewardServerError

        with exit_on(name, ProcessRewardServerError, ValueError):
            ProcessRewardClient(arguments.process_reward).settings  # noqa: B018 - asks the server


def load_engine(name: str, arguments: argparse.Namespace, party: str | None = None, **server_options: Any) -> Any:
    """Make the engine of a model behind servers, or of one in this process.

    Args:
        name: name of the command, for error messages.
        party: one that `add_party` declared; by default the policy. `None` is returned where its model is not named.
        **server_options: arguments of `ServerEngine`.
    """
    from ...generation.server_engine import ServerEngine
    from ...generation.transformers_engine import TransformersEngine

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
    return {key: value for key, value in vars(arguments).items() if key == "chat_template_kwargs" and value}


def check_folders(name: str, *paths: str | None) -> None:
    """Refuse paths of models or adapters that are folders without one; possible Hub ids pass."""
    with exit_on(name, NoSuchFolder):
        for path in paths:
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
