"""The benchmark of how time and memory grow: it measures on small sizes, and its page says what its file holds."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.common import GROUP
from benchmarks.on_paper import Machine, Policy, oversampled_seconds, rollout_seconds
from benchmarks.scaling import OPERATIONS, growth, merge, table

ROOT = Path(__file__).parents[2]


def numbers_of(axis, sizes, folder):
    arguments = ["--axes", axis, "--sizes", *map(str, sizes), "--rounds", "1", "--policy", "test"]
    main(["scaling", *arguments, "--known", str(folder / "json"), "--images", str(folder)])
    return json.loads((folder / "json").read_text())[axis]


def test_the_power_is_that_of_the_largest_sizes():
    assert growth({10: 3.0, 100: 3.0, 1000: 300.0, 10_000: 30_000.0}) == pytest.approx(2)
    assert growth({1: 5.0, 2: 5.0}) == pytest.approx(0)
    measured = {"store": {"read": {"10": {"seconds": [1, 9, 2]}, "100": {"seconds": [4, 20, 30]}}}}
    assert table([("store", "read")], measured).endswith(
        "| read | units in the store, 10 → 100 | 2 → 20 | 10 | 1.00 | | |"
    )


def test_a_run_of_one_size_leaves_the_other_sizes_of_its_axis():
    def seconds(by_size):
        return {size: {"seconds": [value]} for size, value in by_size.items()}

    known = {"read": seconds({"10": 1.0, "1000": 3.0}), "merge": seconds({"10": 5.0})}
    measured = {"read": seconds({"200": 2.0, "10": 1.5}), "export": seconds({"200": 7.0})}
    assert merge(known, measured) == {
        "read": seconds({"10": 1.5, "200": 2.0, "1000": 3.0}),
        "merge": seconds({"10": 5.0}),
        "export": seconds({"200": 7.0}),
    }
    # in the order that lines are drawn in
    assert list(merge(known, measured)["read"]) == ["10", "200", "1000"]
    assert merge({}, known) == known


@pytest.mark.full
def test_every_operation_of_a_store_is_measured(tmp_path):
    numbers = numbers_of("store", [80, 400], tmp_path)
    assert list(numbers) == list(OPERATIONS)
    for by_size in numbers.values():
        for rounds in by_size.values():
            assert len(rounds["seconds"]) == 1
            assert min(rounds["seconds"]) > 0
    assert (tmp_path / "scaling_store.png").stat().st_size > 10_000


@pytest.mark.full
def test_a_step_of_two_processes_is_measured(tmp_path):
    numbers = numbers_of("processes", [1, 2], tmp_path)
    assert set(numbers) == {"step", "generation", "rewards", "scoring", "update"}
    for size in ("1", "2"):
        whole = numbers["step"][size]["seconds"]
        parts = [numbers[part][size]["seconds"] for part in numbers if part != "step"]
        assert all(sum(each) <= step for *each, step in zip(*parts, whole, strict=True))
        assert min(numbers["step"][size]["mebibytes"]) > 0


@pytest.mark.full
def test_a_process_that_dies_ends_the_benchmark(tmp_path):
    """The other one waits for its turn in the meantime."""
    with pytest.raises((EOFError, ConnectionError)):
        numbers_of("group", [2, 1], tmp_path)  # TRL refuses groups of one


def test_the_page_says_what_was_measured(capsys):
    main(["scaling", "--known", str(ROOT / "docs/scaling.json")])
    tables = capsys.readouterr().out.split("\n\n")
    page = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    assert len(tables) == 2
    assert all(each.strip() in page for each in tables)


def test_the_page_has_the_step_on_paper(capsys):
    main(["on_paper"])
    assert capsys.readouterr().out in (ROOT / "docs" / "scaling.md").read_text()


def test_a_rollout_takes_as_long_as_its_longest_answer():
    """Weights of 8 bytes at 4 bytes a second: 2 s a token, with half a second of keys and values each token and row."""
    machine, policy = Machine(memory=4.0, reads=1.0, launch=0.0), Policy(parameters=4.0, cache=2.0)
    until_last, work = rollout_seconds([2, 4], 0, policy, machine)
    # two tokens of two rows at 1 token each in the mean: 2 + 2 · 1 / 2; two more of one row at 3: 2 + 3 / 2
    assert until_last == pytest.approx(2 * 3.0 + 2 * 3.5)
    assert work == pytest.approx(3 * (2 + 2 * 1.5 / 2))  # three tokens of two rows at 1.5


def test_a_rollout_of_paper_leaves_its_longest_groups_for_the_next():
    """Groups of 10 and of 20 tokens, a step a second: a rollout of both takes 20 s, and one of one of them 10."""
    lengths, paper = [*[10] * GROUP, *[20] * GROUP], (0, Policy(), Machine(memory=math.inf, launch=1.0))
    assert oversampled_seconds(lengths, 2, 0.0, *paper) == [20.0]
    assert oversampled_seconds(lengths, 1, 1.0, *paper) == [10.0]
    # the second group has 10 tokens left, and is chosen before the third ends
    assert oversampled_seconds([*lengths, *[30] * GROUP], 1, 1.0, *paper) == [10.0, 10.0]
