"""One optimizer step with importance weights and a KL term: `python off_policy_run.py MODEL FOLDER ROWS`.

Run by test_trainer.py, alone or under torchrun, with ROWS a process.
"""

import sys
from pathlib import Path

import torch
from support import weights_of
from test_trainer import rewarded, trainer_for

torch.set_num_threads(1)
model, folder, rows_a_process = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
trainer = trainer_for(
    model,
    folder,
    rewarded(8, behavior_logps=[[-45.0 - 5 * k] for k in range(8)]),
    per_device_train_batch_size=rows_a_process,
    importance_sampling="sequence",
    importance_clip_high=3.0,
    beta=0.1,
    optim="sgd",
    learning_rate=1e-4,
    max_grad_norm=0.0,
    max_steps=2,
)
trainer.train()
timings = ("step_time", "epoch", "runtime", "per_second", "total_flos")
logged = {
    f"{name}/{step}": value
    for step, entry in enumerate(trainer.state.log_history)
    for name, value in entry.items()
    if not name.endswith(timings)
}
torch.save(
    {"world_size": trainer.accelerator.num_processes, "logged": logged, "weights": weights_of(trainer.model)},
    folder / f"process_{trainer.accelerator.process_index}.pt",
)
