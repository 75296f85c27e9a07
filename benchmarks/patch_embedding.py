"""Embedding a picture's patches: the matrix product of `engines/patches.py` against the convolution of transformers.

Forward and backward passes of the vision encoder of Qwen2.5-VL-3B with random weights, and of its patch embedding
alone, in turns in one run. The exit code is 1 if features or gradients differ by more than rounding.
"""

from __future__ import annotations

import copy
import sys

import torch
from rounds import median_ratio, medians_of, middle_half, parser_of, take_turns, write_numbers
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from trl_mmreason.commands.parsers import count
from trl_mmreason.engines.patches import use_matrix_product_for_patches


def compare(name: str, convolution: nn.Module, inputs: tuple[Tensor, ...], rounds: int) -> tuple[dict, float]:
    """Time both ways and print their ratio; return seconds, and the relative difference of features and gradients."""
    product = copy.deepcopy(convolution)
    use_matrix_product_for_patches(product)

    def passes(encoder: nn.Module) -> list[Tensor]:
        features = encoder(*inputs)
        features = getattr(features, "pooler_output", features)
        encoder.zero_grad()
        features.float().square().mean().backward()
        return [features.detach(), next(encoder.parameters()).grad]

    seconds, results = take_turns(
        {"convolution": lambda: passes(convolution), "product": lambda: passes(product)}, rounds, warm_up=2
    )
    median = medians_of(seconds)
    ratio = median_ratio(seconds["convolution"], seconds["product"])
    spread = middle_half(seconds["convolution"], seconds["product"])
    print(f"{name:<20}{median['convolution']:>16.4f}{median['product']:>18.4f}{ratio:>8.1f}   {spread}")
    pairs = zip(results["convolution"][-1], results["product"][-1], strict=True)
    return seconds, max(((one - other).norm() / one.norm()).item() for one, other in pairs)


def main() -> int:
    parser = parser_of(__doc__, rounds=9)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", help="of weights and pictures, such as bfloat16")
    parser.add_argument(
        "--side", type=count, default=16, help="patches along a side of the square picture, an even number"
    )
    parser.add_argument("--pictures", type=count, default=1)
    parser.add_argument("--layers", type=count, default=32, help="of the encoder; the model has 32")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    config = Qwen2_5_VLVisionConfig(depth=arguments.layers, hidden_size=1280, out_hidden_size=2048)
    where = {"device": arguments.device, "dtype": getattr(torch, arguments.dtype)}
    encoder = Qwen2_5_VisionTransformerPretrainedModel(config).to(**where)
    grid = torch.tensor([[1, arguments.side, arguments.side]] * arguments.pictures, device=arguments.device)
    pixels = torch.randn(int(grid.prod(-1).sum()), 3 * 2 * 14 * 14, **where)
    print(f"{len(pixels)} patches, {arguments.dtype}, {arguments.device}; medians of {arguments.rounds} rounds")
    print(f"{'forward, backward':<20}{'convolution, s':>16}{'matrix product, s':>18}{'ratio':>8}   middle half")
    embedding, differs_embedding = compare("patch embedding", encoder.patch_embed, (pixels,), arguments.rounds)
    whole, differs_whole = compare("vision encoder", encoder, (pixels, grid), arguments.rounds)
    print(f"features and gradients differ by {max(differs_embedding, differs_whole):.1e}, relatively")
    write_numbers(arguments, patch_embedding=embedding, vision_encoder=whole)
    return int(max(differs_embedding, differs_whole) > (1e-4 if arguments.dtype == "float32" else 3e-2))


if __name__ == "__main__":
    sys.exit(main())
