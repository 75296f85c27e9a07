"""Train under an engine, save, and resume: `python cell_run.py SETTINGS.json`, in two processes.

Settings: trainer, model, folder, adapter (bool), in_memory (bool), resume (bool), settings (of the trainer).
"""

import faulthandler
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, os.environ["ENGINE_TESTS"])
from switch import let_cpus_take_the_engine

faulthandler.dump_traceback_later(30)
let_cpus_take_the_engine()

import torch
from trainers import SAVED, changed_policy, lora, make

torch.set_num_threads(1)
cell = json.loads(Path(sys.argv[1]).read_text())
folder = Path(cell["folder"])


def trainer_for(place):
    adapter = lora(cell["model"]) if cell["adapter"] else None
    trainer = make(cell["trainer"], cell["model"], place, adapter=adapter, **cell["settings"])
    assert trainer.accelerator.num_processes == 2
    return trainer


def weights_of(trainer):
    """The whole of every trained weight, by no code that saves."""
    found = {}
    for name, weight in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        if not weight.requires_grad:
            continue
        if hasattr(weight, "ds_id"):
            import deepspeed

            with deepspeed.zero.GatheredParameters([weight]):
                found[name] = weight.detach().clone()
        else:
            found[name] = (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach().clone()
    return found


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


trainer = trainer_for(folder)
trainer.train()
outcome = {"losses": losses_of(trainer), "log": trainer.state.log_history, "weights": weights_of(trainer), "engine": str(trainer.accelerator.distributed_type)}
trainer.save_model(str(folder / "final"))
process = trainer.accelerator.process_index
torch.save(outcome, folder / f"process_{process}.pt")
