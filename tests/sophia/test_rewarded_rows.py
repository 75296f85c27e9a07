"""Log-probabilities of the behaviour policy: which tokens they stand at, and how many there may be."""

import pytest
import torch
from datasets import Dataset
from support import load

from trl_mmreason.sophia.rewarded_rows import RewardedCompletions, check_behavior, completion_ids, rewarded_rows

END = 2
NAN = float("nan")
LABELS = torch.tensor([[-100, -100, 7, 8, END, 9], [-100, 7, 8, 9, END, -100]])
"""Completions of two tokens, with a line break behind the end of the turn, and of three, with padding."""


def placed(level, *logps):
    """`behavior_logps` of a batch whose rows have these."""
    collate = RewardedCompletions(lambda rows: {"labels": LABELS}, END, level=level, count_rows=True)
    return collate([{"reward": 1.0, "behavior_logps": list(one)} for one in logps])["behavior_logps"]


def is_equal(found, expected):
    return torch.equal(found.nan_to_num(99.0), torch.tensor(expected).nan_to_num(99.0))


def test_rows_of_reward_0_are_left_out_and_counted(caplog):
    rows = Dataset.from_list([{"reward": reward} for reward in (0.0, -1.0, 0.0)])
    assert rewarded_rows(rows, "Name")["reward"][:] == [-1.0]
    assert caplog.messages == ["Name: 2 of 3 rows have a reward of 0 and are left out; errors number the rest"]


def test_each_token_has_its_own():
    """The second row's end of turn was not sampled."""
    expected = [[NAN, NAN, -1.0, -2.0, -0.5, NAN], [NAN, -1.0, -2.0, -3.0, NAN, NAN]]
    assert is_equal(placed("token", [-1.0, -2.0, -0.5], [-1.0, -2.0, -3.0]), expected)


def test_a_sequence_has_their_sum():
    """Over the end of the turn too, unless exactly one number is missing, which is the end's."""
    expected = [[NAN, NAN, -3.5, 0.0, 0.0, NAN], [NAN, -6.0, 0.0, 0.0, NAN, NAN]]
    assert is_equal(placed("sequence", [-1.0, -2.0, -0.5], [-1.0, -2.0, -3.0]), expected)


def test_a_sequence_may_have_been_written_in_other_tokens():
    expected = [[NAN, NAN, -4.0, 0.0, 0.0, NAN], [NAN, -1.0, 0.0, 0.0, 0.0, NAN]]
    assert is_equal(placed("sequence", [-1.0] * 4, [-1.0]), expected)


def test_a_token_level_needs_one_a_token(checkpoints):
    """With or without one for the end of the turn, and no other number."""
    _, processor = load(checkpoints("qwen2_5_vl"))
    row = {
        "prompt": [{"role": "user", "content": "3+4?"}],
        "completion": [{"role": "assistant", "content": "7 or so"}],
        "images": [],
    }
    count = len(completion_ids(row, processor))
    assert count == len(processor.tokenizer("7 or so").input_ids) + 1
    for given in range(count - 3, count + 3):
        rows = Dataset.from_list([{**row, "behavior_logps": [-1.0] * given}])
        if given in (count - 1, count):
            assert len(check_behavior(rows, "Name", "token", processor)) == 1
        elif given:
            with pytest.raises(ValueError, match=f"Name: row 0 has {given} behavior_logps, and {count} tokens"):
                check_behavior(rows, "Name", "token", processor)
