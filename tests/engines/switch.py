"""Put the processes of a job under DDP, ZeRO-2, ZeRO-3 or FSDP2, as `accelerate launch` does with our configs."""

import os
from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from peft.utils.integrations import gather_params_ctx

ENGINES = {"ddp": "multi_gpu", "zero2": "zero2", "zero3": "zero3", "fsdp2": "fsdp2"}
# without ZeRO-2, which does a part of what ZeRO-3 does
EVERYDAY_ENGINES = [pytest.param(name, marks=pytest.mark.full if name == "zero2" else ()) for name in ENGINES]
CONFIGS = Path(__file__).parents[2] / "configs" / "accelerate"
HAS_GPUS = torch.cuda.device_count() >= 2


def environment(engine: str, mixed_precision: str = "no") -> dict[str, str]:
    """The variables that `accelerate launch --config_file configs/accelerate/<engine>.yaml` sets."""
    config = CONFIGS / f"{ENGINES[engine]}.yaml"
    options = ["--config_file", str(config), "--num_processes", "2", "--mixed_precision", mixed_precision, "script.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(options))
    if engine.startswith("zero"):
        args.deepspeed_fields_from_accelerate_config = ""
        _, variables = prepare_deepspeed_cmd_env(args)
    else:
        variables = prepare_multi_gpu_env(args)
    found = {name: value for name, value in variables.items() if name.startswith(("ACCELERATE_", "FSDP_"))}
    return found if HAS_GPUS else {**found, "DS_ACCELERATOR": "cpu"}


def let_cpus_take_the_engine() -> None:
    """In a process of the job, before any trainer: accelerate offers ZeRO and FSDP2 to accelerators alone."""
    if HAS_GPUS:
        return
    # Trainer (before transformers 5.2x) loads an optimizer's state to "cpu:0", a name that torch.load does not know.
    torch.serialization.register_package(
        9, lambda storage: None, lambda storage, place: storage if place.startswith("cpu:") else None
    )
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        import deepspeed

        TrainableTokensLayer._collect_token_weights = _collect_token_weights
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute of compiling for nothing used here
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        original = AcceleratorState.__init__

        def init(self, *args, **kwargs):
            original(self, *args, **kwargs)
            if self.distributed_type == DistributedType.MULTI_CPU:
                plugin = kwargs.get("fsdp_plugin") or FullyShardedDataParallelPlugin()
                self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, plugin
                PartialState._shared_state["distributed_type"] = DistributedType.FSDP

        AcceleratorState.__init__ = init


def _collect_token_weights(layer, weight, rows, embed_dim):
    """As PEFT's, which asks for a CUDA device where ZeRO-3 has a model in pieces."""
    with gather_params_ctx([weight], modifier_rank=None):
        return weight[rows].clone()
