"""Stop supervised training at a target accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState


class StopAtAccuracy(TrainerCallback):
    """Ends training at a target accuracy; `accuracy` is the last measurement.

    Args:
        measure: the share of what it is asked that the model gets right now.
        target: a fraction.
        every_steps: after how many steps it is measured each time; after the last step it is measured in any case.
        advice: what to do about training that ends below the target, which is an error then; `None` if it is none.

    Raises:
        RuntimeError: at the end of training, see `advice`. Nothing is saved then.
    """

    def __init__(
        self,
        measure: Callable[[PreTrainedModel], float],
        target: float,
        every_steps: int,
        advice: str | None = None,
    ) -> None:
        self.measure, self.target, self.every_steps, self.advice = measure, target, every_steps, advice
        self.accuracy = 0.0
        self._is_measured = False

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step % self.every_steps and state.global_step < state.max_steps:
            return
        self._measure(model)
        if self.accuracy >= self.target:  # else it stays as it is: after the last step training ends below it, too
            control.should_training_stop = True
        model.train()

    def _measure(self, model: Any) -> None:
        self.accuracy, self._is_measured = self.measure(model), True

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        if not self._is_measured:  # the run was resumed after its last step
            self._measure(model)
        if self.advice is not None and self.accuracy < self.target:
            raise RuntimeError(
                f"Supervised start: accuracy {self.accuracy:.2f} after {state.global_step} steps, expected "
                f"{self.target:.2f}. {self.advice}"
            )
