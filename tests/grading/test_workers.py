"""Worker processes, tested with real ones: the decider below does what hostile answers do to the real one."""

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import pytest

from trl_mmreason.grading.workers import Outcome, Workers

DECIDER = """
import os, signal, sys, time
from trl_mmreason.grading import worker
from trl_mmreason.grading.notation import Refused, Unreadable

def recurse(n):
    return recurse(n + 1) + 1

def decide(answer, golds):
    (gold,) = golds
    if answer == "tower":          # one long operation in C: the interpreter lock is never let go
        return 9 ** 9 ** 9 ** 2 > 0
    if answer == "sleep":
        time.sleep(float(gold))
    if answer == "hog":
        return len(bytearray(int(gold))) > 0
    if answer == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if answer == "die once" and not os.path.exists(gold):
        open(gold, "w").close()
        sys.exit(3)
    if answer == "die once":
        return True
    if answer == "recurse":
        return recurse(0) > 0
    if answer == "refuse":
        raise Refused("too deep")
    if answer == "garble":
        raise Unreadable("no mathematics")
    if answer == "raise":
        raise KeyError("from a library")
    if answer == "chatter":
        print('{"number": 0, "status": "decided", "correct": true}', flush=True)
        os.write(1, b"x" * 200_000)
        os.write(2, b"x" * 200_000)
    if answer == "pid":
        return os.getpid() == int(gold)
    if answer == "environment":
        return os.environ.get(gold.partition("=")[0]) == gold.partition("=")[2]
    return answer == gold

def load():
    print("chatter before the first job")
    return decide

worker.serve(load)
"""
COMMAND = [sys.executable, "-c", DECIDER]
FIRST_PRIMES = ["2", "3", "5", "7", "11", "13"]


def job(answer, gold=""):
    return {"answer": answer, "golds": [gold]}


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


def process_ids(workers):
    return [worker.process.pid for worker in workers._workers]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def within(seconds, condition):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.fixture
def workers():
    made = Workers(2, deadline_seconds=0.5, command=COMMAND)
    yield made
    made.close()


def test_a_batch_keeps_its_order(workers):
    golds = [answer if index % 2 else "1" for index, answer in enumerate(FIRST_PRIMES)]
    outcomes = workers.decide([job(*pair) for pair in zip(FIRST_PRIMES, golds, strict=True)])
    assert outcomes == [Outcome(index % 2 == 1, "decided", "") for index in range(6)]


def test_an_empty_batch_starts_nothing(workers):
    assert workers.decide([]) == []
    assert process_ids(workers) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("answer", "gold", "status", "detail"),
    [
        ("tower", "", "timeout", "longer than 0.5 s"),
        ("sleep", "9", "timeout", "longer than 0.5 s"),
        ("hog", str(1 << 31), "memory", "MemoryError"),
        ("die", "", "crash", "SIGKILL"),
        ("recurse", "", "size", "RecursionError"),
        ("refuse", "", "size", "Refused: too deep"),
        ("garble", "", "unreadable", "Unreadable: no mathematics"),
        ("raise", "", "error", "KeyError: 'from a library'"),
        ("9" * 100_000, "", "size", "a job of 100"),
    ],
)
def test_what_a_hostile_job_costs_is_that_job(workers, answer, gold, status, detail):
    first, hostile, *rest = workers.decide([job("2", "2"), job(answer, gold), *[job(n, "3") for n in FIRST_PRIMES]])
    assert (hostile.correct, hostile.status) == (None, status)
    assert detail in hostile.detail
    assert first == Outcome(True, "decided")
    assert [outcome.correct for outcome in rest] == [n == "3" for n in FIRST_PRIMES]
    assert workers.decide([job("5", "5"), job("5", "7")]) == [Outcome(True, "decided"), Outcome(False, "decided")]


def test_a_memory_limit_leaves_what_is_below_it():
    workers = Workers(1, memory_bytes=1 << 29, command=COMMAND)
    outcomes = workers.decide([job("hog", str(1 << size)) for size in (28, 29, 28)])
    workers.close()
    assert statuses(outcomes) == ["decided", "memory", "decided"]


def test_only_what_must_be_is_replaced(workers):
    workers.decide([job("2")] * 2)
    before = process_ids(workers)
    workers.decide([job("raise"), job("refuse"), job("garble")])
    assert process_ids(workers) == before
    workers.decide([job("tower")])
    after = process_ids(workers)
    assert len(after) == 2
    assert len(set(after) & set(before)) == 1


def test_a_job_whose_worker_died_once_is_tried_again(workers, tmp_path):
    outcomes = workers.decide([job("die once", str(tmp_path / "died")), job("2", "2")])
    assert (tmp_path / "died").exists()
    assert outcomes == [Outcome(True, "decided")] * 2


def test_a_worker_killed_between_batches_is_replaced(workers):
    workers.decide([job("2")] * 2)
    before = process_ids(workers)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert within(10, lambda: not any(map(alive, before)))  # a signal takes its time on a busy machine
    assert workers.decide([job("3", "3")] * 2) == [Outcome(True, "decided")] * 2
    assert not set(process_ids(workers)) & set(before)


@pytest.mark.full
def test_all_workers_hang_and_the_batch_still_ends(workers):
    started = time.monotonic()
    outcomes = workers.decide([job("tower")] * 4 + [job("2", "2")])
    assert statuses(outcomes) == ["timeout"] * 4 + ["decided"]
    assert time.monotonic() - started < 8


@pytest.mark.full
def test_start_up_does_not_count():
    slow = ["sh", "-c", f'sleep 1; exec "{sys.executable}" -c "$0" "$@"', DECIDER]
    workers = Workers(1, deadline_seconds=0.3, command=slow)
    assert workers.decide([job("2", "2")]) == [Outcome(True, "decided")]
    workers.close()


def test_nothing_a_decider_prints_is_taken_for_a_reply(workers):
    assert workers.decide([job("chatter", "2"), job("2", "2")]) == [Outcome(False, "decided"), Outcome(True, "decided")]


@pytest.mark.full
@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGSTOP"])
def test_a_busy_worker_stopped_from_outside(signal_name):
    workers = Workers(1, deadline_seconds=1.0, command=COMMAND)
    workers.decide([job("2")])
    (pid,) = process_ids(workers)
    timer = threading.Timer(0.2, os.kill, (pid, getattr(signal, signal_name)))
    timer.start()
    (outcome,) = workers.decide([job("sleep", "0.6")])
    timer.join()
    workers.close()
    # Killed: tried again and answered (0.6 is not "sleep"). Stopped: killed at the deadline.
    assert outcome.status == {"SIGKILL": "decided", "SIGSTOP": "timeout"}[signal_name]
    assert not alive(pid)


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            [sys.executable, "-c", "raise ImportError('no such library')"],
            r"5 times in a row: exit status 1(.|\n)*no such library",
        ),
        (
            [sys.executable, "-c", "import time, sys; print('stuck', file=sys.stderr, flush=True); time.sleep(9)"],
            "stuck",
        ),
    ],
)
def test_a_worker_that_does_not_start_is_an_error(command, message, monkeypatch):
    monkeypatch.setattr("trl_mmreason.grading.workers._START_SECONDS", 1.0)
    workers = Workers(1, command=command)
    with pytest.raises(RuntimeError, match=message):
        workers.decide([job("2")])
    assert process_ids(workers) == []


@pytest.mark.parametrize("wrong", [{"count": 0}, {"deadline_seconds": 0.0}, {"memory_bytes": 0}])
def test_limits_are_positive(wrong):
    with pytest.raises(ValueError, match="positive"):
        Workers(**wrong)


def test_threads_share_the_workers(workers):
    results = {}

    def grade(n):
        results[n] = workers.decide([job(str(n), str(n)), job(str(n), str(n + 1))] * 20)

    threads = [threading.Thread(target=grade, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [Outcome(True, "decided"), Outcome(False, "decided")] * 20 for n in range(4)}
    assert len(process_ids(workers)) == 2


def _decide_in_fork(workers, inherited, queue):
    before = len(process_ids(workers))
    outcomes = workers.decide([job("2", "2"), job("2", "3")])
    queue.put((before, [outcome.correct for outcome in outcomes], not set(process_ids(workers)) & set(inherited)))


def test_a_forked_process_starts_its_own(workers):
    workers.decide([job("2")] * 2)
    inherited = process_ids(workers)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    # The lock is held while the process forks, as when another thread is amid a batch.
    with workers._lock:
        child = context.Process(target=_decide_in_fork, args=(workers, inherited, queue))
        child.start()
    assert queue.get(timeout=30) == (0, [True, False], True)
    child.join(10)
    assert child.exitcode == 0
    assert all(alive(pid) for pid in inherited)
    outcomes = workers.decide([job("pid", str(pid)) for pid in inherited for _ in range(20)])
    assert {outcome.correct for outcome in outcomes} == {True, False}
    assert process_ids(workers) == inherited


@pytest.mark.full
def test_an_interruption_leaves_no_reply_behind(workers):
    workers.decide([job("2")] * 2)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        # Would be answered True at 0.4 s, were the worker left alone.
        workers.decide([job("sleep", "0.4")] * 2)
    time.sleep(0.4)
    outcomes = workers.decide([job("2", "3"), job("3", "3")])
    assert outcomes == [Outcome(False, "decided"), Outcome(True, "decided")]


@pytest.mark.full
def test_no_process_and_no_descriptor_is_left(workers):
    workers.decide([job("2")] * 2)
    workers.close()
    descriptors = len(os.listdir("/proc/self/fd"))
    seen = []
    for _ in range(2):
        workers.decide([job("tower"), job("die")])
        seen += process_ids(workers)
        workers.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in seen)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_forgotten_object_takes_its_workers_along():
    workers = Workers(1, command=COMMAND)
    workers.decide([job("2")])
    (pid,) = process_ids(workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del workers
        gc.collect()
    assert not os.path.exists(f"/proc/{pid}")


def test_many_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1300:
        pytest.skip("the system allows fewer than 1300 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1300, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    workers = Workers(1, command=COMMAND)
    try:
        assert workers.decide([job("2", "2")]) == [Outcome(True, "decided")]
        assert workers._workers[0].process.stdout.fileno() > 1024
    finally:
        workers.close()
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


PARENT = """
import sys, threading
from trl_mmreason.grading.workers import Workers
if __name__ == "__main__":
    decider, mode = sys.argv[1:]
    workers = Workers(2, deadline_seconds=1.0, command=[sys.executable, "-c", decider])
    workers.decide([{"answer": "2", "golds": ["2"]}] * 2)
    while not all(worker.ready for worker in workers._workers):
        workers.decide([{"answer": "2", "golds": ["2"]}] * 2)
    print(*[worker.process.pid for worker in workers._workers], flush=True)
    if mode == "busy":
        workers.decide([{"answer": "tower", "golds": [""]}] * 2)
    elif mode == "idle":
        threading.Event().wait()
"""


def start_parent(mode):
    parent = subprocess.Popen(
        [sys.executable, "-W", "always", "-c", PARENT, DECIDER, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return parent, [int(pid) for pid in parent.stdout.readline().split()]


@pytest.mark.full
@pytest.mark.parametrize("mode", ["idle", "busy"])
def test_workers_do_not_outlive_a_killed_parent(mode):
    parent, pids = start_parent(mode)
    assert len(pids) == 2
    time.sleep(0.3)
    assert all(alive(pid) for pid in pids)
    parent.kill()
    parent.communicate()
    # Idle ones see the end of their input; busy ones hold the interpreter lock and end by the timer at 1 + 1 s.
    assert within(1.0 if mode == "idle" else 3.0, lambda: not any(alive(pid) for pid in pids))


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_parent_that_ends_says_nothing(interrupted):
    parent, pids = start_parent("idle" if interrupted else "end")
    if interrupted:
        parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=10)
    assert errors.count("Traceback") == int(interrupted)
    assert "Warning" not in errors
    assert "ignored" not in errors
    assert within(1.0, lambda: not any(alive(pid) for pid in pids))


def test_the_environment_of_a_worker(tmp_path, monkeypatch):
    (tmp_path / "sympy.py").write_text("raise SystemExit('the sympy of the working directory')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    workers = Workers(1, command=[sys.executable, "-c", "import sympy" + DECIDER])
    assert workers.decide([job("environment", "CUDA_VISIBLE_DEVICES="), job("environment", "OMP_NUM_THREADS=1")]) == [
        Outcome(True, "decided"),
        Outcome(True, "decided"),
    ]
    workers.close()


@pytest.mark.full
def test_the_real_worker_imports_no_deep_learning():
    program = textwrap.dedent("""
        import sys
        from trl_mmreason.grading import worker
        worker._rules()
        sys.exit(sum(name in sys.modules for name in ("torch", "transformers", "trl", "numpy", "datasets")))
    """)
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_real_worker():
    workers = Workers(2)
    slow, large = r"\sum_{k=1}^{\infty} \frac{\sin(k^3)}{k \ln(k+1)}", r"\sum_{n=1}^{10^{9}}\sin(n^{2})"
    jobs = [job(r"\int_{0}^{1}x^{2}dx", r"\frac{1}{3}"), job(slow, "2"), job(r"\int_{0}^{1}x^{2}dx", r"\frac{1}{4}")]
    outcomes = workers.decide([*jobs, job(large, "2")])
    workers.close()
    assert statuses(outcomes) == ["decided", "timeout", "decided", "size"]
    assert [outcome.correct for outcome in outcomes] == [True, None, False, None]
