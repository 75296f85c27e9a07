"""`metric_for_best_model`: refused where no evaluation has it, passed over where an evaluation has no value for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar

from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments
from transformers.optimization import GreedyLR

from ..compat.replaced import replaced
from .early_stopping import early_stopping

logger = logging.getLogger(__name__)


class BestModelMixin(Trainer):
    """Mixin that checks the metric by which the best model is chosen, and compares only evaluations that have a value.

    Attributes:
        telling_metrics: metrics that say how good a policy is where the loss does not; () where it does.
    """

    telling_metrics: ClassVar[Sequence[str]] = ()

    def __init__(self, *positional: Any, **named: Any) -> None:
        args = next((each for each in (*positional, *named.values()) if isinstance(each, TrainingArguments)), None)
        stop = None
        if args is not None:
            check_metric(type(self).__name__, args, named.get("eval_dataset"), self.telling_metrics)
            stop = early_stopping(type(self).__name__, args)
        super().__init__(*positional, **named)
        if stop is not None:
            self.add_callback(stop)

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
        chosen = self.args.metric_for_best_model
        if chosen is None:
            return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        name = f"eval_{chosen.removeprefix('eval_')}"
        with _stops_early_by_values(name):
            metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler=True)
        if name not in metrics:
            nearest = ", ".join(get_close_matches(name, metrics, cutoff=0.0))
            raise ValueError(
                f"{type(self).__name__}: metric_for_best_model={chosen!r} is none of the {len(metrics)} metrics of the "
                f"evaluation. The nearest are {nearest}."
            )
        if not _has_value(metrics[name]):
            if self.is_world_process_zero():
                logger.warning(
                    f"{name} has no value at step {self.state.global_step}: this evaluation is left out of the choice "
                    "of the best model, and of early stopping."
                )
        elif not skip_scheduler and isinstance(self.lr_scheduler, ReduceLROnPlateau | GreedyLR):
            self.lr_scheduler.step(metrics[name])
        return metrics

    def _determine_best_metric(self, metrics: dict[str, Any], trial: Any) -> bool:
        chosen = self.args.metric_for_best_model
        if chosen is not None and not _has_value(metrics[f"eval_{chosen.removeprefix('eval_')}"]):
            return False
        return super()._determine_best_metric(metrics, trial)


def check_metric(name: str, args: TrainingArguments, eval_dataset: Any, telling_metrics: Sequence[str]) -> None:
    """Refuse a `metric_for_best_model` that evaluations will not have, or that says nothing.

    Args:
        eval_dataset: as the trainer was given it; a mapping has several sets, whose names are in their metrics' names.
        telling_metrics: as in `BestModelMixin`.

    Raises:
        ValueError: names the metrics to use.
    """
    if args.save_strategy == "best" and args.eval_strategy == "no":
        raise ValueError(
            f"{name}: save_strategy='best' with eval_strategy='no' writes no checkpoint, as nothing is evaluated. Fix: "
            "eval_strategy='steps', or save_strategy='steps'."
        )
    if (chosen := args.metric_for_best_model) is None:
        return
    sets = list(eval_dataset) if isinstance(eval_dataset, Mapping) else []
    metric = chosen.removeprefix("eval_")
    of_set = next((each for each in sets if metric.startswith(f"{each}_")), None)
    metric = metric if of_set is None else metric.removeprefix(f"{of_set}_")
    says_nothing = bool(telling_metrics) and metric == "loss"
    if not says_nothing and (of_set is not None or not sets):
        return
    why = "names none of the evaluation sets, and each of their metrics begins with the set's name"
    if says_nothing:
        why = "does not say how good a policy is"
    metrics = telling_metrics if says_nothing else [metric]
    usable = [f"eval_{each}_{metric}" for each in sets for metric in metrics] or metrics
    default = " (the default)" if metric == "loss" else ""
    raise ValueError(f"{name}: metric_for_best_model={chosen!r}{default} {why}. Fix: {' or '.join(map(repr, usable))}.")


def _has_value(value: Any) -> bool:
    return value is not None and value == value  # NaN is not itself


def _stops_early_by_values(name: str) -> Any:
    """Let early stopping see, within the block, only evaluations in which the metric has a value."""
    seen = EarlyStoppingCallback.on_evaluate

    def on_evaluate(
        self: EarlyStoppingCallback, args: Any, state: Any, control: Any, metrics: dict[str, Any], **kwargs: Any
    ) -> None:
        if _has_value(metrics.get(name)):
            seen(self, args, state, control, metrics, **kwargs)

    return replaced(EarlyStoppingCallback, on_evaluate=on_evaluate)
