"""Nothing that a model or a dataset can write hangs the grader, fills its memory, runs, or passes for an answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import HOSTILE, HOSTILE_GOLDS

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).parent / "hostile.py"
BATCH_SECONDS = 260


def one_line(text):
    return len(text.splitlines()) == 1 and text.isprintable() and len(text) < 500


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


@pytest.mark.parametrize("name", [name for name, *_ in HOSTILE])
def test_never_right(processes, name):
    said = processes[0]["batch"]
    assert said["correct"][name] is False
    assert one_line(said["reason"][name])


def test_within_the_time(processes):
    assert processes[0]["batch"]["seconds"] < BATCH_SECONDS


@pytest.mark.parametrize("mode", ["batch", "thread", "golds"])
def test_ordinary_answers_are_right_afterwards(processes, mode):
    assert processes[0][mode]["afterwards"] == [True, True]


def test_never_right_from_a_thread(processes):
    said = processes[0]["thread"]["correct"]
    assert [name for name, *_ in HOSTILE if said[name] is not False] == []


def test_hostile_golds_are_never_met(processes):
    said = processes[0]["golds"]["correct"]
    assert [name for name, *_ in HOSTILE_GOLDS if said[name] not in (None, False)] == []


@pytest.mark.parametrize("mode", ["batch", "thread", "golds"])
def test_memory_of_the_caller_stays_small(processes, mode):
    assert processes[0][mode]["growth_mb"] < 300


def test_nothing_is_run(processes):
    assert not list(processes[1].iterdir())
