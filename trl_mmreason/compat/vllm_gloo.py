"""Weights for a vLLM server over gloo: a backend of vLLM's weight transfer for machines on which NCCL cannot run.

NCCL, which TRL sends weights with, needs a GPU for the server and another for training. Gloo works between CPUs, with
one GPU for both, and between GPUs of other makers; each bucket passes through the CPU. `compat/vllm_plugin.py` tells
vLLM of this backend, and `vllm_client.ImageClient` is its other end. This module needs vLLM 0.28 or later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo


@dataclass
class GlooInfo(WeightTransferInitInfo):
    """Where processes meet.

    Attributes:
        master_address, master_port: of the training process, which is number 0.
        world_size: processes of the server, and that one.
    """

    master_address: str
    master_port: int
    world_size: int


class GlooGroup:
    """The processes of a server, and the one that trains."""

    def __init__(self, info: GlooInfo, rank: int) -> None:
        place = info.master_address, info.master_port
        self.group = stateless_init_torch_distributed_process_group(*place, rank, info.world_size, "gloo")
        self.options = BroadcastOptions()
        self.options.rootRank = 0

    def broadcast(self, weights: Sequence[Tensor]) -> None:
        """Send a bucket of weights, or receive it.

        Args:
            weights: on the CPU, contiguous.
        """
        for work in [self.group.broadcast([as_bytes(weight)], self.options) for weight in weights]:
            work.wait()


class GlooWeights(NCCLWeightTransferEngine):
    """The server's end: each request announces one bucket, which is loaded in one call."""

    init_info_cls = GlooInfo
    group: GlooGroup

    def init_transfer_engine(self, init_info: Any) -> None:
        """Meet the training process; the server's are numbered from 1, as for NCCL."""
        parallel = self.parallel_config
        self.group = GlooGroup(init_info, parallel.data_parallel_index * parallel.world_size + parallel.rank + 1)

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        """Receive a bucket and load it."""
        told = zip(update_info.dtype_names, update_info.shapes, strict=True)
        weights = [torch.empty(shape, dtype=getattr(torch, name)) for name, shape in told]
        self.group.broadcast(weights)
        there = [weight.to(self.device) for weight in weights]
        self.model.load_weights(list(zip(update_info.names, there, strict=True)))


def as_bytes(weight: Tensor) -> Tensor:
    """A view that gloo takes of any dtype; it knows none of 8 bits but integers, and of a scalar no other view."""
    return weight.reshape(-1).view(torch.uint8)
