"""Which questions the two offline filters keep, and that a killed run resumes."""

import re

import pytest
from datasets import Dataset

from trl_mmreason.adapo.prefilter import STAGE, prefilter
from trl_mmreason.data.row_loading import load_rows
from trl_mmreason.generation import Failure, Sample, SamplingParams, derive_seed
from trl_mmreason.jobs.difficulty import difficulty_filter
from trl_mmreason.jobs.store import SettingsChanged, Store

# question → its trajectories: first and second answer; the right answer is always 7
SCRIPT = {
    "easy": [("7", "7"), ("7.0", "7"), ("7", "7")],
    "hard": [("1", "2"), ("1", "1"), ("3", "4")],
    "learns": [("1", "7"), ("1", "7"), ("1", "7")],  # all alike, but neither 1→1 nor 0→0: kept
    "spoils": [("7", "1"), ("7", "1"), ("7", "1")],
    "mixed": [("7", "7"), ("1", "1"), ("7", "7")],
    "long": [("7…", None), ("7…", None), ("7…", None)],  # the length limit ended them: wrong, and no second turn
    "broken": [("?", None), ("?", None), ("?", None)],
    "no gold": [("7", "7"), ("1", "1"), ("7", "7")],
}
SEED = 3


class ScriptedEngine:
    """Answers as the script says; which trajectory it is asked for follows from the seed."""

    settings = {"kind": "script"}

    def __init__(self):
        self.asked = []

    def sample(self, requests, sampling_params):
        return [[answer] if isinstance(answer, Sample) else answer for answer in map(self.answer, requests)]

    def answer(self, request):
        name = request.messages[0]["content"]
        self.asked.append((name, len(request.messages)))
        for index, (first, second) in enumerate(SCRIPT[name]):
            seed = derive_seed(SEED, name, index)
            if len(request.messages) == 1 and request.seed == seed:
                if first == "?":
                    return Failure("the image is too large")
                return Sample(rf"\boxed{{{first}}}", "length" if second is None else "stop")
            if len(request.messages) == 3 and request.seed == derive_seed(seed, "second turn"):
                assert request.messages[1] == {"role": "assistant", "content": rf"\boxed{{{first}}}"}
                assert request.messages[2] == {"role": "user", "content": "Check it."}
                return Sample(rf"\boxed{{{second}}}", "stop")
        raise AssertionError(f"asked for what is not in the script: {request}")


def questions():
    rows = [{"id": name, "prompt": [{"role": "user", "content": name}], "answer": "7"} for name in SCRIPT]
    return Dataset.from_list([*rows[:-1], {**rows[-1], "answer": ""}])  # "no gold"


def filtered(path, engine, **settings):
    with Store(path) as store:
        settings = {"n": 3, "followup": "Check it.", "seed": SEED, "batch_size": 4, **settings}
        return prefilter(questions(), engine, store, **settings), list(store.records(STAGE))


def test_adapo_drops_what_is_all_right_or_all_wrong(tmp_path):
    kept, records = filtered(tmp_path / "s.sqlite", ScriptedEngine())
    assert kept.rows["id"] == ["learns", "spoils", "mixed"]
    assert kept.dropped == {
        "too easy: all 1→1": 1,
        "too hard: all 0→0": 2,
        "not graded: sampling failed, or the gold answer cannot be used": 2,
    }
    assert str(kept).splitlines()[0] == "kept 3 of 8 questions"
    by_unit = {(record.id, record.index): record for record in records}
    turns = [{"text": r"\boxed{1}"}, {"text": r"\boxed{7}"}]
    assert by_unit["learns", 1].payload == {"turns": turns, "finish_reasons": ["stop", "stop"]}
    assert len(by_unit["long", 0].payload["turns"]) == 1
    assert by_unit["long", 0].payload["finish_reasons"] == ["length"]
    assert by_unit["broken", 0].status == "failed"
    assert "too large" in by_unit["broken", 0].reason


def test_filtered_sets_are_read_together_from_a_folder(tmp_path):
    """As docs/adapo.md has it: one parquet file a data set, their stores elsewhere."""
    (tmp_path / "data").mkdir()
    for name in ("one", "two"):
        kept, _ = filtered(tmp_path / f"{name}.sqlite", ScriptedEngine())
        kept.rows.to_parquet(tmp_path / "data" / f"{name}.parquet")
    rows = load_rows(tmp_path / "data").dataset
    assert rows["id"][:] == ["learns", "spoils", "mixed"] * 2


def test_it_resumes_where_it_stopped(tmp_path):
    class Dies(ScriptedEngine):
        def answer(self, request):
            if request.messages[0]["content"] == "mixed":
                raise KeyboardInterrupt
            return super().answer(request)

    with pytest.raises(KeyboardInterrupt):
        filtered(tmp_path / "s.sqlite", Dies())
    again = ScriptedEngine()
    kept, _ = filtered(tmp_path / "s.sqlite", again)
    assert kept.rows["id"] == ["learns", "spoils", "mixed"]
    assert "easy" not in {name for name, _ in again.asked}
    assert ("mixed", 1) in again.asked


def test_other_settings_are_refused(tmp_path):
    filtered(tmp_path / "s.sqlite", ScriptedEngine())
    with pytest.raises(SettingsChanged, match=re.escape("max_new_tokens")):
        filtered(tmp_path / "s.sqlite", ScriptedEngine(), sampling_params=SamplingParams(max_new_tokens=5))


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (0.1, 0.9, ["mixed"]),
        (0, 0.9, ["hard", "learns", "mixed", "long"]),
        (2 / 3, 1, ["easy", "spoils", "mixed"]),  # both bounds belong to it
        (0.4, 0.6, []),
    ],
)
def test_difficulty(tmp_path, low, high, names):
    with Store(tmp_path / "s.sqlite") as store:
        kept = difficulty_filter(questions(), ScriptedEngine(), store, low=low, high=high, n=3, seed=SEED, batch_size=5)
    assert kept.rows["id"] == names
    assert sum(kept.dropped.values()) == 8 - len(names)


def test_bounds_must_be_shares(tmp_path):
    with Store(tmp_path / "s.sqlite") as store, pytest.raises(ValueError, match="low is 0.9 and high 0.1"):
        difficulty_filter(questions(), ScriptedEngine(), store, low=0.9, high=0.1)
