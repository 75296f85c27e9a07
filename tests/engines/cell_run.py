"""Train one trainer under an engine in several ways: `python cell_run.py JOB.json`, in two processes.

A way is a name of `WAYS`. Each trains four steps; where it can, it is begun again from the checkpoint of the second (or,
for iterative DPO, from the first round) and has to end at the same weights. What came out is saved for the test.
"""

import json
import os
import shutil
import sys
import traceback
from pathlib import Path

sys.path.insert(0, os.environ["ENGINE_TESTS"])
from switch import let_cpus_take_the_engine

let_cpus_take_the_engine()

import torch
from trainers import SAVED, changed_policy, lora, make

from trl_mmreason.engines.sharding import loading_whole, whole_state

torch.set_num_threads(1)
job = json.loads(Path(sys.argv[1]).read_text())
root = Path(job["folder"])


def trainer_for(way, folder):
    path = job["tied"] if way == "tied" else job["model"]
    adapter = lora(path, tokens=way == "lora, tokens") if way.startswith("lora") else None
    model = path
    if way == "memory":  # in pieces, where the engine loads it so
        model = changed_policy(path)
    elif way == "memory, whole":
        with loading_whole():
            model = changed_policy(path)
    trainer = make(job["trainer"], model, folder, adapter=adapter, **job["settings"])
    assert trainer.accelerator.num_processes == 2
    return trainer


def outcome_of(trainer):
    """Losses, and the whole of every trained weight, by no code that saves."""
    policy = trainer.accelerator.unwrap_model(trainer.model)
    trained = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "weights": whole_state(trained, keep=True)}


def begun_again(way, folder):
    again = folder.with_name(folder.name + "-again")
    shared = job["trainer"] == "IterativeDPOTrainer"
    if shared:
        if int(os.environ["RANK"]) == 0:
            shutil.copytree(folder, again)
            shutil.rmtree(again / "round-2")
        torch.distributed.barrier()
    trainer = trainer_for(way, again)
    trainer.train(**({} if shared else {"resume_from_checkpoint": str(folder / f"checkpoint-{SAVED}")}))
    return trainer


outcomes = {}
for way in job["ways"]:
    folder = root / way.replace(", ", "-")
    try:
        trainer = trainer_for(way, folder)
    except ValueError as error:
        outcomes[way] = {"refused": str(error)}
        traceback.print_exc()
        continue
    trainer.train()
    outcomes[way] = outcome_of(trainer)
    trainer.save_model(str(folder / "final"))
    if not way.startswith("memory"):
        outcomes[way]["again"] = outcome_of(begun_again(way, folder))
torch.save({"engine": str(trainer.accelerator.distributed_type), **outcomes}, root / f"process_{os.environ['RANK']}.pt")
