"""Rows of a rollout batch are shared out over processes by their length, with everything that belongs to them."""

import math
import sys
from pathlib import Path

import pytest
import torch
from processes import outcomes

from trl_mmreason.exchange import share_out

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from workload import lengths as drawn_lengths


@pytest.mark.parametrize(
    ("processes", "size", "expected"),
    [
        (1, 2, [[4, 3, 0, 5, 1, 2]]),
        (2, 1, [[4, 5, 1], [3, 0, 2]]),  # 9 and 8, then 3 and 5, then 2 to the 12 and 1 to the 13
        (3, 2, [[4, 3], [0, 5], [1, 2]]),
        (3, 1, [[4, 2], [3, 1], [0, 5]]),  # 9 + 1, 8 + 2 and 5 + 3
    ],
)
def test_the_longest_micro_batch_goes_to_who_has_least_so_far(processes, size, expected):
    assert share_out([5, 2, 1, 8, 9, 3], processes, size) == expected


def test_processes_have_about_as_much_to_compute():
    """32 rows on each of 8: a random share is up to 1.3 times the mean."""
    lengths = drawn_lengths(256)
    sums = [sum(lengths[row] for row in rows) for rows in share_out(lengths, 8, 4)]
    assert max(sums) < 1.05 * math.fsum(sums) / 8
    before = [sum(lengths[start : start + 32]) for start in range(0, 256, 32)]
    assert max(before) > 1.2 * math.fsum(before) / 8


@pytest.mark.parametrize(
    ("window", "differ", "expected"),
    [
        (2, [], [[[9, 8], [3, 2]], [[7, 6], [5, 4]]]),
        (1, [], [[[9, 4], [8, 7]], [[3, 2], [6, 5]]]),
        (2, ["differ"], [[[9, 8], [7, 3]], [[6, 5], [4, 2]]]),  # one process has a field that the other has not
    ],
)
def test_rows_change_the_process_with_all_their_fields(window, differ, expected, tmp_path):
    found = outcomes("exchange_run.py", 2, "-", tmp_path, window, *differ)
    for batches, wanted in zip(found, expected, strict=True):
        assert [batch["prompt_ids"].squeeze(1).tolist() for batch in batches] == wanted
        for batch, lengths in zip(batches, wanted, strict=True):
            longest = 8  # tokens of the longest completion on any process
            ids = [[length] * (length - 1) + [0] * (longest - length + 1) for length in lengths]
            assert batch["completion_ids"].tolist() == ids
            assert batch["completion_mask"].tolist() == [[int(token > 0) for token in row] for row in ids]
            assert batch["turn"].tolist() == [[1 + int(token > 0) for token in row] for row in ids]
            assert batch["advantages"].tolist() == lengths
            assert batch["kl_coefs"].tolist() == [[length, length] for length in lengths]
            pictures = [length % 3 for length in lengths]
            assert batch["num_images"] == pictures
            shown = [length for length, count in zip(lengths, pictures, strict=True) for _ in range(count)]
            assert batch["image_grid_thw"][:, 2].tolist() == shown
            assert batch["pixel_values"].squeeze(1).tolist() == [length for length in shown for _ in range(length)]
            assert (batch["num_items_in_batch"], batch["old_per_token_logps"]) == (torch.tensor(7), None)
