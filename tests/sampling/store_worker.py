"""What the tests of the store do in processes of their own: `python store_worker.py TASK PATH ARGUMENTS…`."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trl_mmreason.sampling.run import run
from trl_mmreason.sampling.store import Record, Store, StoreError

SETTINGS = {"model": "none"}
ROWS = [{"id": f"row-{number}"} for number in range(300)]
SAMPLES = 3
BATCH = 8


def payload(row, index):
    return {"text": f"answer {index} to {row['id']}", "tokens": len(row["id"]) * index}


def payloads(units):
    return [payload(*unit) for unit in units]


def begin(task, *arguments, launcher=()):
    """Start a task in a process of its own."""
    command = [sys.executable, *launcher, __file__, task, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    """What a task printed, when it is done."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-3000:]
    return output


def slow_run(path, log, seconds, rank=0, world_size=1):
    """Do all units, each in `seconds`, and log each that is begun."""

    def work(units):
        results = []
        for row, index in units:
            with open(log, "a") as file:
                file.write(f"{row['id']} {index}\n")
            time.sleep(float(seconds))
            results.append(payload(row, index))
        return results

    with Store(path) as store:
        place = {"rank": int(rank), "world_size": int(world_size)}
        summary = run(store, "answers", ROWS, work, settings=SETTINGS, n=SAMPLES, batch_size=BATCH, **place)
    sys.stdout.write(json.dumps(summary._asdict()))


def die_at_commit(path):
    """Save one batch; die in the transaction of the second."""
    store = Store(path)
    store.open_stage("answers", SETTINGS)
    store.save("answers", [Record("row-0", index, "done", {}) for index in range(3)])
    connection = store._database._connected()
    connection.set_trace_callback(lambda sql: os.kill(os.getpid(), signal.SIGKILL) if sql == "COMMIT" else None)
    store.save("answers", [Record("row-1", index, "done", {}) for index in range(3)])


def save_one(path, name):
    """Open the store and save one unit; several processes do so at the same time."""
    with Store(path) as store:
        store.open_stage("answers", SETTINGS)
        store.save("answers", [Record(name, 0, "done", {"by": name})])


def fill_the_disk(path):
    """Save until no file may grow any more; tell what came of it."""
    store = Store(path)
    store.open_stage("answers", SETTINGS)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    for index in range(1000):
        try:
            store.save("answers", [Record("row", index, "done", {"text": "x" * 10_000})])
        except StoreError as error:
            sys.stdout.write(json.dumps({"saved": index, "error": str(error)}))
            return


def be_refused():
    """Open a store in a file, and one in a folder, that may only be read; tell both errors."""
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.sqlite"
        Store(path).close()
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        if os.geteuid() == 0:
            os.seteuid(65534)  # root may write everywhere
        for refused in (path, Path(folder) / "new.sqlite", Path(folder) / "new" / "answers.sqlite"):
            try:
                Store(refused)
            except StoreError as error:
                errors.append(str(error))
        if os.getuid() == 0:
            os.seteuid(0)
        Path(folder).chmod(0o755)
    sys.stdout.write(json.dumps(errors))


def sharded_run(path):
    """Do this process's share under a launcher, which accelerate knows."""
    from accelerate import PartialState

    state = PartialState(cpu=True)
    assert os.environ.pop("WORLD_SIZE") == str(state.num_processes)  # the state is asked, not the environment
    with Store(path) as store:
        summary = run(store, "answers", ROWS, payloads, settings=SETTINGS, n=SAMPLES)
    told = {"world_size": state.num_processes, **summary._asdict()}
    Path(f"{path}.{state.process_index}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    tasks = (slow_run, die_at_commit, save_one, fill_the_disk, be_refused, sharded_run)
    {function.__name__: function for function in tasks}[task](*arguments)
