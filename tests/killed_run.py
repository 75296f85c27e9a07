"""Train until killed: `python killed_run.py MODEL FOLDER`. Run by test_resume.py."""

import sys

import torch
from support import drawn_rows
from test_resume import SAVED, KillAfter, trainer_for

torch.set_num_threads(1)
trainer = trainer_for(sys.argv[1], sys.argv[2], drawn_rows(24))
trainer.add_callback(KillAfter(SAVED + 1))
trainer.train()
