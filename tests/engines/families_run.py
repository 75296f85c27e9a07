"""Train AdaPO on families under an engine: `python families_run.py JOB.json`, in two processes."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from all_families import TEXT_ONLY
from datasets import Dataset
from every_trainer import make, rows_of
from support import losses_of
from switch import let_cpus_take_the_engine

from trl_mmreason.compat.sharding import whole_state

let_cpus_take_the_engine()
torch.set_num_threads(1)
job = json.loads(Path(sys.argv[1]).read_text())
root, rank = Path(job["folder"]), int(os.environ["RANK"])


def trained(name):
    """What a run of two updates comes to, or the sentence that refuses the family."""
    rows = rows_of("AdaPOTrainer").to_list()
    rows = Dataset.from_list([{**row, "images": []} for row in rows] if name in TEXT_ONLY else rows)
    steady = {"learning_rate": 1e-2, "adam_epsilon": 1e-2, "lr_scheduler_type": "constant", "router_aux_loss_coef": 0.0}
    try:
        trainer = make("AdaPOTrainer", f"{job['models']}/{name}", root / name, rows=rows, **steady)
        trainer.train()
    except ValueError as error:
        return {"refused": str(error)}
    weights = whole_state(dict(trainer.accelerator.unwrap_model(trainer.model).named_parameters()), keep=True)
    return {"losses": losses_of(trainer), "facts": asdict(trainer.facts), "weights": weights}


for name in job["families"]:
    torch.save(trained(name), root / f"{name}_{rank}.pt")
