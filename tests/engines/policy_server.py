"""A vLLM server for tests. Weights travel over gloo, as NCCL needs a GPU for the server and one for the trainer."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
from processes import free_port

from trl_mmreason.compat import vllm as corrections

os.environ |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_API_KEY": "a key"}
if not torch.cuda.is_available():
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # vLLM reads it; compiling takes half a minute
SETTINGS = ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "12", "--enable-scale-out"]
SETTINGS += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
SETTINGS += ["--worker-extension-cls", "vllm_worker.Weights", "--weight-transfer-config", '{"backend": "gloo"}']


class CountingClient(corrections.ImageClient):
    """Counts the rows whose images it sends."""

    rows_sent = 0

    def _post(self, url, **request):
        CountingClient.rows_sent += url.endswith("/render")
        return super()._post(url, **request)


corrections.ImageClient = CountingClient


def end_with_parent():
    """Let the server end when this script is killed, as `launch` does with one that takes too long."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


class Server:
    """`vllm serve` of a folder, which is stopped in the end, with the processes that it started.

    Args:
        folder: of the model.
        log: file for what it says.
        core: of the machine, on which alone it runs; `None` for any.
        *settings: further arguments.
    """

    def __init__(self, folder, log, *settings, core=None):
        self.port, self.log, self.core = free_port(), log, core
        serve = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", folder]
        self.command = [*serve, "--host", "127.0.0.1", "--port", str(self.port), *SETTINGS, *settings]
        self.process = None

    def __enter__(self):
        """Start it, and give its address."""
        self.start()
        return f"http://127.0.0.1:{self.port}"

    def __exit__(self, *_):
        self.end(signal.SIGTERM)

    def start(self):
        """Start it; it answers some time later."""
        here = str(Path(__file__).parent)  # where the worker's extension is
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}

        def prepare():
            end_with_parent()
            if self.core is not None:
                os.sched_setaffinity(0, {self.core})

        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=prepare,
            )

    def end(self, by=signal.SIGKILL):
        """End it, at once or properly."""
        os.killpg(self.process.pid, by)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
