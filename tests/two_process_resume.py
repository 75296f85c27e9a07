"""Train, and resume from amid the rollouts: `python two_process_resume.py MODEL FOLDER`.

Run by test_distributed.py in two processes.
"""

import sys

import torch
from support import drawn_rows
from test_resume import SAVED, assert_same, outcome, trainer_for

torch.set_num_threads(1)
model, folder = sys.argv[1:]
settings = {"num_iterations": 4, "per_device_train_batch_size": 4}
whole = outcome(trainer_for(model, folder, drawn_rows(24), **settings))
resumed = trainer_for(model, folder, drawn_rows(24), **settings)
assert resumed.accelerator.num_processes == 2
assert_same(whole, outcome(resumed, resume_from_checkpoint=f"{folder}/checkpoint-{SAVED}"))
