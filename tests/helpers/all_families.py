"""Every family of which the tests can build a tiny random model, by name."""

from collections.abc import Callable
from functools import partial

from families_grids import (
    ernie4_5_vl_moe,
    exaone4_5,
    glm4v,
    glm5_next,
    glm46v,
    glm_ocr,
    hunyuan_vl,
    kimi_k25,
    paddleocr_vl,
    qwen2_5_omni_thinker,
    qwen3_5,
    qwen3_vl_moe,
    video_llama_3,
)
from families_plain import aria, gemma3, janus, lighton_ocr, llama4, llava, mistral3, pixtral
from families_text import llama, qwen3
from families_tiles import cohere2_vision, idefics2, llava_onevision, minicpmv4_6, ovis2, smolvlm
from further_families import (
    aya_vision,
    deepseek_vl,
    gemma4,
    glm_experts,
    granite_vision,
    idefics3,
    internvl_experts,
    mllama,
    paligemma,
)

from trl_mmreason.miniature.models import build_model

TEXT_ONLY = {"llama", "qwen3"}
FAMILIES: dict[str, Callable] = {
    "aria": aria,
    "aya_vision": aya_vision,
    "cohere2_vision": cohere2_vision,
    "deepseek_vl": deepseek_vl,
    "ernie4_5_vl_moe": ernie4_5_vl_moe,
    "exaone4_5": exaone4_5,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "glm46v": glm46v,
    "glm4v": glm4v,
    "glm5_next": glm5_next,
    "glm_experts": glm_experts,
    "glm_ocr": glm_ocr,
    "granite_vision": granite_vision,
    "hunyuan_vl": hunyuan_vl,
    "idefics2": idefics2,
    "idefics3": idefics3,
    "internvl": partial(build_model, "internvl", "test"),
    "internvl_experts": internvl_experts,
    "janus": janus,
    "kimi_k25": kimi_k25,
    "lighton_ocr": lighton_ocr,
    "llama": llama,
    "llama4": llama4,
    "llava": llava,
    "llava_next": partial(build_model, "llava_next", "test"),
    "llava_onevision": llava_onevision,
    "minicpmv4_6": minicpmv4_6,
    "mistral3": mistral3,
    "mllama": mllama,
    "ovis2": ovis2,
    "paddleocr_vl": paddleocr_vl,
    "paligemma": paligemma,
    "pixtral": pixtral,
    "qwen2_5_omni_thinker": qwen2_5_omni_thinker,
    "qwen2_5_vl": partial(build_model, "qwen2_5_vl", "test"),
    "qwen2_vl": partial(build_model, "qwen2_vl", "test"),
    "qwen3": qwen3,
    "qwen3_5": qwen3_5,
    "qwen3_vl": partial(build_model, "qwen3_vl", "test"),
    "qwen3_vl_moe": qwen3_vl_moe,
    "smolvlm": smolvlm,
    "video_llama_3": video_llama_3,
}


def label(config):
    """What docs/models.md calls a model of this configuration."""
    own, text = config.model_type, config.get_text_config().model_type
    return f"`{own}`" if text.startswith(own) else f"`{own}` with `{text}`"
