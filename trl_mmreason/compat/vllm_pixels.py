"""Let vLLM's processor normalise pixels; a module of its own, as a process of vLLM alone need not load TRL."""

from __future__ import annotations

from typing import Any


def normalised_by_processor() -> dict[str, Any]:
    """Arguments of `vllm.LLM` by which its processor normalises pixels, as transformers' does.

    vLLM 0.31 leaves that to the model wherever its class inherits from one that does so. EXAONE-4.5 inherits, does not,
    and is shown raw pixels: 0.07 nats in the mean for a random miniature.
    """
    from vllm.engine.arg_utils import EngineArgs

    name = "mm_device_do_normalize"
    return {name: False} if name in EngineArgs.__dataclass_fields__ else {}
