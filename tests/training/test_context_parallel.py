"""Why a long row is not split over processes (docs/scaling.md, "Rows longer than one GPU"), and until when.

Tried with accelerate 1.15, TRL 1.16, torch 2.13, two processes with gloo, and Qwen2.5-VL.
"""

import pytest
import torch
from accelerate import ParallelismConfig
from processes import outcomes
from support import drawn_rows, load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

from trl_mmreason import AdaPOConfig
from trl_mmreason.generation.batch import collate, encode


def test_trl_still_refuses_it(tmp_path):
    with pytest.raises(ValueError, match="does not support sequence-dim parallelism"):
        AdaPOConfig(str(tmp_path), use_cpu=True, bf16=False, parallelism_config=ParallelismConfig(cp_size=2))


def attention_over_two():
    """What causal attention over a sequence in two halves says, one in each process."""
    heads = [torch.randn(1, 2, 8, 4) for _ in range(3)]
    try:
        with context_parallel(init_device_mesh("cpu", (2,)), buffers=heads, buffer_seq_dims=[2, 2, 2]):
            return tuple(torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True).shape)
    except NotImplementedError as error:
        return str(error)


def test_torch_still_has_no_such_attention_on_cpus():
    assert all("flash_attention_for_cpu" in said for said in outcomes(attention_over_two, 2))


def test_half_a_row_still_lacks_the_placeholders_of_its_image(checkpoints):
    """A model looks for all features of a pass in the ids of the same pass."""
    model, processor = load(checkpoints("qwen2_5_vl"))
    row = next(row for row in drawn_rows(3) if len(row["images"]) == 1)
    whole = collate([encode(processor, row["prompt"], row["images"])], 0)
    image = (whole["input_ids"][0] == model.config.image_token_id).nonzero()
    middle = int(image[len(image) // 2])
    half = {
        name: value[:, :middle] if value.shape == whole["input_ids"].shape else value for name, value in whole.items()
    }
    model(**whole)
    with pytest.raises(ValueError, match="Image features and image tokens do not match"):
        model(**half)
