"""Serve a process reward model.

Serve a process reward model of Chain-of-Step: POST http://HOST:PORT/score.

example: mmreason serve-prm runs/chain_of_step/prm/model --port 8001
"""

from __future__ import annotations

import socket
from argparse import ArgumentParser, Namespace

from ...data.files import check_model_folder
from ...scripts.refusals import WrongArgument
from . import command_options as options
from . import parsers


def add(command: ArgumentParser) -> None:
    add, dtype = command.add_argument, "dtype of the weights; auto keeps the saved one"
    add("model", help="path or Hub id of a checkpoint that ProcessRewardTrainer made")
    add("--adapter", help="path or Hub id of a LoRA adapter for it")
    add("--dtype", choices=options.DTYPE_CHOICES, default="auto", help=dtype)
    add("--host", default="127.0.0.1", help="address to listen on; there is no authentication")
    add("--port", type=parsers.port, default=8001, help="port to listen on; 0 takes a free one")
    add("--batch-size", type=parsers.count, default=8, help="rows that go through the model at a time")
    waiting = "rows scored or waiting; further requests get status 503 with Retry-After"
    add("--max-waiting", type=parsers.count, default=1024, help=waiting)


def run(arguments: Namespace) -> None:
    try:
        from ...chain_of_step.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise WrongArgument(
            f'the package {error.name} is missing. Install it: pip install "trl-mmreason[server]"'
        ) from error
    for path in filter(None, (arguments.model, arguments.adapter)):
        check_model_folder(path)
    try:
        socket.create_server((arguments.host, arguments.port)).close()
    except OSError as error:  # a port in use ends the command before anything is loaded
        raise WrongArgument(str(error)) from error
    names = ("adapter", "dtype", "host", "port", "batch_size", "max_waiting")
    serve(arguments.model, **{name: getattr(arguments, name) for name in names})
