"""`mmreason search`: what more samples and a process reward model bring at inference."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from . import options


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "search",
        help="compare best-of-n and step-level beam search with a process reward model",
        description="Sample and score paths of a Chain-of-Step policy, search answers step by step, and write the "
        "curves of pass@n, self-consistency, best-of-n and step-level beam search (Chain-of-Step, section 4.3). A "
        "killed run goes on where it stopped. A server gets the key in OPENAI_API_KEY. Several GPUs: accelerate launch "
        "-m trl_mmreason.cli search …",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    options.add_arguments(command, output="folder for scaling.txt, scaling.png and scaling.json")
    command.add_argument(
        "--process-reward",
        required=True,
        help="path or Hub id of the process reward model, or the URL of `mmreason serve-prm`",
    )
    command.add_argument("--n", type=options.count, default=64, help="paths a question; curves have 1, 2, 4 … n")
    command.add_argument("--step-weight", type=options.share, default=0.2, help="of the steps in a path's score")
    command.add_argument("--max-steps", type=options.count, default=16, help="steps that a search may keep")
    command.add_argument("--system-prompt", help="put before every question, as the policy was trained with it")
    command.set_defaults(run=_search, split="test", top_p=0.95)  # the paper's top-p


def _search(arguments: argparse.Namespace) -> None:
    from ..chain_of_step.client import ProcessRewardServerError
    from ..chain_of_step.scaling import inference_scaling
    from ..chain_of_step.scaling_report import format_scaling, write_report
    from ..data import load_rows
    from ..rows import DataError
    from ..sampling.server_engine import ServerError
    from ..sampling.store import SettingsChanged, Store, StoreError

    folder = Path(arguments.output)
    settings = _settings(arguments)
    with options.exit_on("search", DataError, SettingsChanged, StoreError, ServerError, ProcessRewardServerError):
        loaded = load_rows(
            arguments.dataset,
            split=arguments.split,
            columns=arguments.columns,
            image_root=arguments.image_root,
            system_prompt=arguments.system_prompt,
        )
        policy, process_reward = _policy(arguments), _process_reward(arguments)
        with Store(arguments.store or folder / "search.sqlite") as store:
            store.open_stage(options.QUESTIONS, {"system_prompt": arguments.system_prompt})
            rows = options.rows_of_share("search", arguments, loaded.dataset)
            scaling = inference_scaling(rows, policy, process_reward, store, **settings)
    if not options.is_main_process():
        return
    if arguments.share:
        options.print_share(arguments, len(rows), store.path)
        return
    write_report(scaling, folder)
    print(f"{format_scaling(scaling)}\n\n{folder}")  # noqa: T201 - what the command is asked for


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    from ..chain_of_step.search import part_decoding

    settings = options.sampling_settings("search", arguments)
    with options.exit_on("search", ValueError):  # refuses before models are loaded
        part_decoding(settings["decoding"], n=arguments.n, max_steps=arguments.max_steps)
    return {**settings, "step_weight": arguments.step_weight, "max_steps": arguments.max_steps}


def _policy(arguments: argparse.Namespace) -> Any:
    return options.load_engine(
        "search",
        arguments.model,
        arguments.server,
        adapter=arguments.adapter,
        batch_size=arguments.batch_size,
        extra_body={"return_token_ids": True},  # tokens are counted, which servers tell only when asked
    )


def _process_reward(arguments: argparse.Namespace) -> Any:
    from ..chain_of_step.client import process_reward_from

    with options.exit_on("search", ValueError, OSError):
        return process_reward_from(arguments.process_reward)
