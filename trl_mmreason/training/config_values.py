"""Values of settings that training would refuse only after the model is loaded, or in the middle of its first step."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from enum import Enum
from importlib.util import find_spec
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
from transformers import GenerationConfig, SchedulerType, get_scheduler

from ..data.user_text import parse_unique, suggestion

Rule = tuple[Callable[[Any], bool], str]

_COUNT: Rule = lambda value: value >= 1, "1 or more"
_NOT_NEGATIVE: Rule = lambda value: value >= 0, "0 or more"
_POSITIVE: Rule = lambda value: value > 0, "above 0"
_SHARE: Rule = lambda value: 0 <= value <= 1, "between 0 and 1"
_MOMENT: Rule = lambda value: 0 <= value < 1, "0 or more and below 1"

_RULES: dict[str, Rule] = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), _COUNT),
    **dict.fromkeys(("gradient_accumulation_steps", "max_prompt_length", "max_tokens_per_micro_batch"), _COUNT),
    **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm", "seed"), _NOT_NEGATIVE),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), _MOMENT),
    "max_steps": (lambda value: value >= 1 or value == -1, "1 or more, or -1 for num_train_epochs"),
    **dict.fromkeys(("save_steps", "num_train_epochs"), _POSITIVE),
    **dict.fromkeys(("refill_attempts", "oversampling"), _NOT_NEGATIVE),
    "oversampling_max_age": _COUNT,
    "temperature": (
        lambda value: value > 0,
        "above 0: greedy answers to a question are all the same, and teach nothing",
    ),
    "num_generations": (lambda value: value >= 2, "2 or more: the answers to a question are compared"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "top_k": (lambda value: value >= 0, "0 for all tokens, or more"),
    **dict.fromkeys(("min_p", "top_entropy_quantile"), _SHARE),
    "repetition_penalty": _POSITIVE,
    **dict.fromkeys(("beta", "epsilon", "epsilon_high"), _NOT_NEGATIVE),
}


_ANSWERS = "the answers to a question are num_generations, and others would go to the wrong questions. Fix: set that"
_LENGTH = "the token limit of an answer is max_completion_length. Fix: set that"
_SAMPLED = "updates assume that answers are sampled from the policy. Fix: leave it out"
_ROW_BY_ROW = "transformers takes one row at a time with it. Fix: leave it out"
_NO_GENERATION_KWARGS = {  # setting → why it is refused
    "temperature": "updates assume the temperature of the configuration. Fix: set temperature",
    **dict.fromkeys(("max_new_tokens", "max_length", "max_tokens"), _LENGTH),
    **dict.fromkeys(("num_return_sequences", "n"), _ANSWERS),
    **dict.fromkeys(("do_sample", "num_beams", "penalty_alpha", "guidance_scale"), _SAMPLED),
    **dict.fromkeys(("prompt_lookup_num_tokens", "assistant_early_exit"), _ROW_BY_ROW),
    "stop_strings": "transformers needs a tokenizer for it, which TRL does not pass. Fix: leave it out, or sample with "
    "vLLM, where it is stop",
}
# What training does anyway.
_USUAL = {"num_return_sequences": 1, "n": 1, "do_sample": True, "num_beams": 1, "guidance_scale": 1.0}
_TYPES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "`name: value` pairs",
    NoneType: "null",
}


def wrong_type(name: str, value: Any, hint: Any) -> str | None:
    """What is wrong with a value in YAML for a field of this type; `None` if it has the type.

    Empty is a section without settings, and a string may stand for a list of one.
    """
    if _fits(value, hint) or (name == "scale_rewards" and isinstance(value, bool)):  # TRL's older names
        return None
    if name == "tolerance" and isinstance(value, int | float) and not isinstance(value, bool):  # a share, or a name
        return None
    kinds = [get_origin(each) or each for each in _members(hint)]
    expected = " or ".join(dict.fromkeys(_TYPES[each] for each in kinds if each in _TYPES))
    quotes = ". Fix: put it in quotes" if isinstance(value, bool) and str in kinds else ""  # YAML's no is false
    return f"{name}: {json.dumps(value, default=str)}, expected {expected}{quotes}"


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    members, kind = _members(hint), get_origin(hint) or hint
    if len(members) > 1:
        return any(_fits(value, each) for each in members)
    if kind is Literal:
        return value in get_args(hint)
    if kind is list:
        items = value if isinstance(value, list) else [None]
        return isinstance(value, str) or all(_fits(item, each) for item in items for each in get_args(hint))
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return isinstance(value, str)
    return kind not in _TYPES or isinstance(value, kind) or (kind is dict and value is None)


def refuse_impossible(
    name: str,
    settings: Mapping[str, Any],
    choices: Mapping[str, Collection[Any]] | None = None,
    *,
    schedule: str = "linear",
) -> None:
    """Refuse what no training can mean, before slow work; a configuration calls it before `__post_init__` of TRL's.

    Args:
        choices: setting → its possible values.
        schedule: the configuration's own `lr_scheduler_type`, which needs no `lr_scheduler_kwargs`.

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
    _refuse_optimizer(name, settings, schedule)
    _refuse_generation_kwargs(name, settings.get("generation_kwargs"), use_vllm=settings.get("use_vllm", False))


def _refuse_tracker(name: str, report_to: Any) -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK as TRACKERS  # here: it is slow

    for tracker in [report_to] if isinstance(report_to, str) else report_to or []:
        if tracker not in {*TRACKERS, "all", "none"}:
            raise ValueError(
                f"{name}: report_to={tracker!r}, expected none, all or some of {', '.join(sorted(TRACKERS))}"
                f"{suggestion(tracker, TRACKERS)}"
            )


def _refuse_optimizer(name: str, settings: Mapping[str, Any], schedule: str) -> None:
    optim_args = settings.get("optim_args")
    if optim_args and any(each.count("=") != 1 for each in str(optim_args).split(",")):
        raise ValueError(f"{name}: optim_args={optim_args!r}, expected name=value, name=value, ...")
    kwargs, kind = settings.get("lr_scheduler_kwargs") or {}, settings.get("lr_scheduler_type", schedule)
    if not kwargs and (kind == schedule or kind not in list(SchedulerType)):  # an unknown name is TRL's to refuse
        return
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=float(settings.get("learning_rate") or 1e-3))
    try:
        kwargs = json.loads(kwargs) if isinstance(kwargs, str) else kwargs
        get_scheduler(kind, optimizer, num_warmup_steps=0, num_training_steps=1, scheduler_specific_kwargs=kwargs)
    except (TypeError, ValueError) as error:
        message = f"lr_scheduler_kwargs={kwargs} do not suit lr_scheduler_type={SchedulerType(kind).value}: {error}"
        raise ValueError(f"{name}: {message}") from error


def _refuse_generation_kwargs(name: str, given: Any, *, use_vllm: bool) -> None:
    """Refuse what the engine would ignore, and what samples from another distribution than updates assume."""
    if isinstance(given, str):  # JSON, which TRL reads only if it looks like that
        with suppress(ValueError):
            given = parse_unique(given)
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(
            f"{name}: generation_kwargs={given!r}, expected `name: value` pairs, on the command line as JSON."
        )
    if not given:
        return
    known, engine = [each for each in vars(GenerationConfig()) if not each.startswith("_")], "GenerationConfig"
    if use_vllm and find_spec("vllm") is None:
        known = []
    elif use_vllm:
        from vllm import SamplingParams  # here: it is slow

        known, engine = list(SamplingParams.__struct_fields__), "vLLM's SamplingParams"
    for setting, value in given.items():
        if setting in _NO_GENERATION_KWARGS and value not in (None, _USUAL.get(setting)):
            raise ValueError(f"{name}: generation_kwargs: {setting}={value!r}: {_NO_GENERATION_KWARGS[setting]}.")
        if known and setting not in known:
            near = suggestion(setting, known)
            raise ValueError(f"{name}: generation_kwargs: {engine} has no `{setting}`{near}")
