"""Training that a signal ends: a checkpoint after the step, and a status that says "resume me".

`enable_jit_checkpoint` of transformers does this in one process: it lets each process decide by itself, also before
the optimizer's step, and `train` returns as if training were finished.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from torch.utils.data._utils import signal_handling
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_jit_checkpoint import JITCheckpointCallback

from ..compat.replaced import replaced

logger = logging.getLogger(__name__)

STATUS = 75
"""Exit status of a process that was ended and can be resumed; `EX_TEMPFAIL` of sysexits.h."""

SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)]
"""What preemption, SLURM and `docker stop` send, and what the sbatch scripts ask SLURM for."""


class TrainingInterrupted(SystemExit):
    """A signal, or a server that is lost, has ended training after a checkpoint; uncaught the process has `STATUS`."""


class Signals:
    """Whether this process got one of `SIGNALS`."""

    received = False

    def receive(self, *_: Any) -> None:
        """Handle a signal; repeated ones, which launchers send, change nothing."""
        self.received = True

    def reached(self, accelerator: Any) -> bool:
        """Whether any process got one; all of them have to ask."""
        if self.received:
            accelerator.set_trigger()
        return accelerator.check_trigger()


_noted: list[Signals] = []
"""Those of the outermost block that notes signals."""


class StopOnSignal(TrainerCallback):
    """Writes a checkpoint after the step in which any process got a signal, and ends training in all of them."""

    def __init__(self, accelerator: Any, signals: Signals) -> None:
        self.accelerator, self.signals = accelerator, signals
        self.stopping = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero and state.global_step >= state.max_steps > 0:
            logger.warning(f"{args.output_dir} is already finished: {state.global_step} of {state.max_steps} steps")

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.signals.reached(self.accelerator):
            self.stopping = control.should_training_stop = control.should_save = True
            control.should_evaluate = False  # which may take longer than what is left until SIGKILL

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self.stopping:
            return
        if state.is_world_process_zero:
            logger.warning(
                f"A signal asked to end: {args.output_dir}/checkpoint-{state.global_step} was written after step "
                f"{state.global_step} of {state.max_steps}. Status {STATUS}: resume_from_checkpoint auto resumes"
            )
        raise TrainingInterrupted(STATUS)


def end_with_checkpoint(trainer: Trainer, reason: str) -> NoReturn:
    """End training before a rollout, of which no micro-batch was trained on, with a checkpoint. Every process calls it.

    Raises:
        TrainingInterrupted: there is a checkpoint to resume from.
        RuntimeError: no update was done, and nothing is to be saved.
    """
    state = trainer.state
    if not state.global_step:
        raise RuntimeError(f"Training ends before its first update: {reason}.")
    checkpoint = Path(trainer.args.output_dir) / f"checkpoint-{state.global_step}"
    if not checkpoint.exists():
        trainer._save_checkpoint(trainer.model_wrapped, trial=None)
        trainer.control = trainer.callback_handler.on_save(trainer.args, state, trainer.control)
    if trainer.is_world_process_zero():
        logger.warning(
            f"Training ends: {reason}. {checkpoint} was written after step {state.global_step} of {state.max_steps}. "
            f"Status {STATUS}: resume_from_checkpoint auto resumes"
        )
    raise TrainingInterrupted(STATUS)


@contextmanager
def _noting_signals(trainer: Trainer) -> Iterator[Signals]:
    """Note signals in the place of ending the process, unless the program handles them itself."""
    if (jit := trainer.pop_callback(JITCheckpointCallback)) is not None:
        jit.on_train_end(trainer.args, trainer.state, trainer.control)  # gives back the handler that was there before
    if _noted:
        yield _noted[0]
        return
    _noted.append(signals := Signals())
    in_main_thread = threading.current_thread() is threading.main_thread()  # no other may have handlers
    handled = [each for each in SIGNALS if in_main_thread and signal.getsignal(each) is signal.SIG_DFL]
    for each in handled:
        signal.signal(each, signals.receive)
    try:
        yield signals
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
        _noted.clear()


_set_handlers = signal_handling._set_worker_signal_handlers


def _outlive_signals() -> None:
    """In a worker of a data loader: a signal to the whole group of processes is for the trainer, which ends workers."""
    _set_handlers()
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


@contextmanager
def ends_on_signal(trainer: Trainer) -> Iterator[None]:
    """Let signals end the training within the block by `TrainingInterrupted`, unless the program handles them itself.

    It takes the place of `enable_jit_checkpoint`.
    """
    with _noting_signals(trainer) as signals:
        trainer.add_callback(callback := StopOnSignal(trainer.accelerator, signals))
        try:
            with replaced(signal_handling, _set_worker_signal_handlers=_outlive_signals):
                yield
        finally:
            trainer.remove_callback(callback)


@contextmanager
def saves_before_it_ends(trainer: Trainer) -> Iterator[None]:
    """Train and save within the block: a signal after the last step ends the process when the model is saved.

    Raises:
        TrainingInterrupted: at the end of the block.
    """
    with _noting_signals(trainer) as signals:
        yield
        if signals.reached(trainer.accelerator):
            if trainer.is_world_process_zero():
                logger.warning(
                    f"A signal asked to end: training in {trainer.args.output_dir} is finished, and its model saved. "
                    f"Status {STATUS}: the same command goes on from there"
                )
            raise TrainingInterrupted(STATUS)
