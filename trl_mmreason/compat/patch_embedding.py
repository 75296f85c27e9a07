"""Embed the patches of images with a matrix product where a model has a convolution.

The Qwen-VL families embed each patch with an `nn.Conv3d` whose kernel is as large as the patch, which is a linear
layer. Convolution kernels are slow at that: 3 to 7 times on CPUs, and up to 50,000 times on some GPUs in bf16
(huggingface/transformers#45750). transformers replaces it on request (`fusion_config`, #45041), but under other names
of the weights, which checkpoints and vLLM would then have to know. Here names and shapes stay.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear


class WholePatchConv3d(nn.Conv3d):
    """`nn.Conv3d` that computes inputs as large as its kernel with a matrix product."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.shape[2:] != self.kernel_size:
            return super()._conv_forward(input, weight, bias)
        return linear(input.flatten(1), weight.flatten(1), bias)[:, :, None, None, None]


def use_matrix_product_for_patches(model: nn.Module) -> None:
    """Turn each 3D convolution without overlap or padding into a `WholePatchConv3d` with the same weights, in place."""
    for module in model.modules():
        if (
            type(module) is nn.Conv3d
            and module.stride == module.kernel_size
            and set(module.padding) == {0}
            and set(module.dilation) == {1}
            and module.groups == 1
        ):
            module.__class__ = WholePatchConv3d
