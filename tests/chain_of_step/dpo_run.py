"""Two rounds of iterative DPO: `python dpo_run.py MODEL FOLDER PAIRS_A_PROCESS`, in one process or two.

What a path says follows from its seed, and its score from its text, so that the pairs do not depend on who samples.
"""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from support import PATHS_RUN, drawn_rows, weights_of

from trl_mmreason import IterativeDPOConfig, IterativeDPOTrainer
from trl_mmreason.chain_of_step.process_reward import Scores
from trl_mmreason.miniature.solutions import chain_of_steps, solve
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.sampling.engine import Sample

torch.set_num_threads(1)
model, folder, pairs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
CHAINS = [chain_of_steps(solve(problem)) for problem in make_problems(["adding", "counting", "table"], 10)]


class Writer:
    settings = {"kind": "writer"}

    def sample(self, requests, sampling_params):
        return [[Sample(CHAINS[request.seed % 10], "stop", token_ids=[1])] for request in requests]


class PlaceReward:
    settings = {"kind": "place among the chains"}

    def score(self, rows):
        places = [CHAINS.index(row["completion"]) / 10 for row in rows]
        return [Scores(torch.tensor([place]), place) for place in places]


run = {**PATHS_RUN, "rounds": 2, "num_paths": 5, "warmup_steps": 0, "num_train_epochs": 1, "max_steps": -1}
run |= {"pair_threshold": 0.0}  # a pair a question: three equal steps of four pairs, whatever the processes
run |= {"per_device_train_batch_size": pairs, "optim": "sgd", "learning_rate": 1e-3}
rows, args = Dataset.from_list(drawn_rows(12)), IterativeDPOConfig(str(folder), **run)
trainer = IterativeDPOTrainer(model, PlaceReward(), args=args, train_dataset=rows, sampler=lambda _: Writer())
trainer.train()
accelerator = trainer.accelerator
outcome = {"world_size": accelerator.num_processes, "weights": weights_of(trainer.model), "rounds": trainer.rounds}
torch.save(outcome, folder / f"process_{accelerator.process_index}.pt")
