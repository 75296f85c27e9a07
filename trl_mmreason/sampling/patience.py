"""Processes that wait for each other for days."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import PartialState

_PATIENCE = timedelta(days=7)


def patient_state(*, cpu: bool = False) -> PartialState:
    """The process group's state, which lets processes wait for each other for days if this call begins the group.

    Shares of sampling take hours, and end further apart than the ten minutes after which NCCL ends a run.
    """
    from accelerate import PartialState

    return PartialState(cpu=cpu, timeout=_PATIENCE)


def wait_for_all() -> None:
    """Wait until every process has saved its share."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        import torch

        patient_state(cpu=not torch.cuda.is_available()).wait_for_everyone()
