"""Nothing that a model or a dataset can write hangs the grader, fills its memory, runs, or passes for an answer."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hostile import DEADLINE_SECONDS, HOSTILE, HOSTILE_GOLDS, box, items

from trl_mmreason.grading import Grader

SCRIPT = Path(__file__).parent / "hostile.py"
# One in two may run into the deadline, and a worker that was killed needs time to be replaced.
BATCH_SECONDS = 0.5 * len(HOSTILE) * (DEADLINE_SECONDS + 2)


def one_line(text):
    return len(text.splitlines()) == 1 and text.isprintable() and len(text) < 500


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """name → verdict of the hostile answers, graded in one batch; the folder they were graded in; the seconds."""
    folder = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        grader = Grader(deadline_seconds=DEADLINE_SECONDS)
        start = time.perf_counter()
        verdicts = grader.grade_batch(items(HOSTILE))
        seconds = time.perf_counter() - start
        after = grader.grade(box(r"\sqrt{5+2\sqrt{6}}"), r"\sqrt{2}+\sqrt{3}"), grader.grade(box("7.0"), "7")
    by_name = {name: verdict for (name, *_), verdict in zip(HOSTILE, verdicts, strict=True)}
    return by_name, folder, seconds, after


@pytest.mark.parametrize("name", [name for name, *_ in HOSTILE])
def test_never_right(graded, name):
    verdict = graded[0][name]
    assert verdict.correct is False
    assert one_line(verdict.reason)


def test_within_the_time(graded):
    assert graded[2] < BATCH_SECONDS


def test_nothing_is_run(graded):
    assert not list(graded[1].iterdir())


def test_ordinary_answers_are_right_afterwards(graded):
    assert [verdict.correct for verdict in graded[3]] == [True, True]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """mode → what `hostile.run` says of it, from processes that run at the same time, and their folder."""
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, str(SCRIPT)]
    started = {
        mode: subprocess.Popen([*command, mode], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for mode in ("batch", "thread", "golds")
    }
    said = {}
    for mode, process in started.items():
        output, errors = process.communicate(timeout=4 * BATCH_SECONDS)
        assert process.returncode == 0, errors.decode()[-2000:]
        said[mode] = json.loads(output)
    return said, folder


@pytest.mark.parametrize("mode", ["batch", "thread"])
def test_never_right_in_processes_at_once(processes, mode):
    said = processes[0][mode]["correct"]
    assert [name for name, *_ in HOSTILE if said[name] is not False] == []


def test_hostile_golds_are_never_met(processes):
    said = processes[0]["golds"]["correct"]
    assert [name for name, *_ in HOSTILE_GOLDS if said[name] not in (None, False)] == []


@pytest.mark.parametrize("mode", ["batch", "thread", "golds"])
def test_memory_of_the_caller_stays_small(processes, mode):
    assert processes[0][mode]["growth_mb"] < 300


def test_nothing_is_run_in_processes(processes):
    assert not list(processes[1].iterdir())
