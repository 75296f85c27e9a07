"""What a sync of sharded weights holds at its peak: `python sharded_weights_run.py FILE`, in two processes.

Run by test_sharded_weights.py under ZeRO-3 or FSDP2. The model has two large weights and 400 small ones between them.
Kept are, for each way of walking through them, MiB of the process above what it held before, seconds, and the calls
that loaded weights.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

import torch
from switch import let_cpus_take_the_engine
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.common import forget_peak, memory
from trl_mmreason.compat.sharding import whole, whole_buckets, whole_parameters
from trl_mmreason.compat.vllm_buckets import Buckets

BUCKET = 24 * 2**20
ZERO = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
let_cpus_take_the_engine()
torch.set_num_threads(1)
ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD: what is freed from 64 KiB on goes back to the system
if not ZERO:
    torch.distributed.init_process_group("gloo")


def build():
    """Weights of 16 MiB, 400 of a quarter of a MiB, and 16 MiB."""
    small = [nn.Linear(256, 256, bias=False) for _ in range(400)]
    return nn.Sequential(nn.Linear(2048, 2048, bias=False), *small, nn.Linear(2048, 2048, bias=False))


def sharded():
    """The model in pieces, with its number as each weight's value."""
    if ZERO:
        import deepspeed

        config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = build()
    else:
        model, mesh = build(), init_device_mesh("cpu", (2,))
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
    for number, weight in enumerate(model.parameters()):
        with torch.no_grad(), whole(weight, changed=True) as value:
            value.fill_(number)
    return model


def in_buckets(model, load):
    buckets = Buckets(load, copies=False, most=BUCKET)
    for weight in whole_buckets(model, BUCKET, buckets.flush):
        buckets.add([weight])


def one_by_one(model, load):
    """As TRL does."""
    for weight in whole_parameters(model):
        load([weight])


def at_once(model, load):
    """As TRL does with an adapter."""
    buckets = Buckets(load, copies=False, most=sys.maxsize)
    for weight in whole_buckets(model, sys.maxsize, buckets.flush):
        buckets.add([weight])


def measured(model, way):
    calls = []

    def load(weights):
        calls.append([(name, value.numel(), *map(int, value.aminmax())) for name, value in weights])

    way(model, load)  # the first time, libraries are loaded
    calls.clear()
    before, began = forget_peak(), time.perf_counter()
    way(model, load)
    seconds = time.perf_counter() - began
    return {"mebibytes": memory("VmHWM") - before, "seconds": seconds, "calls": calls}


policy = sharded()
results = {way.__name__: measured(policy, way) for way in (in_buckets, one_by_one, at_once)}
torch.save(results, Path(f"{sys.argv[1]}_{torch.distributed.get_rank()}.pt"))
