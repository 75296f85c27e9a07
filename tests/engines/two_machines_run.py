"""Train AdaPO for two steps as the launcher says: `python two_machines_run.py MODEL FOLDER`.

There is no GPU: ZeRO runs with DS_ACCELERATOR=cpu, and FSDP2 is turned on for CPUs here, as accelerate does so for GPUs
only.
"""

import os
import sys
from pathlib import Path

import torch
from accelerate import DistributedType
from accelerate.state import AcceleratorState
from support import adapo_trainer, drawn_rows, losses_of
from transformers import TrainerCallback

torch.set_num_threads(1)
model, folder = sys.argv[1], Path(sys.argv[2])
_begin = AcceleratorState.__init__


def begin(self, *arguments, fsdp_plugin=None, **named):
    _begin(self, *arguments, fsdp_plugin=fsdp_plugin, **named)
    plugin = fsdp_plugin or self.__dict__.get("fsdp_plugin")  # every later construction forgets the type
    if self.distributed_type == DistributedType.MULTI_CPU and plugin is not None:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, plugin


if os.environ.get("ACCELERATE_USE_FSDP") == "true":
    AcceleratorState.__init__ = begin
else:
    import deepspeed

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)  # accelerate leaves it out on CPUs


def whole(parameter):
    """The values of a parameter that may be sharded."""
    if hasattr(parameter, "full_tensor"):
        return parameter.full_tensor().detach().clone()
    if hasattr(parameter, "ds_id"):
        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
    return parameter.detach().clone()


class SameSamples(TrainerCallback):
    """Loading weights draws random numbers, and who loads them differs: one process a machine, with FSDP2."""

    def on_train_begin(self, args, state, control, **_):
        torch.manual_seed(args.process_index)


rows = [row for row in drawn_rows(24) if row["images"]]  # on every process there are pictures
trainer = adapo_trainer(model, folder, rows, per_device_train_batch_size=4, beta=0.05)
before = {name: whole(weight) for name, weight in trainer.model.named_parameters()}
trainer.add_callback(SameSamples())
trainer.train()
accelerator = trainer.accelerator
after = {name.replace("_fsdp_wrapped_module.", ""): whole(weight) for name, weight in trainer.model.named_parameters()}
torch.save(
    {
        "distributed_type": accelerator.distributed_type.value,
        "world_size": accelerator.num_processes,
        "local_world_size": int(os.environ["LOCAL_WORLD_SIZE"]),
        "machine": int(os.environ["GROUP_RANK"]),
        "losses": losses_of(trainer),
        "changed": sum(not torch.equal(after[name], weight) for name, weight in before.items() if name in after),
        "weights": after,
    },
    folder / f"process_{accelerator.process_index}.pt",
)
