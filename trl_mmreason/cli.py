"""The command `mmreason`. What a sub-command needs is imported when it runs, so that `mmreason --help` answers at once.

A sub-command is a function that declares its arguments and one that runs it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def main(argv: Sequence[str] | None = None) -> None:
    """Run a sub-command."""
    parser = argparse.ArgumentParser(prog="mmreason", description="Teach vision-language models to reason.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_prefilter(commands)
    arguments = parser.parse_args(argv)
    arguments.run(arguments)


def _add_serve(commands: Any) -> None:
    command = commands.add_parser(
        "serve",
        help="serve a model behind OpenAI's chat API",
        description="Serve a vision-language model behind OpenAI's chat API, at http://HOST:PORT/v1.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("model", help="path or Hub id of a checkpoint; clients ask for it by this name")
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter to put on it")
    command.add_argument("--dtype", default="auto", help="of the weights; auto as they are saved")
    command.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; whoever reaches it may use the model without a key"
    )
    command.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    command.add_argument("--batch-size", type=int, default=32, help="answers in one batch")
    command.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    try:
        from .sampling.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise SystemExit(
            f'mmreason serve: the package {error.name} is missing. Install it: pip install "trl-mmreason[server]"'
        ) from error
    try:
        serve(
            arguments.model,
            adapter=arguments.adapter,
            dtype=arguments.dtype,
            host=arguments.host,
            port=arguments.port,
            batch_size=arguments.batch_size,
        )
    except OSError as error:  # there is no such model, or its files cannot be read
        raise SystemExit(f"mmreason serve: {error}") from error


def _add_prefilter(commands: Any) -> None:
    command = commands.add_parser(
        "prefilter",
        help="keep the questions that have something to teach a policy",
        description="Let a policy answer each question several times and keep those that are neither too easy nor too "
        "hard for it. A killed run goes on where it stopped. Several GPUs: accelerate launch -m trl_mmreason.cli "
        "prefilter …",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("dataset", help="Hub id, local file or folder of questions")
    command.add_argument("output", help="parquet file for the questions that are kept, pictures included")
    command.add_argument("--model", required=True, help="path or Hub id of the policy; with --server its name there")
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter to put on it")
    command.add_argument("--server", help="URL of an OpenAI-compatible server, as in http://127.0.0.1:8000/v1")
    command.add_argument(
        "--rule",
        choices=("adapo", "share"),
        default="adapo",
        help="adapo: two turns each, drop a question if all are right twice or all wrong twice; share: one turn each, "
        "keep it if the share of right answers lies between --low and --high",
    )
    command.add_argument("--low", type=float, default=0.1, help="SRPO: 0.1, SOPHIA's GRPO: 0.4")
    command.add_argument("--high", type=float, default=0.9, help="SRPO: 0.9, SOPHIA's GRPO: 0.6")
    command.add_argument("--n", type=int, default=8, help="answers, or pairs of answers, a question")
    command.add_argument("--store", help="file that keeps every answer; OUTPUT.sqlite by default")
    command.add_argument("--split", default="train", help="of the data set")
    command.add_argument("--columns", help='our column names to the source\'s, as JSON: {"answer": "solution"}')
    command.add_argument("--image-root", help="folder of relative picture paths")
    command.add_argument("--system-prompt", help="put before every question")
    command.add_argument("--max-new-tokens", type=int, default=1024, help="bound of each answer")
    command.add_argument("--temperature", type=float, default=1.0, help="of sampling")
    command.add_argument("--top-p", type=float, default=1.0, help="of sampling")
    command.add_argument("--tolerance", choices=("strict", "lenient"), default="strict", help="of the grader")
    command.add_argument("--batch-size", type=int, default=32, help="answers in one batch")
    command.add_argument("--seed", type=int, default=0, help="other seeds draw other answers")
    command.set_defaults(run=_prefilter)


def _prefilter(arguments: argparse.Namespace) -> None:
    from .rows import DataError
    from .sampling.store import SettingsChanged, StoreError

    try:
        _filter(arguments)
    except (DataError, SettingsChanged, StoreError) as error:  # their messages name the mend
        raise SystemExit(f"mmreason prefilter: {error}") from error


def _filter(arguments: argparse.Namespace) -> None:
    import json
    import os

    from .data import load_rows
    from .grading import Grader
    from .sampling import Decoding
    from .sampling.store import Store

    if not arguments.output.endswith(".parquet"):
        raise SystemExit(f"mmreason prefilter: OUTPUT is {arguments.output!r}, expected a path ending in .parquet")
    loaded = load_rows(
        arguments.dataset,
        split=arguments.split,
        columns=json.loads(arguments.columns) if arguments.columns else None,
        image_root=arguments.image_root,
        system_prompt=arguments.system_prompt,
    )
    settings = {
        "n": arguments.n,
        "decoding": Decoding(arguments.max_new_tokens, arguments.temperature, arguments.top_p),
        "grader": Grader(tolerance=arguments.tolerance),
        "seed": arguments.seed,
        "batch_size": arguments.batch_size,
    }
    with Store(arguments.store or f"{arguments.output}.sqlite") as store:
        filtered = _rule(arguments)(loaded.dataset, _engine(arguments), store, **settings)
    if int(os.environ.get("RANK", "0")) == 0:
        filtered.rows.to_parquet(arguments.output)
        print(f"{filtered}\n{arguments.output}")  # noqa: T201 - what the command is asked for


def _rule(arguments: argparse.Namespace) -> Any:
    from functools import partial

    if arguments.rule == "adapo":
        from .adapo.prefilter import prefilter

        return prefilter
    from .sampling.difficulty import difficulty_filter

    return partial(difficulty_filter, low=arguments.low, high=arguments.high)


def _engine(arguments: argparse.Namespace) -> Any:
    if arguments.server:
        from .sampling.server_engine import ServerEngine

        return ServerEngine(arguments.model, arguments.server)
    from .sampling.transformers_engine import TransformersEngine

    return TransformersEngine(arguments.model, adapter=arguments.adapter, batch_size=arguments.batch_size)


if __name__ == "__main__":
    main()
