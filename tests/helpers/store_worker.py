"""What the tests of the store do in processes of their own."""

import os
import resource
import signal
import tempfile
import time
from pathlib import Path

import torch

from trl_mmreason.generation.patience import patient_state
from trl_mmreason.jobs.run import run
from trl_mmreason.jobs.store import Record, Store, StoreError

SETTINGS = {"model": "none"}
ROWS = [{"id": f"row-{number}"} for number in range(300)]
SAMPLES = 3
BATCH = 8


def payload(row, index):
    return {"text": f"answer {index} to {row['id']}", "tokens": len(row["id"]) * index}


def payloads(units):
    return [payload(*unit) for unit in units]


def slow_run(path, log, seconds, rank=0, world_size=1):
    """Do all units, each in `seconds`, and log each that is begun."""

    def work(units):
        results = []
        for row, index in units:
            with open(log, "a") as file:
                file.write(f"{row['id']} {index}\n")
            time.sleep(seconds)
            results.append(payload(row, index))
        return results

    with Store(path) as store:
        place = {"rank": rank, "world_size": world_size}
        return run(store, "answers", ROWS, work, settings=SETTINGS, n=SAMPLES, batch_size=BATCH, **place)._asdict()


def slow_run_in_a_group(path, folder, world_size):
    """Do the share of one of `world_size` processes, of which several of the group may be the same one."""
    rank = int(os.environ["RANK"])
    return slow_run(path, folder / f"{rank}.txt", 0.001, rank % world_size, world_size)


def die_at_commit(path):
    """Save one batch; die in the transaction of the second."""
    store = Store(path)
    store.open_stage("answers", SETTINGS)
    store.save("answers", [Record("row-0", index, "done", {}) for index in range(3)])
    connection = store._database._connection
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
            return {"saved": index, "error": str(error)}
    return None


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
    return errors


def sharded_run(path):
    """Do this process's share under a launcher, which accelerate knows."""
    from accelerate import PartialState

    state = PartialState(cpu=True)
    assert os.environ.pop("WORLD_SIZE") == str(state.num_processes)  # the state is asked, not the environment
    with Store(path) as store:
        summary = run(store, "answers", ROWS, payloads, settings=SETTINGS, n=SAMPLES)
    return {"world_size": state.num_processes, **summary._asdict()}


def patience():
    """This process and the group's size, and the days that it waits for another."""
    state = patient_state()
    waits = torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout.days
    return state.process_index, state.num_processes, waits
