"""The store keeps what was saved, whatever happens to the process, the disk and the file."""

import os
import signal
import sqlite3
from contextlib import closing

import pytest
from processes import begin, outcomes
from store_worker import be_refused, die_at_commit, fill_the_disk, save_one

from trl_mmreason.jobs.store import Record, SettingsChanged, Store, StoreError, Unit

STAGE = "answers"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "answers.sqlite"


@pytest.fixture
def store(path):
    with Store(path) as store:
        store.open_stage(STAGE, {})
        yield store


def done(id_, index, **payload):
    return Record(id_, index, "done", payload)


def failed(id_, index, reason):
    return Record(id_, index, "failed", {}, reason)


# ------------------------------------------------------------------------------------------------------------- records


def test_records_come_back_in_order_of_id_and_index_from_any_number_of_pages(store, path):
    records = [done(f"row-{row:03}", index, text=f"{row} {index}") for row in range(300) for index in range(3)]
    for start in (600, 0, 300):
        store.save(STAGE, reversed(records[start : start + 300]))
    assert list(store.records(STAGE)) == records
    store.close()
    with Store(path) as again:
        assert list(again.records(STAGE)) == records
        assert again.finished(STAGE) == {Unit(record.id, record.index) for record in records}


def test_records_are_found_by_their_units(store):
    records = [done("x", index, text=str(index)) for index in range(3)]
    store.save(STAGE, records)
    found = store.find(STAGE, [("x", 2), ("y", 0), ("x", 0), ("x", 7), ("x", 2)])
    assert list(found) == [records[2], records[0], records[2]]


def test_stages_are_apart(store):
    store.open_stage("second", {"prompt": 2})
    store.save(STAGE, [done("a", 0, text="first")])
    store.save("second", [done("a", 0, text="second")])
    assert [record.payload["text"] for record in store.records(STAGE)] == ["first"]
    assert [record.payload["text"] for record in store.records("second")] == ["second"]
    assert store.stages() == {STAGE: {}, "second": {"prompt": 2}}


def test_what_is_done_stays_and_what_failed_may_be_replaced(store):
    store.save(STAGE, [done("a", 0, text="first"), failed("b", 0, "no"), failed("c", 0, "no")])
    store.save(STAGE, [done("a", 0, text="second"), done("b", 0, text="later"), failed("c", 0, "still no")])
    store.save(STAGE, [failed("a", 0, "late")])
    kept = [done("a", 0, text="first"), done("b", 0, text="later"), failed("c", 0, "still no")]
    assert list(store.records(STAGE)) == kept
    assert store.failed(STAGE) == {Unit("c", 0): "still no"}
    assert store.finished(STAGE) == {Unit("a", 0), Unit("b", 0), Unit("c", 0)}


@pytest.mark.parametrize("text", ["ünïcödé 答 🙂", "nul \0 and\nnew lines", 'quotes " and \\', ""])
def test_any_text_comes_back(store, text):
    record = done(f"id {text}", 0, text=text, nested={"list": [1, 2.5, None, True, text]})
    store.save(STAGE, [record])
    (found,) = store.records(STAGE)
    assert found == record


def test_halves_of_surrogate_pairs_are_replaced(store):
    store.save(STAGE, [done("a", 0, text="lone \ud83d, joined \ud83d\ude42"), failed("b", 0, "lone \udc00")])
    first, second = store.records(STAGE)
    assert first.payload["text"] == "lone �, joined 🙂"
    assert second.reason == "lone �"


@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        (Record(7, 0, "done", {}), ValueError, "id 7"),
        (Record("a", -1, "done", {}), ValueError, "index -1"),
        (Record("a", 0, "gone", {}), ValueError, "'gone'"),
        (Record("a", 0, "done", ["text"]), ValueError, "expected a dict"),
        (done("a", 0, value={1, 2}), TypeError, r"payload of \('a', 0\) cannot be kept as JSON .*set"),
    ],
)
def test_a_wrong_record_is_refused_and_none_beside_it_is_saved(store, record, error, message):
    with pytest.raises(error, match=message):
        store.save(STAGE, [done("right", 0), record])
    assert list(store.records(STAGE)) == []


def test_an_unknown_stage_is_refused(store):
    with pytest.raises(StoreError, match=r"has no stage 'other', but \['answers'\]"):
        store.save("other", [done("a", 0)])


def test_a_closed_store_says_so(store):
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.finished(STAGE)


# ------------------------------------------------------------------------------------------------------------ settings

SETTINGS = {"model": "a", "sampling_params": {"temperature": 1.0, "stop": ["\n"]}, "prompt": "x" * 500 + "old"}


def test_the_same_settings_go_on(path):
    same = {**SETTINGS, "sampling_params": {"temperature": 1, "stop": ("\n",)}}
    for settings in (SETTINGS, dict(reversed(SETTINGS.items())), same):
        with Store(path) as store:
            store.open_stage(STAGE, settings)
    with Store(path) as store:
        assert store.stages() == {STAGE: SETTINGS}


@pytest.mark.parametrize(
    ("now", "line"),
    [
        ({**SETTINGS, "model": "b"}, "model: 'a' → 'b'"),
        (
            {**SETTINGS, "sampling_params": {"temperature": 0.7, "stop": ["\n"]}},
            "sampling_params.temperature: 1.0 → 0.7",
        ),
        ({**SETTINGS, "sampling_params": {"temperature": 1.0, "stop": []}}, "sampling_params.stop: ['\\n'] → []"),
        ({**SETTINGS, "seed": 1}, "seed: (absent) → 1"),
        (
            {"model": "a", "prompt": SETTINGS["prompt"]},
            "sampling_params: {'temperature': 1.0, 'stop': ['\\n']} → (absent)",
        ),
        ({**SETTINGS, "prompt": "x" * 500 + "new"}, f"prompt: …'{'x' * 20}old' → …'{'x' * 20}new'"),
    ],
)
def test_changed_settings_are_refused_with_the_difference_named(path, now, line):
    with Store(path) as store:
        store.open_stage(STAGE, SETTINGS)
        store.save(STAGE, [done("a", 0)])
        with pytest.raises(SettingsChanged) as refusal:
            store.open_stage(STAGE, now)
        assert str(refusal.value).splitlines()[1:-1] == [f"  {line}"]
        assert str(refusal.value).endswith("keep the earlier results: another stage name or another file.")
        store.open_stage("another", now)
        assert store.stages() == {STAGE: SETTINGS, "another": now}


def test_settings_under_which_nothing_was_saved_are_replaced(path):
    """So that a first try that failed blocks nothing."""
    with Store(path) as store:
        store.open_stage(STAGE, {"model": "wrong"})
        store.open_stage("another", {})
        store.save("another", [done("a", 0)])
    with Store(path) as store:
        store.open_stage(STAGE, {"model": "right"})
        assert store.stages() == {STAGE: {"model": "right"}, "another": {}}
        store.save(STAGE, [failed("a", 0, "no")])
        with pytest.raises(SettingsChanged, match="model: 'right' → 'wrong'"):
            store.open_stage(STAGE, {"model": "wrong"})


def test_settings_count_from_the_first_result_or_if_it_lies_elsewhere_from_the_beginning(store):
    store.open_stage("prompt", {"system": "a"}, results=STAGE)
    store.open_stage("prompt", {"system": "b"}, results=STAGE)
    store.save(STAGE, [done("a", 0)])
    with pytest.raises(SettingsChanged, match="system: 'b' → 'a'"):
        store.open_stage("prompt", {"system": "a"}, results=STAGE)
    store.fix_settings("training", {"steps": 1})
    with pytest.raises(SettingsChanged, match="steps: 1 → 2"):
        store.fix_settings("training", {"steps": 2})


@pytest.mark.parametrize("results", [None, STAGE])
def test_what_was_made_with_settings_that_another_process_replaced_is_not_saved(path, results):
    stage = "prompt" if results else STAGE
    with Store(path) as slow, Store(path) as quick:
        for store, model in ((slow, "a"), (quick, "b")):
            store.open_stage(STAGE, {} if results else {"model": model})
            store.open_stage(stage, {"model": model}, results=results)
        with pytest.raises(SettingsChanged, match="model: 'b' → 'a'"):
            slow.save(STAGE, [done("a", 0, by="a")])
        quick.save(STAGE, [done("a", 0, by="b")])
        assert list(slow.records(STAGE)) == [done("a", 0, by="b")]


def test_records_are_overwritten_until_there_are_results(store):
    store.open_stage("questions", {})
    store.save("questions", [done("a", 0, text="first"), done("b", 0, text="first")])
    assert store.overwrite("questions", [done("a", 0, text="second")], results=STAGE)
    now = [done("a", 0, text="second"), done("b", 0, text="first")]
    assert list(store.records("questions")) == now
    store.save(STAGE, [done("a", 0)])
    assert not store.overwrite("questions", [done("a", 0, text="third")], results=STAGE)
    assert list(store.records("questions")) == now


# --------------------------------------------------------------------------------------------------------- other files


def test_another_file_is_refused_and_left_as_it_is(tmp_path):
    text, foreign = tmp_path / "notes.txt", tmp_path / "foreign.sqlite"
    text.write_text("These are notes. " * 100)
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE theirs (value)")
    for path in (text, foreign):
        before = path.read_bytes()
        with pytest.raises(StoreError, match=rf"{path.name}.* it is no store.*Fix: give the path of a store"):
            Store(path)
        assert path.read_bytes() == before


def test_a_newer_format_is_refused(store, path):
    store._database._connection.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreError, match="has format 7, this trl-mmreason knows 1. Fix: update"):
        Store(path)


def test_a_damaged_file_is_named(store, path):
    store.save(STAGE, [done(f"row-{number}", 0, text="x" * 3000) for number in range(50)])
    store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(4096) * 20)
    with pytest.raises(StoreError, match=r"answers\.sqlite.* it is damaged .*Fix: restore a copy"):  # noqa: PT012
        again = Store(path)
        list(again.records(STAGE))


def test_a_file_that_was_deleted_or_replaced_is_not_written_to(store, path):
    store.save(STAGE, [done("a", 0)])
    moved = path.with_suffix(".moved")
    path.rename(moved)
    with pytest.raises(StoreError, match="deleted or replaced"):
        store.save(STAGE, [done("b", 0)])
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="deleted or replaced"):
        store.save(STAGE, [done("b", 0)])


@pytest.mark.full
def test_files_and_folders_that_may_only_be_read_are_named():
    for error in outcomes(be_refused, 1)[0]:
        assert "it may not be written to" in error
        assert "Fix: allow writing" in error


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"opening it failed: the system refuses \(.*file"):
        Store(tmp_path / "file" / "answers.sqlite")


# ------------------------------------------------------------------------------------------------------ disk and locks


def test_a_full_disk_loses_nothing_that_was_saved(store, path):
    kept = [done(f"row-{number}", 0, text="x" * 3000) for number in range(10)]
    store.save(STAGE, kept)
    connection = store._database._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    lost = [done(f"row-{number}", 0, text="x" * 3000) for number in range(10, 40)]
    with pytest.raises(StoreError, match=r"saving 30 records .* the disk is full .*Fix: free some space"):
        store.save(STAGE, lost)
    assert list(store.records(STAGE)) == kept
    store.close()
    with Store(path) as again:
        assert list(again.records(STAGE)) == kept
        again.save(STAGE, lost)  # there is space again
        assert len(again.finished(STAGE)) == 40


@pytest.mark.full
def test_a_file_that_cannot_grow_loses_nothing_that_was_saved(path):
    (told,) = outcomes(fill_the_disk, 1, path)
    assert "the disk refuses" in told["error"] or "the disk is full" in told["error"]
    assert "what was saved before is safe" in told["error"]
    assert told["saved"] > 5
    with Store(path) as store:
        assert store.finished(STAGE) == {Unit("row", index) for index in range(told["saved"])}


def test_a_file_that_another_holds_too_long_is_named(store, path, monkeypatch):
    monkeypatch.setattr("trl_mmreason.jobs.database.BUSY_SECONDS", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"another process held it too long \(database is locked\)"):
        Store(path)
    holder.execute("ROLLBACK")
    Store(path).close()


# ----------------------------------------------------------------------------------------------------------- processes


def test_a_process_killed_amid_a_transaction_leaves_no_part_of_it(path):
    process = begin(die_at_commit, path)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    with Store(path) as store:
        assert store.finished(STAGE) == {Unit("row-0", index) for index in range(3)}


def test_processes_that_begin_at_the_same_time_share_a_new_store(path):
    names = [f"process {number}" for number in range(6)]
    for process in [begin(save_one, path, name) for name in names]:
        process.join(120)
        assert process.exitcode == 0
    with Store(path) as store:
        assert list(store.records(STAGE)) == [done(name, 0, by=name) for name in names]


# ------------------------------------------------------------------------------------------------------------- journal


def test_a_store_needs_nothing_but_locks_of_its_file_system(store, path):
    """A write-ahead log needs memory that processes of two machines do not share: not safe on network file systems."""
    store.save(STAGE, [done("a", 0)])
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
