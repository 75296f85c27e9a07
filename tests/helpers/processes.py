"""Scripts of the tests in processes of their own, as torchrun starts them, but without importing everything each time.

`multiprocessing`'s fork server imports the package once. What it forks is fresh apart from that: it has not run
anything, so that no thread, no model and no process group of the tests is in it.
"""

import gc
import importlib
import inspect
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

import datasets
import torch

TESTS = Path(__file__).parents[1]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "trl_mmreason.adapo.trainer",
        "trl_mmreason.chain_of_step.dpo",
        "trl_mmreason.chain_of_step.grpo",
        "trl_mmreason.chain_of_step.process_reward_trainer",
        "trl_mmreason.miniature.models",
        "trl_mmreason.self_evolution.trainer",
        "trl_mmreason.sophia.trainer",
        "trl_mmreason.srpo.sft",
        "trl_mmreason.srpo.trainer",
        "trl_mmreason.scripts.stages",
        "pytest",  # which modules of tests import
        "deepspeed",  # where it is installed
    ]
)


def launch(script, processes, *arguments, seconds=600, environment=None):
    """Run a script of `tests/` in so many processes of one process group; gives what they printed.

    Args:
        seconds: after which they are killed, and the call fails: processes that wait for each other do so for ever.
        environment: variables set for the processes.
    """
    with tempfile.TemporaryDirectory() as folder:
        script_run = partial(_run_script, str(TESTS / script), [*map(str, arguments)])
        _launch(script_run, processes, folder, seconds, environment)
        return "".join(path.read_text() for path in sorted(Path(folder).glob("*.out")))


def outcomes(function, processes, *arguments):
    """What a function of a test's module, which is imported anew, returns in each of so many processes of one group."""
    with tempfile.TemporaryDirectory() as folder:
        call = partial(_call, inspect.getfile(function), function.__name__, arguments, folder)
        _launch(call, processes, folder)
        return [torch.load(f"{folder}/{rank}.pt") for rank in range(processes)]


def one_and_two(function, model, folder, rows, *arguments):
    """What `function(model, folder, rows a process, …)` returns in one process, and in each of two."""
    (alone,) = outcomes(function, 1, model, folder / "one", rows, *arguments)
    pair = outcomes(function, 2, model, folder / "two", rows // 2, *arguments)
    assert [part["world_size"] for part in (alone, *pair)] == [1, 2, 2]
    return alone, pair


def _launch(work, processes, folder, seconds=600, environment=None):
    """Do the work in each process; what they print is written to the folder."""
    group = {}
    if processes > 1:
        # The store is this process's, as torchrun's is: it has its port at once, and outlives whoever ends first.
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        group = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        group |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    started = []
    for rank in range(processes):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if group else {}
        place = {**group, **place, **(environment or {})}
        started.append(_FORKS.Process(target=_run, args=(work, place, f"{folder}/{rank}")))
        started[-1].start()
    running, deadline = started, time.monotonic() + seconds
    while running and not any(process.exitcode for process in started):  # one that fails leaves others waiting
        if not wait([process.sentinel for process in running], timeout=max(deadline - time.monotonic(), 0)):
            break
        running = [process for process in running if process.is_alive()]
    for process in running:
        process.kill()
        process.join()
    errors = "".join(path.read_text() for path in sorted(Path(folder).glob("*.err")))
    assert [process.exitcode for process in started] == [0] * processes, errors[-6000:]


def run(script, *arguments, cwd, environment=None, seconds=600):
    """Run a script as `python SCRIPT …` in the folder `cwd`; returns what `subprocess.run` returns, output as strings.

    Args:
        environment: variables set for the process.
        seconds: after which it is killed, and its exit code says so.
    """
    arguments = [*map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        log, work = f"{folder}/run", partial(_run_script, str(script), arguments)
        process = _FORKS.Process(target=_run, args=(work, environment or {}, log, str(cwd)))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        output, errors = (Path(log + kind).read_text() for kind in (".out", ".err"))
    return subprocess.CompletedProcess([str(script), *arguments], process.exitcode, output, errors)


def begin(work, *arguments):
    """Start a script of tests/, or a function as for `outcomes`, in a process of its own; what it says is lost."""
    if callable(work):
        started = partial(_call, inspect.getfile(work), work.__name__, arguments)
    else:
        started = partial(_run_script, str(TESTS / work), [*map(str, arguments)])
    process = _FORKS.Process(target=_run, args=(started, {}, os.devnull))
    process.start()
    return process


def _run(work, environment, log, cwd="."):
    for number, kind in ((1, ".out"), (2, ".err")):
        with open(log if log == os.devnull else f"{log}{kind}", "wb") as file:
            os.dup2(file.fileno(), number)
    gc.freeze()  # as in conftest.py
    # Children of a fork server would begin one of their own for each data loader, which imports everything again.
    multiprocessing.set_start_method(None, force=True)
    os.chdir(cwd)
    os.environ.update(environment, OMP_NUM_THREADS="1")
    if "HF_DATASETS_CACHE" in environment:  # datasets, which the fork server imported, has read it already
        datasets.config.HF_DATASETS_CACHE = Path(environment["HF_DATASETS_CACHE"])
    work()


def _run_script(script, arguments):
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


def _call(file, name, arguments, folder=None):
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(file).parent))
    module = importlib.import_module(Path(file).stem)
    result = getattr(module, name)(*arguments)
    if folder is not None:
        torch.save(result, f"{folder}/{os.environ.get('RANK', '0')}.pt")


@contextmanager
def serving(command, log, ready, environment=None, seconds=300):
    """Run a server with the processes that it starts; gives its base URL as soon as the path `ready` answers.

    Args:
        command: without `--port`, which is added.
        log: file for what it says.
    """
    port = free_port()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, command), "--port", str(port)], env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            deadline = time.monotonic() + seconds
            while not answers(f"http://127.0.0.1:{port}{ready}"):
                assert process.poll() is None, log.read_text()[-6000:]
                assert time.monotonic() < deadline, log.read_text()[-6000:]
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(address):
    try:
        return urllib.request.urlopen(address, timeout=5).status == 200
    except OSError:
        return False


def free_port():
    """A port of loopback that nobody uses at this moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
