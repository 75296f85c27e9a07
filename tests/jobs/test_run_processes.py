"""A run that is killed, or shared by several processes, ends as one that is not."""

import random
import signal
import time
from collections import Counter

import pytest
from processes import begin, outcomes
from store_worker import (
    BATCH,
    ROWS,
    SAMPLES,
    SETTINGS,
    patience,
    payload,
    payloads,
    sharded_run,
    slow_run,
    slow_run_in_a_group,
)

from trl_mmreason.jobs.run import Summary, run
from trl_mmreason.jobs.store import Record, Store

pytestmark = pytest.mark.full

STAGE = "answers"
WHOLE = sorted(Record(row["id"], index, "done", payload(row, index)) for row in ROWS for index in range(SAMPLES))


def records(path):
    with Store(path) as store:
        return list(store.records(STAGE))


def test_a_run_killed_20_times_ends_as_one_that_was_not(tmp_path):
    moments = random.Random(0)
    path, log = tmp_path / "killed.sqlite", tmp_path / "log.txt"
    log.touch()
    for kill in range(20):
        begun = log.stat().st_size
        process = begin(slow_run, path, log, 0.003)
        while kill % 4 and log.stat().st_size == begun:  # every fourth is killed at any moment, also before any work
            assert process.is_alive()
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.12))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    with Store(path) as store:
        finished = len(store.finished(STAGE))
    assert 0 < finished < len(WHOLE)
    (told,) = outcomes(slow_run, 1, path, log, 0)
    assert Summary(**told) == Summary(len(WHOLE), len(WHOLE) - finished, finished, 0, 0)
    assert records(path) == WHOLE

    undisturbed = tmp_path / "undisturbed.sqlite"
    outcomes(slow_run, 1, undisturbed, tmp_path / "other.txt", 0)
    assert records(undisturbed) == records(path)

    times = Counter(log.read_text().splitlines())
    assert len(times) == len(WHOLE)
    assert times.total() - len(WHOLE) <= 20 * BATCH  # only batches in flight were done again


def test_two_ranks_share_a_file(tmp_path):
    path = tmp_path / "shared.sqlite"
    logs = [tmp_path / "0.txt", tmp_path / "1.txt"]
    pair = outcomes(slow_run_in_a_group, 2, path, tmp_path, 2)
    assert [Summary(**told) for told in pair] == [Summary(len(WHOLE) // 2, len(WHOLE) // 2, 0, 0, 0)] * 2
    assert records(path) == WHOLE
    first, second = (set(log.read_text().splitlines()) for log in logs)
    assert not first & second
    assert {line.split()[0] for line in first} == {row["id"] for row in ROWS[::2]}  # all samples of every second row


def test_two_processes_that_do_the_same_units_give_each_once(tmp_path):
    path = tmp_path / "same.sqlite"
    assert [told["failed"] for told in outcomes(slow_run_in_a_group, 2, path, tmp_path, 1)] == [0, 0]
    assert records(path) == WHOLE


def test_two_launched_processes_give_the_rows_of_one(tmp_path):
    half = {"world_size": 2, "total": len(WHOLE) // 2, "done": len(WHOLE) // 2}
    for told in outcomes(sharded_run, 2, tmp_path / "two"):
        assert told.items() >= half.items()
    with Store(tmp_path / "one") as store:
        run(store, STAGE, ROWS, payloads, settings=SETTINGS, n=SAMPLES)
    assert records(tmp_path / "two") == records(tmp_path / "one") == WHOLE


def test_processes_are_a_group_without_a_gpu_and_wait_for_each_other_for_a_week():
    """accelerate alone takes each for the only one; ten minutes are NCCL's default, thirty gloo's."""
    assert outcomes(patience, 2) == [(0, 2, 7), (1, 2, 7)]
