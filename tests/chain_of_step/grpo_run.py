"""One step of ChainOfStepGRPOTrainer on given chains: `python grpo_run.py MODEL FOLDER ROWS`, in two processes.

Run by test_grpo.py, with ROWS a process.
"""

import os
import sys
from pathlib import Path

import torch
from test_grpo import one_share

torch.set_num_threads(1)
model, folder, rows_a_process = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
torch.save(one_share(model, folder, rows_a_process), folder / f"process_{os.environ['RANK']}.pt")
