"""vLLM's LLaVA-NeXT with transformers 5's names for the weights of the vision tower."""

from __future__ import annotations

import re

from vllm.model_executor.models.llava_next import LlavaNextForConditionalGeneration
from vllm.model_executor.models.utils import WeightsMapper


class FlatTowerLlavaNext(LlavaNextForConditionalGeneration):
    """LLaVA-NeXT whose vision tower may lack the level `vision_model`.

    transformers 5 has a CLIP tower's weights directly below `vision_tower`, in the live model, whose names TRL sends,
    and in checkpoints of models that were built from a config. vLLM 0.31 wants `vision_tower.vision_model`, as in
    checkpoints of transformers 4, and refuses the others.
    """

    hf_to_vllm_mapper = (
        WeightsMapper(
            orig_to_new_regex={
                re.compile(r"^(model\.)?vision_tower\.(?!vision_model\.)"): "vision_tower.vision_model.",
            }
        )
        | LlavaNextForConditionalGeneration.hf_to_vllm_mapper
    )
