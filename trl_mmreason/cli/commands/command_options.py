"""Options shared by the commands that sample answers and write rows."""

from __future__ import annotations

import shlex
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...data.folders import atomic_path, check_model_folder
from ...scripts.refusals import WrongArgument
from ...scripts.system_prompts import parse_optional_text, read_system_prompt
from . import parsers


def add_arguments(command: ArgumentParser, *, policy: bool = True, shared: bool = True) -> None:
    """Declare data, policy (if it samples one), sampling and store of a command that writes rows."""
    command.add_argument("dataset", metavar="DATASET", help="Hub id, local file or folder of questions")
    command.add_argument("output", metavar="OUTPUT", help="parquet file for the rows, images included")
    if policy:
        add_policy(command)
    command.add_argument("--store", help="file that stores every answer; by default beside OUTPUT")
    command.add_argument("--split", default="train", help="split of DATASET to read")
    add_sampling(command, shared=shared)


def add_policy(command: ArgumentParser) -> None:
    command.add_argument("--model", required=True, help="path or Hub id of the policy; with --server its name there")
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter for it")
    _add_server(command, "--server", "the policy's")
    template = 'arguments of the policy\'s chat template, as in training: {"enable_thinking": false}'
    command.add_argument("--chat-template-kwargs", type=parsers.json_object, metavar="JSON", help=template)


def add_openai_only(command: ArgumentParser) -> None:
    """Declare that the policy's server is a hosted API; commands with other parties have the option for those."""
    only = "send --server only OpenAI's own fields, as hosted APIs refuse others"
    command.add_argument("--openai-only", dest="policy_openai_only", action="store_true", help=only)


def add_party(command: ArgumentParser, party: str, what: str | None = None, *, required: bool = False) -> None:
    """Declare a second model, which the arguments call `party`, such as "judge", and its server."""
    option = _option(party)
    what = what or f"path or Hub id of the {party}; with {option}-server its name there"
    command.add_argument(option, help=what, required=required)
    _add_server(command, f"{option}-server", f"the {party.replace('_', ' ')}'s")
    command.set_defaults(parties=(*(command.get_default("parties") or ()), party))


def _add_server(command: ArgumentParser, option: str, whose: str) -> None:
    server = (
        f"address of {whose} OpenAI-compatible server, as in http://127.0.0.1:8000/v1; repeat the option to share the "
        "work among several servers of this model; the run continues while one of them answers"
    )
    command.add_argument(option, action="append", type=parsers.address, metavar="URL", help=server)


def add_text(command: ArgumentParser, option: str, help_text: str) -> None:
    """Declare a text that may be in a file; `texts` reads it where it may be null."""
    command.add_argument(option, type=parsers.text_or_file, metavar="FILE|TEXT", help=help_text)


def texts(arguments: Namespace, *names: str) -> dict[str, str | None]:
    """The texts that were given, `None` for "null"; what calls for the others has defaults of its own."""
    given = {name: text for name in names if (text := getattr(arguments, name)) is not None}
    return {name: parse_optional_text(_option(name), text) for name, text in given.items()}


def text(arguments: Namespace, name: str, usual: str) -> str:
    """The text that was given; the usual one without it, and for "null"."""
    return texts(arguments, name).get(name) or usual


def add_system_prompt(command: ArgumentParser, otherwise: str = "null for none") -> None:
    """Declare the system prompt; `otherwise` ends the help text: the default, and who sees it."""
    prompt = f"system message: sophia for SOPHIA's slow-thinking prompt (Fig. A4), a file, or the text; {otherwise}"
    command.add_argument("--system-prompt", metavar="NAME|FILE|TEXT", help=prompt)


def system_prompt(arguments: Namespace, *, is_srpo: bool = False) -> str | None:
    """The text that `--system-prompt` means, `None` for "null"; without the option none, or SRPO's."""
    if is_srpo and arguments.system_prompt is None:
        from ...srpo.prompts import REFLECTION_PROMPT

        return REFLECTION_PROMPT
    return read_system_prompt("--system-prompt", arguments.system_prompt)


def add_reading(command: ArgumentParser) -> None:
    """Declare how the rows of a source are read."""
    add, columns = command.add_argument, 'our column names → the source\'s, as JSON: {"answer": "solution"}'
    add("--columns", type=parsers.json_object, help=columns)
    add("--image-root", help="base folder of relative image paths; by default the file's")
    frames = "read each video in the columns video and videos as N frames; without it rows with videos are refused"
    add("--video-frames", type=parsers.count, metavar="N", help=frames)
    add("--min-pixels", type=parsers.count, metavar="N", help="enlarge smaller images to N pixels, width × height")
    add("--max-pixels", type=parsers.count, metavar="N", help="shrink larger images to N pixels, width × height")


READING = ("columns", "image_root", "video_frames", "min_pixels", "max_pixels")
"""Arguments that `add_reading` declares, all of `load_rows`."""


def add_sampling(command: ArgumentParser, *, shared: bool = True) -> None:
    """Declare how data are read, shared, sampled and graded; the description gets a word on killed runs, keys and GPUs.

    Where machines cannot share the work, `--share` is not in the help, and the command refuses it.
    """
    module = command.prog.replace("mmreason", "trl_mmreason.cli.main")
    command.description = (
        f"{command.description} A killed run resumes. Servers get the key in OPENAI_API_KEY. Several GPUs: accelerate "
        f"launch -m {module} …"
    )
    add_reading(command)
    add = command.add_argument
    share = (
        "process only share K of M (0 ≤ K < M) and write only the store; `mmreason merge` joins the stores; for "
        "machines without a common disk"
    )
    add("--share", type=parsers.share_of_machines, metavar="K/M", help=share if shared else SUPPRESS)
    limit = "token limit of each answer; in training max_completion_length"
    add("--max-new-tokens", "--max-completion-length", type=parsers.count, default=1024, metavar="N", help=limit)
    add("--temperature", type=parsers.temperature, default=1.0, help="sampling temperature; 0 is greedy")
    add("--top-p", type=parsers.top_p, default=1.0, help="top-p of sampling; 1 keeps all tokens")
    tolerance = (
        "relative tolerance of numbers: strict, 1e-6; lenient, 1e-2 where the right answer is a decimal; or a share, "
        "such as 0.05 for charts"
    )
    add("--tolerance", type=parsers.tolerance, default="strict", help=tolerance)
    add("--batch-size", type=parsers.count, default=32, help="answers sampled in one batch")
    add("--seed", type=int, default=0, help="seed of sampling")
    add("--retry-failed", action="store_true", help="repeat requests that failed in an earlier run")


def add_own_sampling(command: ArgumentParser, option: str, what: str, *, max_new_tokens: int) -> None:
    """Declare token limit and temperature of another party's samples, as `--{option}-…`; `own_sampling` reads them."""
    limit, temperature = f"token limit of {what}", f"sampling temperature of {what}"
    command.add_argument(f"--{option}-max-new-tokens", type=parsers.count, default=max_new_tokens, help=limit)
    command.add_argument(f"--{option}-temperature", type=parsers.temperature, default=1.0, help=temperature)


def own_sampling(arguments: Namespace, option: str) -> Any:
    """Sampling parameters from the options that `add_own_sampling` declared."""
    from ...generation import SamplingParams

    return SamplingParams(getattr(arguments, f"{option}_max_new_tokens"), getattr(arguments, f"{option}_temperature"))


def sampling_settings(arguments: Namespace) -> dict[str, Any]:
    """Collect the settings of sampling, grading and storing, as pipelines name them."""
    from ...generation import SamplingParams
    from ...grading import Grader

    return {
        **({"n": arguments.n} if "n" in arguments else {}),
        "sampling_params": SamplingParams(arguments.max_new_tokens, arguments.temperature, arguments.top_p),
        "grader": Grader(tolerance=arguments.tolerance),
        **{name: getattr(arguments, name) for name in ("seed", "batch_size", "retry_failed")},
    }


def run_pipeline(
    arguments: Namespace, pipeline: Callable[..., Any], then: str, *, system_prompt: str | None = None
) -> None:
    """Load the rows, run the pipeline, write its rows and print its summary.

    Args:
        arguments: as `add_arguments` declares them.
        pipeline: called with the rows, the store and the settings; returns something with `rows`.
        then: what `mmreason` does with its rows, up to their file's name.
    """
    from ...data.row_loading import load_rows
    from ...jobs.store import Store

    if not arguments.output.endswith(".parquet"):
        raise WrongArgument(f"OUTPUT is {arguments.output!r}, expected a path ending in .parquet")
    if Path(arguments.output).is_dir():
        raise WrongArgument(f"OUTPUT {arguments.output} is a folder, expected a file to write")
    settings = sampling_settings(arguments)
    store_path = arguments.store or f"{arguments.output}.sqlite"
    check_servers(arguments, store_path)
    reading = {key: getattr(arguments, key) for key in ("split", *READING)}
    loaded = load_rows(arguments.dataset, system_prompt=system_prompt, **reading)
    rows = rows_of_share(arguments, loaded.dataset)
    with Store(store_path, elsewhere="another OUTPUT or --store") as store:
        result = pipeline(rows, store, settings)
    if not is_main_process():
        return
    if arguments.share:
        print_share(arguments, len(rows), store.path)
        return
    if not len(result.rows):
        raise WrongArgument(f"no row was made; OUTPUT is not written\n{result}")
    with atomic_path(arguments.output) as unfinished:
        result.rows.to_parquet(unfinished)
    next_command = f"Next: mmreason {then} {shlex.quote(arguments.output)}"
    print(f"{result}\n{arguments.output}\n{next_command}")  # noqa: T201 - what the command is asked for


def check_output(output: Path) -> None:
    """Refuse an --output that cannot be written, before anything takes time."""
    if not output.parent.is_dir():
        raise WrongArgument(f"--output {output}: there is no folder {output.parent}")
    if output.is_dir():
        raise WrongArgument(f"--output {output} is a folder, expected a file to write")


def is_main_process() -> bool:
    """Whether this process writes and prints the command's result: the first of those that share the work."""
    from ...generation.patience import rank_and_size

    return rank_and_size(None, None)[0] == 0


def rows_of_share(arguments: Namespace, rows: Any) -> Any:
    """The questions that this machine processes: all, or its --share."""
    if arguments.share is None:
        return rows
    first, machines = arguments.share
    if first >= len(rows):
        raise WrongArgument(f"--share {first}/{machines} of {len(rows)} questions is empty; use fewer machines")
    return rows.select(range(first, len(rows), machines))


def print_share(arguments: Namespace, questions: int, store: Any) -> None:
    """Print the finished share, and the next step."""
    first, machines = arguments.share
    print(  # noqa: T201 - what the command is asked for
        f"share {first}/{machines}: {questions} questions are done\n{store}\nWhen all {machines} shares are done, "
        "merge their stores with `mmreason merge`, and run this command without --share on the merged store."
    )


def check_servers(arguments: Namespace, *stores: str | Path) -> None:
    """Refuse options of servers that do not fit, and servers that do not answer, before anything is read or loaded.

    Where all of the `stores` exist, no server is asked: a finished run needs none.
    """
    parties = getattr(arguments, "parties", ())
    served = [party for party in parties if getattr(arguments, f"{party}_server")]
    for party in served:
        if not getattr(arguments, party):
            raise WrongArgument(f"{_option(party)}-server needs {_option(party)}, the model's name there")
    if getattr(arguments, "openai_only", False) and not served:
        expected = " or ".join(f"{_option(party)}-server" for party in parties)
        raise WrongArgument(f"--openai-only needs {expected}")
    if getattr(arguments, "policy_openai_only", False) and not arguments.server:
        raise WrongArgument("--openai-only needs --server")
    if all(Path(store).exists() for store in stores):
        return
    for party in ([None] if getattr(arguments, "server", None) else []) + served:
        load_engine(arguments, party).check()
    if str(getattr(arguments, "process_reward", "")).startswith(("http://", "https://")):
        from ...chain_of_step.process_reward_client import ProcessRewardClient

        ProcessRewardClient(arguments.process_reward).settings  # noqa: B018 - asks the server


def load_engine(arguments: Namespace, party: str | None = None, **server_options: Any) -> Any:
    """Make the engine of the policy, or of a party, behind servers or in this process; `None` without a model's name.

    `server_options` are arguments of `ServerEngine`.
    """
    from ...generation.server_engine import ServerEngine
    from ...generation.transformers_engine import TransformersEngine

    adapter = template = None
    if party is None:
        model, servers, adapter = arguments.model, arguments.server, arguments.adapter
        template = arguments.chat_template_kwargs
        body = {"chat_template_kwargs": template} if template else {}
        server_options["openai_only"] = getattr(arguments, "policy_openai_only", False)
        server_options["extra_body"] = {**server_options.get("extra_body", {}), **body}
    else:
        model, servers = getattr(arguments, party), getattr(arguments, f"{party}_server")
        server_options["openai_only"] = getattr(arguments, "openai_only", True)  # without the option it may be hosted
    if model is None:
        return None
    if servers:
        if adapter:
            raise WrongArgument("--adapter has no effect with --server, which loads its own; remove one of them")
        return ServerEngine(model, servers, **server_options)
    for path in filter(None, (model, adapter)):
        check_model_folder(path)
    size = arguments.batch_size
    return TransformersEngine(model, adapter=adapter, batch_size=size, chat_template_kwargs=template)


def _option(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"
