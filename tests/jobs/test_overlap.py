"""Answers are graded while the engine gives the next ones, and the store is the same as without."""

import json
import threading
from collections import Counter

import pytest
from datasets import Dataset
from parity import Parity, echo, questions
from processes import launch

from trl_mmreason.generation.protocols import Direct
from trl_mmreason.jobs.answering import answer_questions
from trl_mmreason.jobs.store import Store

ROWS = Dataset.from_list(questions(8))


def answer(path, grader, engine=None, **settings):
    """All that the store holds afterwards."""
    settings = {"n": 2, "batch_size": 4, **settings}
    with Store(path) as store:
        answer_questions(ROWS, engine or echo(), store, Direct(), stage="answers", grader=grader, **settings)
        return {stage: (about, list(store.records(stage))) for stage, about in store.stages().items()}


def test_the_store_is_the_same_and_nothing_is_graded_twice(tmp_path):
    alone, meanwhile = Parity(overlaps=False), Parity(overlaps=True)
    assert answer(tmp_path / "a", meanwhile) == answer(tmp_path / "b", alone)
    assert {here for here, _ in alone.asked} == {True}
    assert {text for _, text in meanwhile.asked} == {text for _, text in alone.asked}
    assert len(meanwhile.asked) == len(alone.asked) == 16


def test_verdicts_on_a_batch_come_while_the_next_one_is_answered(tmp_path):
    class Waiting(Parity):
        graded = threading.Event()

        def grade_batch(self, items):
            found = super().grade_batch(items)
            self.graded.set()
            return found

    grader = Waiting(overlaps=True)

    def wait(request, times):
        if request.messages[-1]["content"] == "question 7?" and times:  # the last of all
            assert grader.graded.wait(10)
            assert grader.asked[0] == (False, "question 0? 0")
        return f"{request.messages[-1]['content']} {times}"

    engine = echo()
    engine.answer = wait
    found = answer(tmp_path / "a", grader, engine)
    assert len(found["answers"][1]) == 16
    assert grader.graded.is_set()


def test_a_killed_run_resumes_to_the_same_store(tmp_path):
    expected = answer(tmp_path / "b", Parity(overlaps=False))
    killed = Parity(overlaps=True)
    with pytest.raises(KeyboardInterrupt):
        answer(tmp_path / "a", killed, echo(dies_at=9))
    graded = len(killed.asked)
    grader, engine = Parity(overlaps=True), echo()
    assert answer(tmp_path / "a", grader, engine) == {
        stage: (about, records) for stage, (about, records) in expected.items()
    }
    assert len(engine.asked) == 8  # two batches of four were kept
    assert len(grader.asked) + graded == 16  # verdicts of the killed run are kept


@pytest.mark.parametrize("overlaps", [True, False])
def test_what_a_grader_raises_costs_that_answer_alone(overlaps, tmp_path):
    grader = Parity(overlaps, refuses="question 5? 1")
    found = answer(tmp_path / "a", grader)
    (verdicts,) = (records for stage, (_, records) in found.items() if stage.startswith("verdicts-"))
    assert [(record.id, record.reason) for record in verdicts if record.status == "failed"] == [
        ("row 5#1", "ValueError: no verdict on question 5? 1")
    ]
    assert len(verdicts) == 16


class Slow(Parity):
    """Grades nothing in the thread before it is released."""

    def __init__(self):
        super().__init__(overlaps=True)
        self.released = threading.Event()

    def grade_batch(self, items):
        if threading.current_thread() is not threading.main_thread():
            assert self.released.wait(10)
        return super().grade_batch(items)


@pytest.mark.full
def test_nothing_more_is_begun_when_the_engine_fails(tmp_path):
    grader, engine = Slow(), echo()

    def die_at_the_last(request, times):
        if request.messages[-1]["content"] == "question 7?":
            threading.Timer(1.0, grader.released.set).start()
            raise KeyboardInterrupt
        return f"{request.messages[-1]['content']} {times}"

    engine.answer = die_at_the_last
    with pytest.raises(KeyboardInterrupt):
        answer(tmp_path / "a", grader, engine)
    # three batches of four were begun, of which the first alone was under way when the engine failed
    assert [text for _, text in grader.asked] == [f"question {k}? {i}" for k in (0, 1) for i in (0, 1)]


def test_what_a_slow_grader_has_not_come_to_is_graded_in_the_end(tmp_path):
    grader = Slow()
    threading.Timer(0.2, grader.released.set).start()
    found = answer(tmp_path / "a", grader, n=5)
    assert found == answer(tmp_path / "b", Parity(overlaps=False), n=5)
    assert len(grader.asked) == 40
    assert {here for here, _ in grader.asked} == {True, False}


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_grade_what_they_have_answered(processes, tmp_path):
    launch("helpers/overlap_run.py", processes, tmp_path, environment={"RANK": "0"} if processes == 1 else None)
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(processes)]
    assert all(one["right"] == told[0]["right"] for one in told)
    assert len(told[0]["right"]) == 7
    asked = Counter(text for one in told for text in one["asked"])
    assert asked.keys() == {f"question {k}? {i}" for k in range(7) for i in range(3)}
    assert set(asked.values()) == {1}
