"""Prepare what a trainer loads before TRL's constructor, and its models after it."""

from __future__ import annotations

from itertools import islice
from typing import Any

from accelerate.utils import DistributedType, is_peft_model
from datasets import Dataset
from transformers import AutoConfig
from transformers.integrations import is_deepspeed_zero3_enabled

from ..compat.adapters import fill_reference_adapter, prepare_head
from ..compat.chat_template import warn_of_moved_images
from ..compat.fused_head import fused_head_output, use_own_head_output
from ..compat.head_input import keep_head_input_whole
from ..compat.input_hooks import keep_one_input_hook
from ..compat.known_images import encode_images_once
from ..compat.learned_positions import count_positions_from_the_first_token
from ..compat.model_parts import placeholder_ids, without_adapters
from ..compat.patch_embedding import use_matrix_product_for_patches
from ..compat.precision import check_precision
from ..compat.sharding import exact_rotary_frequencies, import_model_classes, name_own_layers, use_whole_head
from ..compat.vision_passes import ImageHooks, ensure_image_pass, vision_weights
from .model_checks import check_model, is_placed_later, unreached_weights
from .model_problems import architecture_problem
from .noise import turn_off_noise
from .processor_checks import to_look_at


def prepare_loading(model: Any, args: Any) -> int | None:
    """Before TRL's constructor: let ZeRO-3 construct mixtures of experts, and DDP search for no unused weights.

    TRL lets it do that in every step of a vision-language model, as a batch without images leaves the vision encoder
    out (huggingface/transformers#49443). Here every pass runs the encoder; see `prepare_policy`.

    Args:
        model: path or id of a checkpoint, or a model, which is there already.
        args: the trainer's configuration; a search that the user set stays.

    Returns:
        The padding token of the model's configuration, for `prepare_models`.
    """
    if args is None:
        return None if isinstance(model, str) else _padding_of(model.config)
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False
    if not isinstance(model, str):
        return _padding_of(model.config)
    settings = args.model_init_kwargs or {}
    where = {name: settings[name] for name in ("revision", "trust_remote_code") if name in settings}
    config = AutoConfig.from_pretrained(model, **where)
    if problem := architecture_problem(config):
        raise ValueError(f"{model}: {problem}")
    if is_deepspeed_zero3_enabled():
        import_model_classes(config)
    return _padding_of(config)


def _padding_of(config: Any) -> int | None:
    return getattr(config.get_text_config(), "pad_token_id", None)


def prepare_models(trainer: Any, padding: int | None = None) -> None:
    """After TRL's constructor: check and prepare a trainer's model, and its reference if TRL made one.

    Args:
        padding: result of `prepare_loading`. TRL writes the tokenizer's into the model's configuration, which may
            make another model of it (`compat/special_tokens.py`).
    """
    policy = trainer.accelerator.unwrap_model(trainer.model)
    if padding is not None:
        policy.config.get_text_config().pad_token_id = padding
    if (sampling := getattr(trainer, "generation_config", None)) is not None:  # TRL knows the images' alone
        sampling.suppress_tokens = [*{*(sampling.suppress_tokens or ()), *placeholder_ids(policy.config)}] or None
    _check_optimizer(trainer, policy)
    check_precision(trainer)
    if isinstance(rows := trainer.train_dataset, Dataset) and "prompt" in rows.column_names:
        prompts = (row["prompt"] for row in to_look_at(rows, "prompt"))
        warn_of_moved_images(trainer.processing_class, islice(prompts, 1000))
    if getattr(trainer.args, "disable_dropout", False):
        turn_off_noise(policy)
    fill_reference_adapter(policy)
    trainer.image_hooks = prepare_policy(policy, trainer.processing_class)
    trainer.start_difference = check_model(trainer)
    wrapped = trainer.accelerator.distributed_type != DistributedType.NO  # by DDP, also the one process of torchrun
    search = wrapped and not is_placed_later(trainer) and bool(unreached_weights(trainer))
    if search:
        trainer.args.ddp_find_unused_parameters = True
        trainer.accelerator.ddp_handler.find_unused_parameters = True  # the arguments have been read
    _refuse_reentrant(trainer, search)
    if getattr(trainer, "ref_model", None) is not None:
        reference = trainer.accelerator.unwrap_model(trainer.ref_model)
        reference.requires_grad_(trainer.args.sync_ref_model)  # one that stays may encode images once
        prepare_policy(reference, trainer.processing_class, reference_of=policy)


def _check_optimizer(trainer: Any, policy: Any) -> None:
    """Refuse an optimizer of the user's that was made before other weights took the place of those that it has."""
    if trainer.optimizer is None:
        return
    held = {id(weight) for group in trainer.optimizer.param_groups for weight in group["params"]}
    trained = {id(weight): name for name, weight in policy.named_parameters() if weight.requires_grad}
    left_out = [name for weight, name in trained.items() if weight not in held]
    if left_out and held - trained.keys():
        raise ValueError(
            f"{type(trainer).__name__}: the optimizer has weights that are not trained, and lacks "
            f"{', '.join(left_out[:3])}, which would never be trained. Fix: make it after what replaces weights; an "
            "adapter does, and Chain-of-Step's tokens, which let embeddings grow: get_peft_model and "
            "add_chain_tokens(model, processor) come first."
        )


def _refuse_reentrant(trainer: Any, search: bool) -> None:
    """Refuse re-entrant checkpointing where it trains a part only, or where DDP searches for unreached weights.

    A layer that is entered again has gradients if one of its inputs needs some, and pixels do not.
    """
    settings = trainer.args.gradient_checkpointing and trainer.args.gradient_checkpointing_kwargs
    if not settings or not settings.get("use_reentrant"):
        return
    policy = trainer.accelerator.unwrap_model(trainer.model)
    seen = is_peft_model(policy) and any(weight.requires_grad for weight in vision_weights(without_adapters(policy)))
    if seen or search:
        reason = "would not train the vision encoder's adapter" if seen else "does not go with DDP for this model"
        raise ValueError(
            f"{type(trainer).__name__}: use_reentrant=True {reason}. Fix: "
            "gradient_checkpointing_kwargs={'use_reentrant': False}."
        )


def prepare_policy(policy: Any, processing_class: Any, reference_of: Any = None) -> ImageHooks | None:
    """Register the hooks that a model or a reference needs to train alike under every engine.

    Args:
        policy: not wrapped yet, with or without adapters.
        reference_of: the policy whose reference this is.

    Returns:
        As `ensure_image_pass`.
    """
    prepare_head(policy)
    base = without_adapters(policy)
    use_own_head_output(base, reference_of and fused_head_output(without_adapters(reference_of)))
    exact_rotary_frequencies(base)
    name_own_layers(base)
    use_whole_head(base)
    keep_head_input_whole(base)
    use_matrix_product_for_patches(base)
    keep_one_input_hook(base)
    count_positions_from_the_first_token(base)
    encode_images_once(policy, reference_of)
    return ensure_image_pass(policy, processing_class)
