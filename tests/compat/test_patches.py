"""The matrix product in place of a convolution over whole patches."""

from copy import deepcopy

import pytest
import torch
from support import FAMILY_NAMES, load
from torch import nn
from torch.nn.functional import conv3d

from trl_mmreason.compat.patch_embedding import WholePatchConv3d, use_matrix_product_for_patches
from trl_mmreason.generation.model_loading import load_model
from trl_mmreason.miniature.tasks import make_problem
from trl_mmreason.training.preparation import prepare_policy

BY_CONVOLUTION = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl"}


def embeds_patches(model) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.Conv3d)]


def features_and_gradients(model, inputs):
    """What the vision encoder makes of an image, and the gradient of each of its weights."""
    model.zero_grad()
    features = torch.cat(list(model.get_image_features(**inputs, return_dict=True).pooler_output))
    features.square().mean().backward()
    return features.detach(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_features_gradients_and_names_of_weights_stay(family, checkpoints):
    model, processor = load(checkpoints(family))
    encoded = processor.image_processor(images=[make_problem("adding", 3).image], return_tensors="pt")
    inputs = {name: encoded[name] for name in ("pixel_values", "image_grid_thw", "image_sizes") if name in encoded}
    features, gradients = features_and_gradients(model, inputs)
    before = deepcopy(model.state_dict())

    prepare_policy(model, processor)

    assert [type(each) for each in embeds_patches(model)] == [WholePatchConv3d] * (family in BY_CONVOLUTION)
    same, same_gradients = features_and_gradients(model, inputs)
    torch.testing.assert_close(same, features, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(same_gradients, gradients, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_transformers_still_embeds_patches_with_a_convolution(checkpoints):
    """Where this fails, a family has a linear layer of its own: see whether compat/patch_embedding.py can go."""
    found = {family for family in FAMILY_NAMES if embeds_patches(load(checkpoints(family))[0])}
    assert found == BY_CONVOLUTION


def test_a_model_that_is_loaded_for_sampling_has_it_too(checkpoints):
    model, _ = load_model(checkpoints("qwen2_5_vl"))
    assert [type(each) for each in embeds_patches(model)] == [WholePatchConv3d]


def test_numbers_by_hand():
    """One channel and a kernel of one frame, one line and two pixels, weights 3 and 5: 3·1 + 5·2 + 0.5 = 13.5."""
    model = nn.Sequential(nn.Conv3d(1, 1, (1, 1, 2), stride=(1, 1, 2)))
    model.load_state_dict({"0.weight": torch.tensor([3.0, 5.0]).view(1, 1, 1, 1, 2), "0.bias": torch.tensor([0.5])})
    use_matrix_product_for_patches(model)
    assert model(torch.tensor([1.0, 2.0]).view(1, 1, 1, 1, 2)).tolist() == [[[[[13.5]]]]]


def test_an_input_of_several_patches_is_a_convolution_as_before():
    conv = nn.Conv3d(3, 4, 2, stride=2)
    frames = torch.randn(2, 3, 4, 6, 2)
    expected = conv3d(frames, conv.weight, conv.bias, stride=2)
    use_matrix_product_for_patches(conv)
    assert type(conv) is WholePatchConv3d
    torch.testing.assert_close(conv(frames), expected)


@pytest.mark.parametrize("settings", [{"stride": 1}, {"padding": 1}, {"dilation": 2}, {"groups": 2}])
def test_what_is_no_linear_layer_stays_a_convolution(settings):
    conv = nn.Conv3d(4, 4, 2, **{"stride": 2, **settings})
    use_matrix_product_for_patches(conv)
    assert type(conv) is nn.Conv3d
