"""A frozen head whose input is a slice of the hidden states."""

import torch
from support import load
from torch.utils._python_dispatch import TorchDispatchMode

from trl_mmreason.training.preparation import prepare_policy


class HeadProducts(TorchDispatchMode):
    """Names of the products that give logits."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary, self.names = vocabulary, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm") and result.shape[-1] == self.vocabulary:
            self.names.append(name)
        return result


def test_its_weight_is_not_multiplied_row_by_row(checkpoints):
    """Where the first line with "bmm" fails, torch multiplies all rows at once: compat/head_input.py can go."""
    model, processor = load(checkpoints("qwen2_5_vl"))
    model.requires_grad_(False)
    ids = processor.tokenizer("one two three four five six", return_tensors="pt").input_ids.repeat(3, 1)
    whole = model(ids).logits

    def last_two():
        with HeadProducts(whole.shape[-1]) as products:
            logits = model(ids, logits_to_keep=2).logits
        torch.testing.assert_close(logits, whole[:, -2:], rtol=1e-5, atol=1e-5)
        return products.names

    assert last_two() == ["bmm"]
    prepare_policy(model, processor)
    assert last_two() == ["mm"]
