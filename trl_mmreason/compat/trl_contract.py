"""The private methods that this package overrides or calls, with their expected parameters.

`tests/compat/test_trl_contract.py` holds the rest of what is relied on; this is what `mmreason doctor` looks at, too.
"""

from __future__ import annotations

import inspect
from typing import Any

TRAINER_PARAMETERS = {
    "_generate": ["self", "prompts"],
    "_generate_single_turn": [
        *("self", "prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"),
    ],
    "_tokenize_prompts": ["self", "prompts"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_save_rng_state": ["self", "output_dir"],
    "_get_output_dir": ["self", "trial"],
    "_push_from_checkpoint": ["self", "checkpoint_folder"],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    "_get_dataloader": [
        *("self", "dataset", "description", "batch_size", "sampler_fn", "is_training", "dataloader_key"),
    ],
}
"""Method of `GRPOTrainer`, which grpo.py or checkpoint.py overrides → its parameters."""

VLLM_PARAMETERS = {
    "_init_vllm": ["self"],
    "_iter_named_params": ["self"],
    "_fix_param_name_to_vllm": ["self", "name", "extra_prefixes"],
    "sync_weights": ["self"],
    "generate": ["self", "prompts", "images", "num_generations", "profiler"],
    "_place_features": ["self", "features", "prompt_ids"],
}
"""Method of `VLLMGeneration`, which compat/vllm.py overrides or calls → its parameters."""

CHECKPOINT_PARAMETERS = {
    "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    "_load_best_model": ["self"],
    "_evaluate": ["self", "trial", "ignore_keys_for_eval", "skip_scheduler"],
    "_determine_best_metric": ["self", "metrics", "trial"],
}
"""Method of transformers' `Trainer`, which checkpoint.py or best_model.py overrides → its parameters."""

GENERATION_ARGUMENTS = {
    "_prefill": ["input_ids", "generation_config", "model_kwargs"],
    "_update_model_kwargs_for_generation": ["outputs", "model_kwargs"],
    "prepare_inputs_for_generation": ["input_ids", "next_sequence_length"],
    "_supports_default_dynamic_cache": [],
}
"""Method of a transformers model, which generation/live_rows.py calls → the arguments that it gives."""


def changed_methods() -> dict[str, list[str]]:
    """Package → each method of it that is missing or takes other arguments than expected."""
    from transformers import GenerationMixin, Trainer
    from trl import GRPOTrainer  # TRL takes seconds to load
    from trl.generation.vllm_generation import VLLMGeneration

    return {
        "trl": [*_changed(GRPOTrainer, TRAINER_PARAMETERS), *_changed(VLLMGeneration, VLLM_PARAMETERS)],
        "transformers": [*_changed(Trainer, CHECKPOINT_PARAMETERS), *changed_generation(GenerationMixin)],
    }


def _changed(kind: type, methods: dict[str, list[str]]) -> list[str]:
    changes = []
    for name, expected in methods.items():
        method = getattr(kind, name, None)
        if method is None:
            changes.append(f"{kind.__name__}.{name} is gone")
        elif (parameters := list(inspect.signature(method).parameters)) != expected:
            changes.append(f"{kind.__name__}.{name} takes {parameters}, expected {expected}")
    return changes


def changed_generation(model: Any) -> list[str]:
    """Describe each method of a model, or of its class, that is missing or cannot be called as live_rows.py does."""
    changes = []
    kind = model if isinstance(model, type) else type(model)
    for name, arguments in GENERATION_ARGUMENTS.items():
        method = getattr(model, name, None)
        if method is None:
            changes.append(f"{kind.__name__}.{name} is gone")
            continue
        # a method of a class takes the model, too, unless it is one of the class itself
        bound = hasattr(method, "__self__") or not isinstance(model, type)
        try:
            inspect.signature(method).bind(*([] if bound else [model]), **dict.fromkeys(arguments))
        except TypeError as error:
            changes.append(f"{kind.__name__}.{name} cannot be called with {arguments}: {error}")
    return changes
