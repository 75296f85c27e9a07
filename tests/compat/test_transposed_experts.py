"""Experts of a checkpoint in the model's own layout are not transposed, also if ZeRO-3 has the model in pieces."""

import torch
from torch import nn
from transformers.core_model_loading import Transpose

from trl_mmreason.compat import sharding


def converted(convert, saved, whole):
    """Shape of a tensor after loading it into a weight in pieces, whose whole shape is `whole`."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.empty(0))
    model.weight.ds_shape = torch.Size(whole)
    names = {"model": model, "full_layer_name": "weight"}
    return tuple(
        convert(Transpose(1, 2, check_dims=True), {"w": [torch.zeros(saved)]}, ["w"], ["w"], **names)["w"].shape
    )


def test_only_experts_of_another_shape_are_transposed():
    assert converted(Transpose.convert, (4, 64, 32), (4, 64, 32)) == (4, 64, 32)
    assert converted(Transpose.convert, (4, 32, 64), (4, 64, 32)) == (4, 64, 32)


def test_transformers_still_transposes_them_all():
    """Where this fails, transformers knows ZeRO-3's shapes: `_convert_by_whole_shape` in compat/sharding.py can go."""
    assert converted(sharding._transpose, (4, 64, 32), (4, 64, 32)) == (4, 32, 64)
