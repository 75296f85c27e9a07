"""Which process this is, and processes that wait for each other for days."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import PartialState

_PATIENCE = timedelta(days=7)


def patient_state(*, cpu: bool = False) -> PartialState:
    """The process group's state, which lets processes wait for each other for days if this call begins the group.

    Shares of sampling take hours, and end further apart than the ten minutes after which NCCL ends a run.

    Args:
        cpu: use the CPU even if there is an accelerator. Without one several processes always do.
    """
    from accelerate import PartialState

    from ..compat.precision import is_grouped_on_cpu

    return PartialState(cpu=cpu or is_grouped_on_cpu(), timeout=_PATIENCE)


def wait_for_all() -> None:
    """Wait until every process has saved its share."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        patient_state().wait_for_everyone()


def rank_and_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and number of processes: as passed, else from accelerate, else from the launcher."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"run: got rank={rank} and world_size={world_size}; expected both or neither")
    if rank is None or world_size is None:
        # What was never imported has no state; and asking PartialState itself would begin one, on a GPU.
        accelerate = sys.modules.get("accelerate.state")
        if accelerate is not None and accelerate.PartialState._shared_state:
            state = accelerate.PartialState()
            return state.process_index, state.num_processes
        rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if not 0 <= rank < world_size:
        raise ValueError(f"run: got rank {rank} of {world_size} processes; expected 0 ≤ rank < world_size")
    return rank, world_size
