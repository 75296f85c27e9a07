"""Train AdaPO for two steps as the launcher says: `python two_machines_run.py MODEL FOLDER`."""

import os
import sys
from pathlib import Path

import torch
from support import adapo_trainer, drawn_rows, losses_of
from switch import let_cpus_take_the_engine
from transformers import TrainerCallback

from trl_mmreason.compat.sharding import whole_state

let_cpus_take_the_engine()
torch.set_num_threads(1)
model, folder = sys.argv[1], Path(sys.argv[2])


class SameSamples(TrainerCallback):
    """Loading weights draws random numbers, and who loads them differs: one process a machine, with FSDP2."""

    def on_train_begin(self, args, state, control, **_):
        torch.manual_seed(args.process_index)


def weights_of(trainer):
    """The whole of every weight."""
    return whole_state(dict(trainer.accelerator.unwrap_model(trainer.model).named_parameters()), keep=True)


rows = [row for row in drawn_rows(24) if row["images"]]  # on every process there are images
trainer = adapo_trainer(model, folder, rows, per_device_train_batch_size=4, beta=0.05)
before = weights_of(trainer)
trainer.add_callback(SameSamples())
trainer.train()
accelerator, after = trainer.accelerator, weights_of(trainer)
torch.save(
    {
        "distributed_type": accelerator.distributed_type.value,
        "world_size": accelerator.num_processes,
        "local_world_size": int(os.environ["LOCAL_WORLD_SIZE"]),
        "machine": os.environ.get("GROUP_RANK"),  # torchrun's
        "losses": losses_of(trainer),
        "changed": sum(not torch.equal(after[name], weight) for name, weight in before.items()),
        "weights": after,
    },
    folder / f"process_{accelerator.process_index}.pt",
)
