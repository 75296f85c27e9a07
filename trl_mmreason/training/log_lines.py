"""What the console shows of a log: a line of the numbers to read. Trackers and `trainer_state.json` get all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerState

_SHOWN = (
    *("loss", "reward", "acc_t1", "acc_t2", "accuracy", "trajectory_score", "answer_accuracy", "mean_token_accuracy"),
    *("rewards/accuracies", "distinct_answers", "completions/mean_length", "kl", "learning_rate", "updates_skipped"),
)


def log_line(logs: Mapping[str, Any], state: TrainerState, chosen: str | None = None) -> str:
    """Format a log in one line.

    Args:
        logs: what is logged; without a metric that is known, all of it is shown.
        state: its step is named.
        chosen: `metric_for_best_model`, which is shown, too.
    """
    of = next((name.removesuffix("_runtime") for name in logs if name.endswith("_runtime")), "")
    if of == "train":
        return f"{state.global_step} steps in {logs['train_runtime']:.3g} s, mean loss {logs['train_loss']:.3g}"
    values = {name.removeprefix(f"{of}_"): value for name, value in logs.items() if name.startswith(of)}
    best = f"eval_{(chosen or '').removeprefix('eval_')}".removeprefix(f"{of}_")
    names = [name for name in dict.fromkeys((*_SHOWN, best)) if name in values] or list(values)
    parts = [f"{name.rpartition('/')[2]} {_text(values[name])}" for name in names]
    seconds = [f"{values['step_time']:.3g} s"] if "step_time" in values else []
    return "  ".join([f"step {state.global_step}/{state.max_steps}", *filter(None, [of]), *parts, *seconds])


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class BarLines(ProgressCallback):
    """The usual progress bar, with the line of each log above it."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.training_bar is not None:
            self.training_bar.write(log_line(logs, state, args.metric_for_best_model))


class _PrintedLines(PrinterCallback):
    """The line of each log, where progress bars are switched off."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_local_process_zero:
            print(log_line(logs, state, args.metric_for_best_model), flush=True)  # noqa: T201 - as its base does


_READABLE = {ProgressCallback: BarLines, PrinterCallback: _PrintedLines}


def log_in_lines(trainer: Trainer) -> None:
    """Let a trainer's usual callbacks show lines in the place of all metrics; those that a caller made stay."""
    callbacks = trainer.callback_handler.callbacks
    callbacks[:] = [_READABLE[type(each)]() if type(each) in _READABLE else each for each in callbacks]
