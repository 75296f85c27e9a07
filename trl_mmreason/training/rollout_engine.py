"""The colocated vLLM of a trainer's rollouts, as an engine for evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..compat.vllm import VerifiedGeneration
from ..generation.vllm_engine import LoadedVLLM


class RolloutEngine(LoadedVLLM):
    """The colocated vLLM of a trainer as an engine.

    Attributes:
        processes: how many share it, all of which have to ask it the same.
    """

    settings: dict[str, Any] = {"kind": "vllm of a trainer"}

    def __init__(self, trainer: Any, llm: Any) -> None:
        template = trainer.chat_template_kwargs
        super().__init__(llm, trainer.processing_class, sorted(trainer.eos_token_ids), template)
        self.processes = trainer.vllm_generation.tensor_parallel_size


@contextmanager
def rollout_engine(trainer: Any) -> Iterator[RolloutEngine | None]:
    """Yield the engine that a trainer's rollouts come from, with the policy's weights.

    `None` where it has none in its processes; and under FSDP, whose parameters TRL reads only once training has begun.
    """
    generation = getattr(trainer, "vllm_generation", None)
    if not isinstance(generation, VerifiedGeneration) or generation.mode != "colocate" or trainer.is_fsdp_enabled:
        yield None
        return
    with generation.loaded() as llm:
        yield RolloutEngine(trainer, llm)
