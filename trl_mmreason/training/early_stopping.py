"""Early stopping from a configuration: transformers' callback, whose count a resumed run continues."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments

from .documented import documented

logger = logging.getLogger(__name__)


@documented
@dataclass
class EarlyStoppingArguments:
    """When training ends before its last step.

    Attributes:
        early_stopping_patience: end training after this many evaluations in a row in which `metric_for_best_model` is
            not better than its best by more than `early_stopping_threshold`; `None` never does.
        early_stopping_threshold: by how much it has to be better, in the metric's unit.
    """

    early_stopping_patience: int | None = None
    early_stopping_threshold: float = 0.0


class EarlyStopping(EarlyStoppingCallback):
    """Ends training, and says so.

    Attributes:
        reason: why training ended; "" as long as it did not.
    """

    reason = ""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        saved: Any = (state.stateful_callbacks or {}).get(type(self).__name__)  # of the checkpoint, if it had one
        self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"] if saved else 0
        self.reason = ""

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        super().on_evaluate(args, state, control, **kwargs)
        if self.reason or self.early_stopping_patience_counter < self.early_stopping_patience:
            return
        more = f" by more than {self.early_stopping_threshold:g}" if self.early_stopping_threshold else ""
        self.reason = (
            f"at step {state.global_step} of {state.max_steps}: {self.early_stopping_patience_counter} evaluations "
            f"in a row in which {args.metric_for_best_model} was not better{more} than its best before"
        )
        if state.is_world_process_zero:
            logger.warning(f"Training ends early, {self.reason}.")


def early_stopping(name: str, args: TrainingArguments) -> EarlyStopping | None:
    """The callback that a configuration asks for.

    Raises:
        ValueError: there is nothing to compare, or the patience is no number of evaluations.
    """
    patience = getattr(args, "early_stopping_patience", None)
    threshold = getattr(args, "early_stopping_threshold", 0.0)
    if patience is None and not threshold:
        return None
    given = f"{name}: early_stopping_patience={patience} with early_stopping_threshold={threshold}"
    if patience is None or patience < 1 or threshold < 0:
        raise ValueError(f"{given}, expected a patience of at least 1 and a threshold of at least 0.")
    if args.metric_for_best_model is None or args.eval_strategy == "no":
        raise ValueError(
            f"{given} came with metric_for_best_model={args.metric_for_best_model!r} and "
            f"eval_strategy={str(args.eval_strategy.value)!r}. Fix: a metric, and eval_strategy='steps' or 'epoch'."
        )
    return EarlyStopping(patience, threshold)
