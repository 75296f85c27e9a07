"""Train the method of CONTRIBUTING.md in the package that it was put into: sixth_method_run.py CHECKPOINT FOLDER."""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from support import SMALL_RUN, drawn_rows
from trl_mmreason.concise.objective import length_rewards

import trl_mmreason
from trl_mmreason import ConciseConfig, ConciseTrainer
from trl_mmreason.evaluation.curves import draw_curves

checkpoint, folder = sys.argv[1:]
args = ConciseConfig(folder, **{**SMALL_RUN, "max_steps": 2, "logging_steps": 1})
trainer = ConciseTrainer(checkpoint, args=args, train_dataset=Dataset.from_list(drawn_rows(4)))
trainer.train()
lengths, right = torch.tensor([[2.0, 6.0, 4.0], [3.0, 3.0, 3.0]]), torch.tensor([[True, True, False], [True] * 3])
found = {
    "package": str(Path(trl_mmreason.__file__).parent),
    "logged": [entry["length_bonus"] for entry in trainer.state.log_history if "length_bonus" in entry],
    "panels": [axes.get_title() for axes in draw_curves(trainer.state.log_history).axes],
    "rewards": length_rewards(lengths, right).tolist(),
}
Path(folder, "found.json").write_text(json.dumps(found))
