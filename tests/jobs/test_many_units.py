"""What is held of each unit, and how often the store is read: there may be many millions of them."""

import tracemalloc

import pytest
from datasets import Dataset

from trl_mmreason.generation.engine import Sample
from trl_mmreason.generation.protocols import Direct
from trl_mmreason.grading import Grader, Verdict
from trl_mmreason.jobs.answering import answer_questions
from trl_mmreason.jobs.database import Database
from trl_mmreason.jobs.questions import remember_questions
from trl_mmreason.jobs.run import run
from trl_mmreason.jobs.store import Record
from trl_mmreason.jobs.verdicts import StoredSamples

STAGE, SAMPLES = "answers", 8
FEW, MANY = 2_000, 8_000


class Engine:
    settings = {"kind": "at once"}

    def sample(self, requests, sampling_params):
        return [[Sample("7", "stop")] for _ in requests]


class AllRight(Grader):
    def grade_batch(self, items):
        return [Verdict(True, "7", "") for _ in items]


def questions(units, samples=SAMPLES):
    number = units // samples
    prompts = [[{"role": "user", "content": "How many?"}]] * number
    return Dataset.from_dict({"id": [f"row-{k}" for k in range(number)], "prompt": prompts, "answer": ["7"] * number})


def answer(store, units):
    run(
        store,
        STAGE,
        questions(units),
        lambda batch: [{"text": "7"}] * len(batch),
        settings={},
        n=SAMPLES,
        batch_size=500,
    )


def grade(store, rows, grader=None):
    grader = grader or AllRight()
    return answer_questions(rows, Engine(), store, Direct(), stage=STAGE, n=SAMPLES, grader=grader, batch_size=500)


def bytes_a_unit(work, samples=SAMPLES):
    """What the most that Python holds grows by with each unit, from FEW to MANY of them."""
    peaks = []
    for units in (FEW, MANY):
        rows = questions(units, samples)
        work(rows)  # imports, caches and what is done once
        tracemalloc.start()
        work(rows)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return (peaks[1] - peaks[0]) / (MANY - FEW)


@pytest.fixture
def reads(monkeypatch):
    """The queries that read a store."""
    queries, read = [], Database.read
    monkeypatch.setattr(
        Database, "read", lambda self, query, *values: queries.append(query) or read(self, query, *values)
    )
    return queries


def test_a_resumed_run_holds_a_byte_of_each_unit(store):
    """Beside an id, of some 60 bytes, which eight samples share."""
    answer(store, MANY)
    assert bytes_a_unit(lambda rows: run(store, STAGE, rows, None, settings={}, n=SAMPLES)) < 30


def test_what_is_held_is_looked_up_and_not_searched_for(store):
    """SQLite's own steps for 800 units are as many in a stage that has four times as many."""
    steps = []
    for units in (FEW, MANY):
        answer(store, units)
        connection = store._database._connection
        counted = []
        connection.set_progress_handler(lambda counted=counted: counted.append(1), 100)
        wanted = [(f"row-{k}", index) for k in range(100) for index in range(SAMPLES)]
        assert list(store.holds(STAGE, wanted)) == [True] * len(wanted)
        connection.set_progress_handler(None, 0)
        steps.append(len(counted))
    assert steps[0] > 0
    assert steps[1] == pytest.approx(steps[0], rel=0.05)


def test_units_are_found_in_their_order_whatever_there_is(store, reads):
    store.open_stage(STAGE, {})
    store.open_stage("other", {})
    store.save(STAGE, [Record("a", 0, "done", {}), Record("b", 1, "failed", {}, "no")])
    store.save("other", [Record("c", 0, "done", {})])
    wanted = [("b", 1), ("c", 0), ("a", 0), ("a", 1), ("b", 0), ("a", 0)]
    reads.clear()
    assert list(store.holds(STAGE, iter(wanted))) == [True, False, True, False, False, True]
    assert len(reads) == 2  # the stage's number, and all units at once
    assert list(store.holds(STAGE, [("x", k) for k in range(900)] + [("a", 0)])) == [False] * 900 + [True]
    assert list(store.holds(STAGE, [])) == []


@pytest.mark.full
def test_questions_are_remembered_some_at_a_time(store):
    """Of all of them the ids alone."""
    assert bytes_a_unit(lambda rows: remember_questions(store, STAGE, rows), samples=1) < 150


def test_grading_finds_what_there_is_in_few_bytes_a_sample(store):
    """Beside its id, an eighth of some 60 bytes."""
    answer(store, MANY)
    assert bytes_a_unit(lambda rows: StoredSamples(store, STAGE, SAMPLES, rows)) < 30


def test_grading_reads_a_sample_once(store, reads):
    grade(store, questions(FEW))
    reads.clear()
    grade(store, questions(FEW), AllRight(prose=True))  # another grader: its verdicts are others
    assert 0 <= len(reads) - FEW - FEW // SAMPLES < 30  # and a question once: is it still the one that was asked?


def test_a_graded_sample_is_read_by_two_queries(store, reads):
    answers = grade(store, questions(FEW))
    reads.clear()
    assert sum(sample["turns"][0]["correct"] for samples in answers for sample in samples) == FEW
    assert len(reads) == 2 * FEW
