"""Rows of a rollout batch are shared out over processes by their length, with everything that belongs to them."""

import math

import pytest
import torch
from accelerate import Accelerator
from processes import outcomes

from benchmarks.common import lengths as drawn_lengths
from trl_mmreason.training.exchange import _as_bytes, _as_rows, balance_rows
from trl_mmreason.training.padding import sort_by_length

LENGTHS = [[9, 3, 8, 7], [4, 2, 5, 6]]


def micro_batches(lengths):
    """Two rows each; a prompt of one token, completions as wide as the longest here, 0 to 2 images as Qwen's."""
    made = []
    for start in range(0, len(lengths), 2):
        width, shown = max(lengths) - 1, lengths[start : start + 2]
        mask = (torch.arange(width) < torch.tensor(shown).unsqueeze(1) - 1).long()
        images = [length % 3 for length in shown]
        prompt = torch.tensor(shown).unsqueeze(1)
        made.append(
            {
                "prompt_ids": prompt,
                "prompt_mask": torch.ones_like(prompt),
                "completion_ids": mask * prompt,
                "completion_mask": mask,
                "turn": 1 + mask,
                "advantages": torch.tensor(shown).float(),
                "kl_coefs": (prompt * mask).float(),
                "fields": [
                    {
                        "token": {"types": [1] * length},
                        "image": {"pixels": torch.full((count * length, 1), float(length))} if count else {},
                    }
                    for length, count in zip(shown, images, strict=True)
                ],
                "num_items_in_batch": torch.tensor(7),
                "old_per_token_logps": None,
            }
        )
    return made


def shared_out(window, differ):
    """The micro-batches of this process, of two with `LENGTHS`."""
    accelerator = Accelerator(cpu=True)
    batches = micro_batches(LENGTHS[accelerator.process_index])
    if differ and accelerator.process_index == 1:
        for batch in batches:
            del batch["fields"]
    return sort_by_length(batches, window, accelerator)


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
    assert balance_rows([5, 2, 1, 8, 9, 3], processes, size) == expected


def test_processes_have_about_as_much_to_compute():
    """32 rows on each of 8: a random share is up to 1.3 times the mean."""
    lengths = drawn_lengths(256)
    sums = [sum(lengths[row] for row in rows) for rows in balance_rows(lengths, 8, 4)]
    assert max(sums) < 1.05 * math.fsum(sums) / 8
    before = [sum(lengths[start : start + 32]) for start in range(0, 256, 32)]
    assert max(before) > 1.2 * math.fsum(before) / 8


@pytest.mark.parametrize(
    ("window", "differ", "expected"),
    [
        (2, False, [[[9, 8], [3, 2]], [[7, 6], [5, 4]]]),
        (1, False, [[[9, 4], [8, 7]], [[3, 2], [6, 5]]]),
        (2, True, [[[9, 8], [7, 3]], [[6, 5], [4, 2]]]),  # one process has a field that the other has not
    ],
)
def test_rows_change_the_process_with_all_their_fields(window, differ, expected):
    found = outcomes(shared_out, 2, window, differ)
    for batches, wanted in zip(found, expected, strict=True):
        assert [batch["prompt_ids"].squeeze(1).tolist() for batch in batches] == wanted
        for batch, lengths in zip(batches, wanted, strict=True):
            longest = 8  # tokens of the longest completion on any process
            ids = [[length] * (length - 1) + [0] * (longest - length + 1) for length in lengths]
            assert batch["completion_ids"].tolist() == ids
            assert batch["completion_mask"].tolist() == [[int(token > 0) for token in row] for row in ids]
            assert [row[: length - 1] for row, length in zip(batch["turn"].tolist(), lengths, strict=True)] == [
                [2] * (length - 1) for length in lengths
            ]
            assert batch["advantages"].tolist() == lengths
            assert batch["kl_coefs"].tolist() == ids  # a value per token, as those here
            images = [length % 3 for length in lengths]
            for fields, length, count in zip(batch.get("fields", []), lengths, images, strict=False):
                assert fields["token"] == {"types": [1] * length}
                assert [value.tolist() for value in fields["image"].values()] == (
                    [[[length]] * (count * length)] if count else []
                )
            assert ("fields" in batch) == (not differ or batches is found[0])
            assert (batch["num_items_in_batch"], batch["old_per_token_logps"]) == (torch.tensor(7), None)


def test_tensors_travel_as_their_bytes():
    """Of any type, width and layout: views of one tensor, of three bytes, of no row, of no dimension."""
    whole = torch.arange(12, dtype=torch.bfloat16).view(4, 3)
    rows = {
        "flags": torch.tensor([True, False, True]),
        "pictures": [whole[:1], whole[2:4], whole[:0], whole.T[1:], []],
        "ids": torch.tensor([[2**40, 1]]),
        "count": torch.tensor(0.5),
        "sizes": [[1, 2], [3]],
        "none": None,
    }
    found = _as_rows(*_as_bytes(rows, torch.device("cpu")))
    torch.testing.assert_close(found, rows, rtol=0, atol=0, equal_nan=True)
    assert found["pictures"][0].untyped_storage().nbytes() == 3 * 2
