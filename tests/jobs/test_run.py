"""A run does every unit once, whatever some units do to it, and tells how far it is."""

import fcntl
import os
import pty
import struct
import sys
import termios
import time
import weakref
from collections import Counter

import pytest
from datasets import Dataset
from store_worker import SETTINGS, payload

from trl_mmreason.generation import Failure
from trl_mmreason.generation.engine import UnsuitableEngine
from trl_mmreason.jobs import run as run_module
from trl_mmreason.jobs.run import Summary, run
from trl_mmreason.jobs.store import SettingsChanged, StoreError, Unit

STAGE = "answers"


def rows(count):
    return [{"id": f"row-{number}", "number": number} for number in range(count)]


def doing(result=lambda row, index: payload(row, index), batches=None):
    """Work whose results are those of `result`; appends the units of each batch to `batches`."""

    def work(units):
        if batches is not None:
            batches.append([(row["number"], index) for row, index in units])
        return [result(row, index) for row, index in units]

    return work


def do(store, count, result=lambda row, index: payload(row, index), *, batches=None, **options):
    return run(store, STAGE, rows(count), doing(result, batches), settings=SETTINGS, **options)


# ---------------------------------------------------------------------------------------------------- units and batches


def test_units_come_in_order_in_batches_and_are_skipped_when_done(store):
    batches = []
    assert do(store, 3, n=2, batch_size=4, batches=batches) == Summary(6, 6, 0, 0, 0)
    assert batches == [[(0, 0), (0, 1), (1, 0), (1, 1)], [(2, 0), (2, 1)]]
    batches.clear()
    assert do(store, 4, n=3, batch_size=4, batches=batches) == Summary(12, 6, 6, 0, 0)  # more rows and samples
    assert batches == [[(0, 2), (1, 2), (2, 2), (3, 0)], [(3, 1), (3, 2)]]
    assert do(store, 4, n=3) == Summary(12, 0, 12, 0, 0)


def test_a_dataset_gives_the_same_as_a_list(store):
    dataset = Dataset.from_list(rows(5))
    assert run(store, STAGE, dataset, doing(), settings={}) == Summary(5, 5, 0, 0, 0)
    assert [record.payload for record in store.records(STAGE)] == [payload(row, 0) for row in rows(5)]


def test_changed_settings_stop_a_run_before_any_work(store):
    do(store, 2)
    batches = []
    with pytest.raises(SettingsChanged, match="model: 'none' → 'some'"):
        run(store, STAGE, rows(3), doing(batches=batches), settings={"model": "some"})
    assert batches == []


@pytest.mark.parametrize(
    ("bad_rows", "message"),
    [
        ([{"id": "a"}, {"id": "b"}, {"id": "a"}], r"ids must be unique.*'a' \(2 times\)"),
        ([{"id": "a"}, {"id": 7}], r"row 1 has the id 7 \(int\)"),
        ([{"name": "a"}], "row 0 has the id None"),
        (Dataset.from_list([{"name": "a"}]), r"columns \['name'\]; expected one named 'id'"),
    ],
)
def test_rows_without_usable_ids_are_refused(store, bad_rows, message):
    with pytest.raises(ValueError, match=message):
        run(store, STAGE, bad_rows, doing(), settings={})


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda units: [{}], "got 3 units and returned 1;"),
        (lambda units: None, "got 3 units and returned NoneType"),
        (lambda units: [{}, None, {}], "returned a NoneType for a unit"),
        (lambda units: [{}, {"value": object()}, {}], "cannot be kept as JSON"),
    ],
)
def test_work_that_returns_something_else_stops_the_run(store, work, message):
    with pytest.raises(TypeError, match=message):
        run(store, STAGE, rows(3), work, settings={})
    assert store.finished(STAGE) == set()


@pytest.mark.parametrize("options", [{"n": 0}, {"batch_size": 0}, {"retries": -1}])
def test_impossible_numbers_are_refused(store, options):
    with pytest.raises(ValueError, match="expected n ≥ 1"):
        do(store, 1, **options)


def test_truncated_payloads_are_counted(store):
    reasons = [{"finish_reason": "length"}, {"finish_reason": "stop"}, {}]
    reasons += [{"finish_reasons": each} for each in (["stop", "length"], ["stop"], None)]
    assert do(store, 6, lambda row, _: reasons[row["number"]]).truncated == 2


def test_the_place_is_read_from_the_environment(store, monkeypatch):
    monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert do(store, 8).total == 3  # rows 1, 4, 7
    assert {unit.id for unit in store.finished(STAGE)} == {"row-1", "row-4", "row-7"}


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, None), (None, 2)])
def test_an_impossible_place_is_refused(store, rank, world_size):
    with pytest.raises(ValueError, match="expected"):
        do(store, 1, rank=rank, world_size=world_size)


# ------------------------------------------------------------------------------------------------------------- failures


def raising(error, numbers):
    """Results that raise this error for the rows with these numbers."""

    def result(row, index):
        if row["number"] in numbers:
            raise error(f"row {row['number']}")
        return payload(row, index)

    return result


def test_a_failure_is_tried_again_behind_all_others_and_then_recorded(store, caplog):
    def result(row, index):
        return Failure("too large") if row["number"] == 1 else payload(row, index)

    batches = []
    assert do(store, 4, result, batch_size=2, retries=2, batches=batches) == Summary(4, 3, 0, 1, 0)
    assert batches == [[(0, 0), (1, 0)], [(2, 0), (3, 0)], [(1, 0)], [(1, 0)]]
    assert store.failed(STAGE) == {Unit("row-1", 0): "too large"}
    assert "1 of 4 units failed" in caplog.text
    assert "row-1, sample 0: too large" in caplog.text


def test_a_failure_that_passes_is_done(store):
    tries = Counter()

    def result(row, index):
        tries[row["number"]] += 1
        return Failure("not yet") if tries[row["number"]] <= row["number"] else payload(row, index)

    assert do(store, 4, result, retries=2) == Summary(4, 3, 0, 1, 0)  # row 3 needs a fourth try
    assert tries == {0: 1, 1: 2, 2: 3, 3: 3}


def test_failed_units_are_left_alone_until_asked_for(store, caplog):
    do(store, 3, lambda row, _: Failure("no") if row["number"] else {}, retries=0)
    batches = []
    assert do(store, 4, batches=batches) == Summary(4, 1, 1, 2, 0)
    assert batches == [[(3, 0)]]
    caplog.clear()
    assert do(store, 4, batches=batches, retry_failed=True) == Summary(4, 2, 2, 0, 0)
    assert batches[1:] == [[(1, 0), (2, 0)]]
    assert "failed" not in caplog.text
    assert store.failed(STAGE) == {}


def test_where_none_was_done_failed_units_are_tried_again(store):
    do(store, 2, lambda row, _: Failure("no"), retries=0)
    assert do(store, 3, lambda row, _: {} if row["number"] else Failure("no")) == Summary(3, 2, 0, 1, 0)
    assert do(store, 3) == Summary(3, 0, 2, 1, 0)


def test_many_failures_are_listed_in_part(store, caplog):
    do(store, 50, lambda row, _: Failure("no"), retries=0)
    assert caplog.text.count("sample 0: no") == 20
    assert "… and 30 more" in caplog.text


def test_of_a_batch_that_raises_only_the_guilty_unit_fails(store, caplog):
    batches = []
    summary = do(store, 6, raising(ZeroDivisionError, [1]), batch_size=3, batches=batches)
    assert summary == Summary(6, 5, 0, 1, 0)
    assert batches == [[(0, 0), (1, 0), (2, 0)], [(0, 0)], [(1, 0)], [(2, 0)], [(3, 0), (4, 0), (5, 0)]]
    assert store.failed(STAGE) == {Unit("row-1", 0): "ZeroDivisionError: row 1"}
    assert "in result" in caplog.text  # the traceback is shown


def test_a_row_that_cannot_be_read_fails_alone(store):
    class Rows(list):
        def __getitem__(self, position):
            if position == 2:
                raise OSError("the image is cut short")
            return super().__getitem__(position)

    assert run(store, STAGE, Rows(rows(4)), doing(), settings={}) == Summary(4, 3, 0, 1, 0)
    assert store.failed(STAGE) == {Unit("row-2", 0): "OSError: the image is cut short"}


def test_a_batch_that_raises_once_is_done(store):
    errors = [TimeoutError]

    def work(units):
        if errors:
            raise errors.pop()
        return [{} for _ in units]

    assert run(store, STAGE, rows(1), work, settings={}) == Summary(1, 1, 0, 0, 0)


def test_a_batch_that_raised_holds_no_memory_while_its_units_are_tried_alone(store):
    class Tensor:
        pass

    alive = weakref.WeakSet()

    def work(units):
        tensor = Tensor()
        alive.add(tensor)
        assert len(alive) == 1  # of this call alone
        if len(units) > 1:
            try:
                raise MemoryError
            except MemoryError as error:
                raise RuntimeError("no memory") from error
        return [{}]

    assert run(store, STAGE, rows(6), work, settings={}, batch_size=3) == Summary(6, 6, 0, 0, 0)


def test_an_engine_that_is_gone_stops_the_run_and_marks_no_unit_as_failed(store, caplog):
    batches = []
    with pytest.raises(ConnectionError, match="row 14"):
        do(store, 100, raising(ConnectionError, range(5, 100)), batch_size=5, batches=batches)
    assert batches[-1] == [(14, 0)]  # of the second batch of which every unit raised
    assert "the engine seems to be gone" in caplog.text
    assert store.failed(STAGE) == {}
    assert do(store, 100) == Summary(100, 95, 5, 0, 0)


def test_an_engine_that_never_was_there_stops_the_run(store):
    with pytest.raises(ConnectionError):
        do(store, 2, raising(ConnectionError, range(2)))
    assert store.finished(STAGE) == set()


@pytest.mark.parametrize(("bad", "batch_size"), [(range(2, 9), 1), (range(4, 8), 4), (range(6, 10), 4)])
def test_bad_units_in_a_row_do_not_look_like_an_engine_that_is_gone(store, bad, batch_size):
    summary = do(store, 10, raising(ValueError, bad), batch_size=batch_size)
    assert summary == Summary(10, 10 - len(bad), 0, len(bad), 0)
    assert set(store.failed(STAGE)) == {Unit(f"row-{number}", 0) for number in bad}


def test_the_last_unit_may_fail_alone(store):
    do(store, 3)
    assert do(store, 4, raising(ConnectionError, [3])) == Summary(4, 0, 3, 1, 0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_run_at_once_and_keeps_what_was_saved(store, error):
    batches = []
    with pytest.raises(error):
        do(store, 9, raising(error, [5]), batch_size=2, batches=batches)
    assert batches[-1] == [(4, 0), (5, 0)]
    assert store.finished(STAGE) == {Unit(f"row-{number}", 0) for number in range(4)}


def test_an_engine_that_does_not_do_what_it_is_asked_ends_the_run_with_its_first_batch(store):
    batches = []
    with pytest.raises(UnsuitableEngine, match="row 0"):
        do(store, 9, raising(UnsuitableEngine, range(9)), batch_size=2, batches=batches)
    assert batches == [[(0, 0), (1, 0)]]
    assert store.finished(STAGE) == set()


def test_a_store_that_cannot_be_written_to_stops_the_run(store):
    def result(row, index):
        if row["number"] == 2:
            connection = store._database._connection
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
        return {"text": "x" * 9000}

    with pytest.raises(StoreError, match="the disk is full"):
        do(store, 9, result, batch_size=2)
    assert store.finished(STAGE) == {Unit("row-0", 0), Unit("row-1", 0)}


# ------------------------------------------------------------------------------------------------------------- progress


def outcome(row, _):
    if row["number"] == 0:
        return Failure("no")
    return {"finish_reason": "length" if row["number"] == 1 else "stop"}


def slow_outcome(row, index):
    time.sleep(0.2)
    return outcome(row, index)


@pytest.mark.full
def test_without_a_terminal_there_is_no_bar_but_a_line_per_minute(store, capfd, monkeypatch):
    """A run of less than a minute writes none."""
    do(store, 2, outcome, batch_size=2, retries=0, description="sampling")
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(run_module, "SECONDS_PER_LINE", 0.05)  # a batch takes 0.4 seconds
    do(store, 6, slow_outcome, batch_size=2, retries=0, description="sampling")
    printed = capfd.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert [line.split(" units")[0] for line in lines] == [f"sampling: {done} of 6" for done in (4, 6)]
    assert lines[0].endswith("00:00 left, 0.0% truncated, 1 failed")
    assert lines[-1].endswith("left, 0.0% truncated, 1 failed")


@pytest.mark.full
def test_other_processes_than_the_first_write_no_lines(store, capfd, monkeypatch):
    monkeypatch.setattr(run_module, "SECONDS_PER_LINE", 0.05)
    for rank in (1, 0):
        do(store, 4, slow_outcome, batch_size=1, rank=rank, world_size=2)
        assert bool(capfd.readouterr().err) == (rank == 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_terminal_shows_a_bar_of_the_first_process(store, rank, monkeypatch):
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))  # lines, columns
    with os.fdopen(terminal, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        do(store, 10, outcome, batch_size=5, retries=0, description="sampling", rank=rank, world_size=2)
        monkeypatch.undo()
        screen.write("END")
        screen.flush()
        shown = ""
        while not shown.endswith("END"):
            shown += os.read(main, 65536).decode()
    os.close(main)
    if rank == 0:
        assert "sampling: 100%" in shown
        assert "5/5" in shown
        assert "sample/s" in shown
        assert "0.0% truncated, 1 failed" in shown
    else:
        assert shown == "END"
