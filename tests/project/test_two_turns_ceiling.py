"""The engine steps that two turns save without a barrier: counted by hand, and as the page says."""

from pathlib import Path

import pytest

from benchmarks.two_turns import ROWS, decode_steps, draw_turns, mean_steps, table

ROOT = Path(__file__).parents[2]


def test_steps_are_those_of_the_longest_row():
    # with a barrier 4 + 5; without, the rows take 1 + 5, 4 + 1 and 2 + 2
    assert decode_steps([1, 4, 2], [5, 1, 2]) == (9, 6)
    # one row is longest in both turns: nothing is saved
    assert decode_steps([4, 1], [5, 1]) == (9, 9)


def test_the_ceiling_is_the_mean_of_the_draws():
    drawn = [draw_turns(3, seed) for seed in range(2)]
    (first, second, one), (other_first, other_second, other_one) = drawn
    assert all(1 <= tokens <= 128 for turn in (first, second, other_first, other_second) for tokens in turn)
    assert first != second
    assert first != other_first
    after = [max(first) + max(second), max(other_first) + max(other_second)]
    without = [
        max(first[row] + second[row] for row in range(3)),
        max(other_first[row] + other_second[row] for row in range(3)),
    ]
    assert mean_steps(3, draws=2) == ((max(one) + max(other_one)) / 2, sum(after) / 2, sum(without) / 2)


@pytest.mark.full
def test_the_page_has_the_counted_steps():
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    assert table(ROWS, draws=400) in page
