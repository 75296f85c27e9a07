"""Several stores become one: every unit once, nothing mixed, and nothing half when it is killed."""

import random
import time

import pytest
from processes import begin

from trl_mmreason.jobs.merge_stores import MergeConflict, StageCount, merge_stores
from trl_mmreason.jobs.store import Record, Store

SETTINGS = {"model": "m", "sampling_params": {"temperature": 1.0, "top_p": 1.0}}


def fill(path, records, stage="answers", settings=SETTINGS):
    with Store(path) as store:
        store.open_stage(stage, settings)
        store.save(stage, records)
    return path


def done(id_, index=0, **payload):
    return Record(id_, index, "done", payload or {"text": f"{id_} {index}"})


def failed(id_, reason):
    return Record(id_, 0, "failed", {}, reason)


def contents(path):
    with Store(path) as store:
        return {stage: (settings, list(store.records(stage))) for stage, settings in store.stages().items()}


def test_every_unit_is_there_once(tmp_path):
    """Shares, one unit in both, one that failed on one machine only, and a stage that only one machine came to."""
    first = fill(tmp_path / "a", [done("é"), done("a", 1), done("a", 10), done("a", 2), failed("f", "no memory")])
    fill(first, [done("a")], "verdicts", {"grader": "g"})
    second = fill(tmp_path / "b", [done("b"), done("é"), done("f"), failed("g", "too long")])
    third = fill(tmp_path / "c", [done("c"), failed("g", "too late")])
    merged = merge_stores([first, second, third], tmp_path / "new" / "all.sqlite")
    assert merged.stages == {"answers": StageCount(8, 1), "verdicts": StageCount(1, 0)}
    assert str(merged) == "answers: 8 units, 1 failed\nverdicts: 1 units"
    units = [done("a", 1), done("a", 2), done("a", 10), done("b"), done("c"), done("f"), failed("g", "too long")]
    assert contents(tmp_path / "new" / "all.sqlite") == {
        "answers": (SETTINGS, [*units, done("é")]),
        "verdicts": ({"grader": "g"}, [done("a")]),
    }
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["all.sqlite"]


def test_other_settings_are_refused_by_name(tmp_path):
    first = fill(tmp_path / "a", [done("a")])
    second = fill(
        tmp_path / "b", [done("b")], settings={"model": "m", "sampling_params": {"temperature": 0.5, "top_p": 1.0}}
    )
    told = r"stage 'answers' .*/b than in .*/a.*\n  sampling_params.temperature: 1.0 → 0.5\nF"
    with pytest.raises(MergeConflict, match=told):
        merge_stores([first, second], tmp_path / "all")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_different_results_of_a_unit_are_refused_by_name(tmp_path):
    first = fill(tmp_path / "a", [done(f"row-{k}", text="yes", tokens=3) for k in range(9)])
    second = fill(tmp_path / "b", [done(f"row-{k}", text="yes" if k < 2 else "no", tokens=3) for k in range(9)])
    with pytest.raises(MergeConflict) as caught:
        merge_stores([first, second], tmp_path / "all")
    lines = str(caught.value).splitlines()
    assert lines[0] == "7 units have different results in different stores, and only one can be kept:"
    assert lines[1] == (
        f"  stage 'answers', id \"row-2\", sample 0: a in {tmp_path} and b in {tmp_path} differ in text: 'yes' → 'no'"
    )
    assert len(lines) == 8
    assert lines[6] == "  …"
    assert lines[7].startswith("Fix: leave one of these stores out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_paths_that_cannot_be_meant(tmp_path):
    first, second = (fill(tmp_path / name, [done(name)]) for name in "ab")
    for inputs, output, message in [
        ([first], "all", "expected two or more different files"),
        ([first, first, second], "all", "expected two or more different files"),
        ([first, tmp_path / "c"], "all", "there is no store .*/c"),
        ([first, second], "b", "the output .*/b exists already. Fix: give another path, or delete it first"),
    ]:
        with pytest.raises(ValueError, match=message):
            merge_stores(inputs, tmp_path / output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.full
def test_a_merge_that_is_killed_leaves_the_stores_and_no_half_output(tmp_path):
    """At 12 moments from the beginning to the end; then it is done, from the start."""
    halves = [
        fill(tmp_path / name, [done(f"row-{k}", text="x" * 300) for k in range(start, 20_000, 2)])
        for start, name in enumerate(("a.sqlite", "b.sqlite"))
    ]
    before = [path.read_bytes() for path in halves]
    output, moments, halfway = tmp_path / "out" / "all.sqlite", random.Random(0), 0
    partial = output.with_name("all.sqlite.unfinished")
    for kill in range(12):
        process = begin("helpers/command_run.py", "merge", *halves, "--output", output)
        while process.is_alive() and not partial.exists():
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.05) * kill)
        process.kill()
        process.join()
        halfway += partial.exists()
        if output.exists():
            break
    assert halfway >= 3
    output.unlink(missing_ok=True)
    merge_stores(halves, output)
    assert contents(output)["answers"][1] == sorted(done(f"row-{k}", text="x" * 300) for k in range(20_000))
    assert [path.name for path in output.parent.iterdir()] == ["all.sqlite"]  # nothing of the killed ones is left
    assert [path.read_bytes() for path in halves] == before
