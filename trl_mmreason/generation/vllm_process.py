"""vLLM in a process of its own: it has this process's GPU while it samples, and leaves nothing there when it is closed.

A vLLM that begins inside a training process finds what accelerate, torchrun and a colocated vLLM have left there: their
process group, ranks and switches. In each of several processes it takes the first GPU, and its memory stays. Here a
fresh interpreter runs `VLLMEngine`; requests and answers pass through a socket. It ends when this process does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch

from .engine import Failure, Request, Sample, SamplingParams
from .loading import ENCODING_ERRORS, load_processor, unencodable
from .patience import patient_state
from .vllm_engine import VLLMEngine, check_whole_model, missing_vllm, vllm_settings

_LAUNCHERS = (
    *("ACCELERATE_", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("RANK", "ROLE_", "TORCHELASTIC_", "WORLD_SIZE"),
)
"""Beginnings of the variables by which torchrun and accelerate tell a process that it is one of several."""

_SECONDS_TO_END = 60


class VLLMProcess:
    """Engine on a vLLM that begins with the first request, in a process of its own.

    Under several processes each has one, on its GPU.

    Args:
        model: a path or Hub id. An adapter has to be merged into its base model first.
        chat_template_kwargs: handed to the chat template.
        **llm_kwargs: arguments of `VLLMEngine`.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: `model` is an adapter; or several GPUs are asked for by one of several processes.
    """

    def __init__(self, model: str, *, chat_template_kwargs: dict[str, Any] | None = None, **llm_kwargs: Any) -> None:
        if find_spec("vllm") is None:
            raise missing_vllm("VLLMProcess", "it is not installed")
        check_whole_model("VLLMProcess", model, llm_kwargs)
        state = patient_state()
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            if state.num_processes > 1 and (size := llm_kwargs.get(name, 1)) > 1:
                raise ValueError(
                    f"VLLMProcess: got {name}={size} in each of {state.num_processes} processes, expected 1, as each "
                    "has one GPU. Fix: begin one process (accelerate launch --num_processes 1), or serve the model "
                    "with `vllm serve` and ask it with ServerEngine (--server)."
                )
        self.model = model
        self._arguments = {"chat_template_kwargs": chat_template_kwargs, **llm_kwargs}
        trusted = {name: llm_kwargs[name] for name in ("revision", "trust_remote_code") if name in llm_kwargs}
        processing_class = load_processor(model, **trusted)
        self.settings = vllm_settings(model, processing_class, chat_template_kwargs or {}, llm_kwargs)
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Sample n answers to each request, in order; see `Engine`.

        Raises:
            RuntimeError: vLLM did not begin, or ended; its own output says why.
        """
        if self._connection is None:
            self._begin()
        unreadable = [_unreadable(request) for request in requests]
        readable = [request for request, failure in zip(requests, unreadable, strict=True) if failure is None]
        answers = iter(self._ask((readable, sampling_params)))
        return [next(answers) if failure is None else failure for failure in unreadable]

    def close(self) -> None:
        """End vLLM, whose memory is free then; another request begins it again."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            try:
                self._process.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._connection = self._process = None

    def _begin(self) -> None:
        torch.cuda.empty_cache()  # what torch keeps for later would be missing from vLLM's share
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment_of_one())
        self._connection = ours
        self._ask((self.model, self._arguments))

    def _ask(self, message: Any) -> Any:
        assert self._connection is not None  # `_begin` has made it
        try:
            self._connection.send(message)
            reply = self._connection.recv()
        except (EOFError, ConnectionError):
            self.close()
            raise RuntimeError(f"VLLMProcess: vLLM with {self.model} ended. Its own output above says why.") from None
        except BaseException:  # interrupted, as from a keyboard: the next request would get this one's reply
            self.close()
            raise
        if isinstance(reply, BaseException):
            self.close()
            raise reply
        return reply


def environment_of_one() -> dict[str, str]:
    """The environment of a process that is one alone, and sees this process's GPU alone if this is one of several."""
    state = patient_state()
    own = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    if state.num_processes > 1 and state.device.type == "cuda":
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            if visible := own.get(name):
                own[name] = visible.split(",")[state.device.index]
        own.setdefault("CUDA_VISIBLE_DEVICES", str(state.device.index))
    return own


def _unreadable(request: Request) -> Failure | None:
    """Why a request cannot be sent; a picture that cannot be read is its own request's failure."""
    try:
        for image in request.images:
            image.load()
    except ENCODING_ERRORS as error:
        return unencodable(error)
    return None


def serve(connection: Connection) -> None:
    """Load the engine that the first message names, and answer the others until the other end is closed."""
    engine = None
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        reply: Any = None
        try:
            if engine is None:
                model, arguments = message
                engine = VLLMEngine(model, **arguments)
            else:
                reply = engine.sample(*message)
        except Exception as error:  # noqa: BLE001 - it is raised at the other end, where its class may not be known
            traceback.print_exc()
            reply = RuntimeError(f"{type(error).__name__}: {error}")
        connection.send(reply)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
