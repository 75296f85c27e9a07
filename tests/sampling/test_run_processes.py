"""A run that is killed, or shared by several processes, ends as one that is not."""

import json
import random
import signal
import time
from collections import Counter

import pytest
from store_worker import BATCH, ROWS, SAMPLES, SETTINGS, begin, finish, payload, payloads

from trl_mmreason.sampling.run import Summary, run
from trl_mmreason.sampling.store import Record, Store

pytestmark = pytest.mark.full

STAGE = "answers"
WHOLE = sorted(Record(row["id"], index, "done", payload(row, index)) for row in ROWS for index in range(SAMPLES))


def summary_of(process):
    return Summary(**json.loads(finish(process)))


def records(path):
    with Store(path) as store:
        return list(store.records(STAGE))


def test_a_run_killed_20_times_ends_as_one_that_was_not(tmp_path):
    moments = random.Random(0)
    path, log = tmp_path / "killed.sqlite", tmp_path / "log.txt"
    log.touch()
    for kill in range(20):
        begun = log.stat().st_size
        process = begin("slow_run", path, log, 0.003)
        while kill % 4 and log.stat().st_size == begun:  # every fourth is killed at any moment, also before any work
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.12))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    with Store(path) as store:
        finished = len(store.finished(STAGE))
    assert 0 < finished < len(WHOLE)
    assert summary_of(begin("slow_run", path, log, 0)) == Summary(len(WHOLE), len(WHOLE) - finished, finished, 0, 0)
    assert records(path) == WHOLE

    undisturbed = tmp_path / "undisturbed.sqlite"
    finish(begin("slow_run", undisturbed, tmp_path / "other.txt", 0))
    assert records(undisturbed) == records(path)

    times = Counter(log.read_text().splitlines())
    assert len(times) == len(WHOLE)
    assert times.total() - len(WHOLE) <= 20 * BATCH  # only batches in flight were done again


def test_two_ranks_share_a_file(tmp_path):
    path = tmp_path / "shared.sqlite"
    logs = [tmp_path / "0.txt", tmp_path / "1.txt"]
    pair = [begin("slow_run", path, log, 0.001, rank, 2) for rank, log in enumerate(logs)]
    assert [summary_of(process) for process in pair] == [Summary(len(WHOLE) // 2, len(WHOLE) // 2, 0, 0, 0)] * 2
    assert records(path) == WHOLE
    first, second = (set(log.read_text().splitlines()) for log in logs)
    assert not first & second
    assert {line.split()[0] for line in first} == {row["id"] for row in ROWS[::2]}  # all samples of every second row


def test_two_processes_that_do_the_same_units_give_each_once(tmp_path):
    path = tmp_path / "same.sqlite"
    pair = [begin("slow_run", path, tmp_path / f"{number}.txt", 0.001) for number in range(2)]
    assert [summary_of(process).failed for process in pair] == [0, 0]
    assert records(path) == WHOLE


def test_two_launched_processes_give_the_rows_of_one(tmp_path):
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
    launcher += ["--rdzv-endpoint=localhost:0"]
    finish(begin("sharded_run", tmp_path / "two", launcher=launcher))
    half = {"world_size": 2, "total": len(WHOLE) // 2, "done": len(WHOLE) // 2}
    for rank in range(2):
        assert json.loads((tmp_path / f"two.{rank}.json").read_text()).items() >= half.items()
    with Store(tmp_path / "one") as store:
        run(store, STAGE, ROWS, payloads, settings=SETTINGS, n=SAMPLES)
    assert records(tmp_path / "two") == records(tmp_path / "one") == WHOLE
