"""Train on rows whose images lie on one process only: `python images_run.py JOB.json`, in two processes.

Rows keep their order, so that the job decides which process has an image in which step.
"""

import json
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset
from every_trainer import CHAINS, DPO, REFLECTION, four_steps, labels_of, make
from support import drawn_rows, losses_of
from switch import let_cpus_take_the_engine

from trl_mmreason.compat.sharding import whole_state

let_cpus_take_the_engine()
torch.set_num_threads(1)
job = json.loads(Path(sys.argv[1]).read_text())
one, two, none = drawn_rows(3)
ROWS = {"1": one, "2": two, "-": none}

COMPLETIONS = {
    "ReflectionSFTTrainer": {"completion": REFLECTION},
    "ChainOfStepSFTTrainer": {"completion": CHAINS[0]},
    "ProcessRewardTrainer": {"completion": CHAINS[0], "step_labels": labels_of(0), "answer_label": 1.0},
    "OffPolicyRewardTrainer": {"completion": "It is 7.", "reward": 0.5},
}
OWN = {
    DPO: {"rounds": 1},
    "SelfEvolutionTrainer": {"judge": False},
}


def train(trainer, order, policy, accumulation=1):
    settings = {**four_steps(trainer), "save_strategy": "no", **OWN.get(trainer, {})}
    settings["max_steps"] = len(order) // 2 // accumulation
    rows = [{**ROWS[kind], **COMPLETIONS.get(trainer, {})} for kind in order]
    if trainer in COMPLETIONS or trainer == DPO:  # one row, or pair, a process and micro-batch
        settings |= {"per_device_train_batch_size": 1, "train_sampling_strategy": "sequential"}
        settings["gradient_accumulation_steps"] = accumulation
    else:  # a question of each process a step
        settings |= {"shuffle_dataset": False, "num_iterations": 1}
    columns = ["prompt", "images", *COMPLETIONS.get(trainer, ["answer"])]
    rows = Dataset.from_list([{name: row[name] for name in columns} for row in rows])
    made = make(trainer, job["policies"][policy], Path(job["folder"]) / "run", rows=rows, **settings)
    assert made.accelerator.num_processes == 2
    if str(made.accelerator.distributed_type).startswith("DistributedType.MULTI_"):
        assert made.accelerator.ddp_handler.find_unused_parameters is (policy == "llava_next")
    made.train()
    trained = made.accelerator.unwrap_model(made.model).named_parameters()
    return {"losses": losses_of(made), "weights": whole_state(dict(trained), keep=True)}


outcomes = [train(**run) for run in job["runs"]]
torch.save(outcomes, Path(job["folder"]) / f"process_{os.environ['RANK']}.pt")
