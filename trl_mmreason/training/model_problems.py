"""Whether a model has what a trainer asks of it, by its configuration, its modules and the trainer's rows.

Each check returns one sentence, or `None` if all is well; `model_checks` runs them, with those that need a pass.
"""

from __future__ import annotations

import math
from typing import Any

import transformers
from datasets import Dataset
from peft import PeftType

from ..compat.chat_template import tokenizer_of
from ..compat.learned_positions import learned_positions, table_of_tokens
from .processor_checks import to_look_at


def rotary_problem(config: Any, longest: float = math.inf) -> str | None:
    """Whether rotary frequencies depend on the longest row of a batch, so that a row's scores depend on the others."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for each in (parameters, *(part for part in parameters.values() if isinstance(part, dict))):  # of kinds of layers
        if each.get("rope_type") not in ("dynamic", "longrope"):
            continue
        most = each.get("original_max_position_embeddings") or config.get_text_config().max_position_embeddings
        if longest > most:
            return (
                f"{type(config).__name__} has rope_type={each['rope_type']!r}: frequencies change for all rows of a "
                f"batch in which one has more than {most} tokens. Fix: max_prompt_length and max_completion_length "
                "that keep every row below that, or another model."
            )
    return None


def positions_problem(model: Any, trainer: Any) -> str | None:
    """Whether a row may have more tokens than the model learned positions for, where a pass ends in an IndexError."""
    from .prompt_length import prompt_lengths  # imported late: it imports this module

    most = learned_positions(model)
    rows = getattr(trainer, "questions", trainer.train_dataset)
    if most == math.inf or not isinstance(rows, Dataset) or "prompt" not in rows.column_names:
        return None
    args, tokenizer = trainer.args, tokenizer_of(trainer.processing_class)
    if "completion" in rows.column_names:
        texts = [text if isinstance(text, str) else text[-1]["content"] for text in rows["completion"]]
        answers = [len(tokenizer(text).input_ids) + 1 for text in texts]
    else:
        answers = [getattr(trainer, "max_turns", 1) * (args.max_completion_length or 0)] * len(rows)
    prompting = {"system_prompt": getattr(trainer, "system_prompt", None)}
    prompts = prompt_lengths(rows, trainer.processing_class, **prompting)
    longest = max(map(sum, zip(prompts, answers, strict=True)), default=0)
    cut = getattr(args, "max_length", None)
    if (longest if cut is None else min(longest, cut)) <= most:
        return None
    return (
        f"a row may have {longest} tokens, and {type(model).__name__} learned {most} positions. Fix: a smaller "
        "max_completion_length, shorter rows, or another model."
    )


def tokens_problem(model: Any, trainer: Any) -> str | None:
    """Whether a row has a token that was added to the tokenizer and that the model has no embedding of."""
    known = table_of_tokens(model).num_embeddings
    added = tokenizer_of(trainer.processing_class).get_added_vocab()
    beyond = {token: number for token, number in added.items() if number >= known}
    rows = getattr(trainer, "questions", trainer.train_dataset)
    if not beyond or not isinstance(rows, Dataset):
        return None
    names = [name for name in ("prompt", "completion") if name in rows.column_names]
    for number, row in enumerate(to_look_at(rows, *names)):
        if token := next((token for token in beyond if token in str(row)), None):
            return (
                f"row {number} has {token!r}, which is token {beyond[token]}, and {type(model).__name__} has {known}. "
                "Fix: model.resize_token_embeddings(len(tokenizer)), or leave such rows out."
            )
    return None


def adapter_problem(model: Any) -> str | None:
    """Whether an adapter puts tokens of its own before a row's, changes the forward pass, or cannot be loaded again."""
    adapter = getattr(model, "active_peft_config", None)
    start = str(getattr(adapter, "init_lora_weights", ""))
    if start.startswith("pissa_niter"):
        return (
            f"init_lora_weights={start!r} draws its start anew when the adapter is loaded, so that "
            "what was trained is lost. Fix: init_lora_weights='pissa'."
        )
    if getattr(adapter, "save_only_topk_weights", False):
        return "save_only_topk_weights=True saves a part, from which no run resumes. Fix: save_only_topk_weights=False."
    if getattr(adapter, "alora_invocation_tokens", None):
        return "alora_invocation_tokens lets an adapter act behind those tokens alone, and not on rows. Fix: LoRA."
    if adapter is None:
        return None
    if adapter.is_prompt_learning:
        return f"{type(adapter).__name__} puts tokens before those of a row, which trainers do not take. Fix: LoRA."
    if adapter.peft_type in (PeftType.ADAPTION_PROMPT, PeftType.POLY):
        return f"{type(adapter).__name__} changes the forward pass, by which trainers score. Fix: LoRA."
    return None


def changes_base(adapter: Any) -> bool:
    """Whether a new adapter changes the weights below it.

    PiSSA, OLoRA, LoftQ and CorDA begin with a part of them, which they lose; biases are trained in their place.
    """
    start = getattr(adapter, "init_lora_weights", True)
    begins_within = isinstance(start, str) and start not in ("gaussian", "eva", "orthogonal")
    return begins_within or getattr(adapter, "bias", "none") != "none"


def what_changes_base(adapter: Any) -> tuple[str, str]:
    """The setting by which an adapter changes the weights below it, and how to have its reference all the same."""
    if getattr(adapter, "bias", "none") != "none":
        return f"bias={adapter.bias!r}", "bias='none'"
    start = f"init_lora_weights={adapter.init_lora_weights!r}"
    return start, "pass get_peft_model(model, peft_config) as the model, whose adapter is copied"


def switched_off_problem(trainer: Any) -> str | None:
    """Whether the policy without its adapter, which TRL takes as the reference of a new one, is not the initial one."""
    adapters = getattr(trainer.model, "peft_config", {})
    if not getattr(trainer, "beta", 0.0) or "ref" in adapters or not any(map(changes_base, adapters.values())):
        return None
    what, fix = what_changes_base(adapters["default"])
    return (
        f"an adapter with {what} changes the weights below it, so that the policy without it, by which the KL term is "
        f"computed, is another model. Fix: {fix}, or beta=0."
    )


def architecture_problem(config: Any) -> str | None:
    """Whether TRL finds in a configuration the class to load, a model that generates."""
    names = config.architectures or []
    if names and hasattr(getattr(transformers, names[0], None), "generate"):
        return None
    if names and getattr(config, "auto_map", None):  # code of the checkpoint's own
        return None
    return (
        f"config.json has architectures={names}, expected the class of a model that generates, as "
        '["Qwen2_5_VLForConditionalGeneration"]. Fix: correct it, or load the model and pass that.'
    )


def longest_row(trainer: Any) -> float:
    """The tokens that a row of a trainer may have, where its prompts have a bound; else infinity."""
    most = getattr(trainer.args, "max_prompt_length", None)
    return math.inf if most is None else most + getattr(trainer, "max_turns", 1) * trainer.args.max_completion_length


# ------------------------------------------------------------------------------------------- mixtures of experts


def experts_problem(config: Any) -> str | None:
    """Whether TRL finds in a configuration what its auxiliary loss of a mixture of experts needs."""
    text = config.get_text_config()
    missing = [name for name in ("num_experts", "num_experts_per_tok") if not hasattr(text, name)]
    return no_auxiliary_loss(f"{type(text).__name__} has no {missing[0]}") if missing else None


def no_auxiliary_loss(reason: str) -> str:
    """The sentence that refuses a mixture of experts."""
    return (
        f"TRL cannot compute the auxiliary loss of this mixture of experts, as {reason}. Fix: router_aux_loss_coef=0.0."
    )
