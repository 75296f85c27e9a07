"""A weight whose values do not divide between the processes of ZeRO-3, which pads it."""

import torch
from processes import launch
from support import saved_model
from switch import environment


def test_padding_counts_neither_as_a_value_nor_as_an_infinity(tmp_path):
    saved_model("qwen2_5_vl", tmp_path / "policy")
    launch("engines/padded_run.py", 2, tmp_path, environment=environment("zero3"), seconds=200)
    first, second = (torch.load(tmp_path / f"process_{rank}.pt") for rank in range(2))
    assert first == second
    assert first["changed"] == first["tensors"]
    assert first["trainable"] == first["weights"]
