"""One optimizer step and an evaluation of a process reward model: `python process_reward_run.py MODEL FOLDER ROWS`.

Run by test_process_reward_trainer.py, in one process or two, with ROWS a process.
"""

import sys
from pathlib import Path

import torch
from support import weights_of
from test_process_reward_trainer import labelled_rows, trainer_for

torch.set_num_threads(1)
model, folder, rows_a_process = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
run = {"per_device_train_batch_size": rows_a_process, "per_device_eval_batch_size": 2}
run |= {"optim": "sgd", "learning_rate": 1.0, "max_steps": 1}
eval_rows = labelled_rows(7, seed=1)  # which two processes cannot share evenly
trainer = trainer_for(model, folder, labelled_rows(12), eval_rows, **run)
trainer.train()
timings = ("step_time", "epoch", "runtime", "per_second")
evaluation = {name: value for name, value in trainer.evaluate().items() if not name.endswith(timings)}
logged = {name: value for name, value in trainer.state.log_history[0].items() if not name.endswith(timings)}
outcome = {"world_size": trainer.accelerator.num_processes, "weights": weights_of(trainer.model)}
outcome |= {"logged": logged, "evaluation": evaluation}
torch.save(outcome, folder / f"process_{trainer.accelerator.process_index}.pt")
