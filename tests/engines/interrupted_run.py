"""Train four steps under an engine; the second of two processes may get a signal in the second step.

`python interrupted_run.py MODEL FOLDER SIGNALLED`, in two processes. Each prints its outcome.
"""

import os
import signal
import sys

from every_trainer import four_steps, make
from support import losses_of
from switch import let_cpus_take_the_engine

let_cpus_take_the_engine()

from trl_mmreason.training.interruption import TrainingInterrupted  # noqa: E402

model, folder, signalled = sys.argv[1:]
trainer = make("AdaPOTrainer", model, folder, **{**four_steps("AdaPOTrainer"), "save_steps": 1, "save_total_limit": 1})
step = trainer.training_step


def with_signal(*args, **kwargs):
    if trainer.state.global_step == 1 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return step(*args, **kwargs)


if signalled == "signalled":
    trainer.training_step = with_signal
try:
    trainer.train("auto")
    sys.stdout.write(f"\nOUTCOME finished {losses_of(trainer)}\n")
except TrainingInterrupted as ended:
    sys.stdout.write(f"\nOUTCOME {ended.code} {trainer.state.global_step}\n")
