"""Weights for a colocated vLLM wait until they are a bucket. With vLLM itself: tests/engines/test_vllm.py."""

import torch

from trl_mmreason.compat.vllm_buckets import Buckets


def loaded(sizes, *, copies, most):
    """The names of each call, and the values as they were then, where a gathered weight is freed behind its turn."""
    calls = []
    buckets = Buckets(
        lambda pairs: calls.append([(name, value.clone()) for name, value in pairs]), copies=copies, most=most
    )
    for number, size in enumerate(sizes):
        weight = torch.full((size,), float(number))
        buckets.add([(str(number), weight)])
        if copies:
            weight.zero_()
    buckets.flush()
    return calls


def test_a_bucket_is_full_when_it_has_so_many_bytes():
    calls = loaded([2, 1, 3, 5, 1], copies=False, most=12)  # four bytes a value
    assert [[name for name, _ in call] for call in calls] == [["0", "1"], ["2"], ["3"], ["4"]]


def test_freed_weights_are_copied():
    calls = loaded([1, 1, 1], copies=True, most=100)
    assert [(name, value.item()) for name, value in calls[0]] == [("0", 0.0), ("1", 1.0), ("2", 2.0)]
