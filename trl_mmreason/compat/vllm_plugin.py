"""vLLM's plugin of this package: `vllm.general_plugins` in pyproject.toml, which every process of vLLM loads."""

from __future__ import annotations

_ARCHITECTURE = "LlavaNextForConditionalGeneration"


def register() -> None:
    """Register LLaVA-NeXT in transformers 5's form; nothing is imported until such a model is loaded."""
    from vllm import ModelRegistry

    ModelRegistry.register_model(_ARCHITECTURE, f"{__package__}.vllm_llava_next:FlatTowerLlavaNext")
