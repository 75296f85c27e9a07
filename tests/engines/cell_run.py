"""Train one trainer under an engine in several ways: `python cell_run.py JOB.json`, in two processes.

The ways are those of `trainers.ways_of`. Each trains four steps; where it can, it is begun again from the checkpoint of
the second (or, for iterative DPO, from the first round). What came out is saved for the test.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import torch
from switch import let_cpus_take_the_engine
from trainers import SAVED, changed_policy, lora, make

from trl_mmreason.engines.sharding import loading_whole, whole_state

let_cpus_take_the_engine()
torch.set_num_threads(1)
job = json.loads(Path(sys.argv[1]).read_text())
root, engine = Path(job["folder"]), None


def trainer_for(way, folder):
    path = job["tied"] if way == "tied" else job["model"]
    adapter = lora(path, tokens=way == "lora, tokens") if way.startswith("lora") else None
    model = path
    if way == "memory":  # in pieces, where the engine loads it so
        model = changed_policy(path)
    elif way == "memory, whole":
        with loading_whole():
            model = changed_policy(path)
    settings = {"judge": False} if way == "no judge" else {}
    trainer = make(job["trainer"], model, folder, adapter=adapter, **settings)
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
        continue
    engine = str(trainer.accelerator.distributed_type)
    trainer.train()
    outcomes[way] = outcome_of(trainer)
    trainer.save_model(str(folder / "final"))
    if way in ("full", "lora"):
        outcomes[way]["again"] = outcome_of(begun_again(way, folder))
torch.save({"engine": engine, "ways": outcomes}, root / f"process_{os.environ['RANK']}.pt")
