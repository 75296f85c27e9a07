"""Values of settings that training would refuse only after the model is loaded, or in the middle of its first step."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from transformers import get_scheduler

from .suggestions import suggestion

Rule = tuple[Callable[[Any], bool], str]

_COUNT: Rule = lambda value: value >= 1, "1 or more"
_NOT_NEGATIVE: Rule = lambda value: value >= 0, "0 or more"
_POSITIVE: Rule = lambda value: value > 0, "above 0"
_SHARE: Rule = lambda value: 0 <= value <= 1, "between 0 and 1"
_MOMENT: Rule = lambda value: 0 <= value < 1, "0 or more and below 1"

_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"), _COUNT
    ),
    **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm", "seed"), _NOT_NEGATIVE),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), _MOMENT),
    "max_steps": (lambda value: value >= 1 or value == -1, "1 or more, or -1 for num_train_epochs"),
    **dict.fromkeys(("save_steps", "num_train_epochs"), _POSITIVE),
    "temperature": (
        lambda value: value > 0,
        "above 0: greedy answers to a question are all the same, and teach nothing",
    ),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "top_k": (lambda value: value >= 0, "0 for all tokens, or more"),
    **dict.fromkeys(("min_p", "top_entropy_quantile"), _SHARE),
    "repetition_penalty": _POSITIVE,
    **dict.fromkeys(("beta", "epsilon", "epsilon_high"), _NOT_NEGATIVE),
}


def refuse_impossible(
    name: str, settings: Mapping[str, Any], choices: Mapping[str, Collection[Any]] | None = None
) -> None:
    """Refuse what no training can mean, before slow work; a configuration calls it before `__post_init__` of TRL's.

    Args:
        name: of the configuration, for messages.
        settings: its values.
        choices: setting → its possible values.

    Raises:
        ValueError: names the setting, its value and what is expected.
    """
    for setting, (holds, expected) in _RULES.items():
        value = settings.get(setting)
        if isinstance(value, int | float) and not holds(value):
            raise ValueError(f"{name}: {setting}={value}, expected {expected}.")
    for setting, values in (choices or {}).items():
        value = settings[setting]
        if value not in values:
            known = ", ".join(map(str, sorted(values, key=str)))
            near = suggestion(str(value), map(str, values))
            raise ValueError(f"{name}: {setting}={value!r}, expected one of {known}{near}")
    _refuse_tracker(name, settings.get("report_to"))
    _refuse_optimizer(name, settings)


def _refuse_tracker(name: str, report_to: Any) -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK as TRACKERS  # here: it is slow

    for tracker in [report_to] if isinstance(report_to, str) else report_to or []:
        if tracker not in {*TRACKERS, "all", "none"}:
            raise ValueError(
                f"{name}: report_to={tracker!r}, expected none, all or some of {', '.join(sorted(TRACKERS))}"
                f"{suggestion(tracker, TRACKERS)}"
            )


def _refuse_optimizer(name: str, settings: Mapping[str, Any]) -> None:
    optim_args = settings.get("optim_args")
    if optim_args and any(each.count("=") != 1 for each in str(optim_args).split(",")):
        raise ValueError(f"{name}: optim_args={optim_args!r}, expected name=value, name=value, ...")
    kwargs = settings.get("lr_scheduler_kwargs")
    if not kwargs:
        return
    kind = settings.get("lr_scheduler_type", "linear")
    optimizer = torch.optim.SGD([torch.zeros(1)])
    try:
        kwargs = json.loads(kwargs) if isinstance(kwargs, str) else kwargs
        get_scheduler(kind, optimizer, num_warmup_steps=0, num_training_steps=1, scheduler_specific_kwargs=kwargs)
    except (TypeError, ValueError) as error:
        message = f"{name}: lr_scheduler_kwargs={kwargs} do not suit lr_scheduler_type={kind}: {error}"
        raise ValueError(message) from error
