"""Trainers on top of TRL that teach vision-language models to reason.

The names below are imported on first use, so that `import trl_mmreason` stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "AdaPOConfig": "adapo.config",
    "AdaPOTrainer": "adapo.trainer",
    "Grader": "grading",
    "ReflectionSFTConfig": "srpo.config",
    "ReflectionSFTTrainer": "srpo.sft",
    "SRPOConfig": "srpo.config",
    "SRPOTrainer": "srpo.trainer",
}
__all__ = [
    "AdaPOConfig",
    "AdaPOTrainer",
    "Grader",
    "ReflectionSFTConfig",
    "ReflectionSFTTrainer",
    "SRPOConfig",
    "SRPOTrainer",
]

if TYPE_CHECKING:
    from .adapo.config import AdaPOConfig
    from .adapo.trainer import AdaPOTrainer
    from .grading import Grader
    from .srpo.config import ReflectionSFTConfig, SRPOConfig
    from .srpo.sft import ReflectionSFTTrainer
    from .srpo.trainer import SRPOTrainer


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
