"""What GroupGRPOTrainer puts right about its arguments before and after TRL's constructor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from transformers import AutoProcessor, PreTrainedModel
from trl import GRPOConfig

from . import torchvision_free  # noqa: F401  processors load without torchvision from here on


def refuse_second_rollout(name: str, kwargs: dict[str, Any]) -> None:
    for option in ("tools", "rollout_func", "environment_factory"):
        if kwargs.get(option):
            raise ValueError(
                f"{name}: `{option}` cannot be combined with a second turn, which is itself a rollout. Leave it out, "
                "or train with one turn."
            )


def load_processor(model: Any, args: GRPOConfig | None) -> Any:
    path = model if isinstance(model, str) else model.config._name_or_path
    if path.startswith((".", "/", "~")) and not Path(path).exists():
        raise FileNotFoundError(f"There is no folder {path} to load a model from; give an existing one or a Hub id.")
    settings = dict((args and args.model_init_kwargs) or {})
    return AutoProcessor.from_pretrained(
        path,
        revision=settings.get("revision"),
        trust_remote_code=bool(args and args.trust_remote_code),
        padding_side="left",
        truncation_side="left",
    )


def pad_left(processing_class: Any) -> None:
    """Generation, and the token types that are laid beside the prompt, both need the prompt at the right end."""
    getattr(processing_class, "tokenizer", processing_class).padding_side = "left"


def drop_missing_pictures(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """A micro-batch of text-only rows from a batch with pictures comes with none left; a vision tower chokes on it."""
    pixels = kwargs.get("pixel_values")
    if pixels is not None and len(pixels) == 0:
        kwargs = {k: v for k, v in kwargs.items() if k not in ("pixel_values", "image_grid_thw", "image_sizes")}
    return args, kwargs


@contextmanager
def reference_is(model: Any, args: GRPOConfig | None, peft_config: Any) -> Iterator[None]:
    """While TRL builds its KL reference, let it find the policy that was passed.

    TRL loads the reference from the path in the policy's config. A policy that was changed in memory, or never saved,
    is therefore written to `<output_dir>/_reference` first (`push_to_hub` leaves such names out), and its config
    points there in the meantime.
    """
    in_memory = isinstance(model, PreTrainedModel) and not is_peft_model(model)
    if not in_memory or peft_config is not None or args is None or args.beta == 0.0:
        yield
        return
    name, folder = model.config._name_or_path, Path(args.output_dir) / "_reference"
    if args.should_save:
        model.save_pretrained(folder)
    args.distributed_state.wait_for_everyone()
    model.config._name_or_path = str(folder)
    try:
        yield
    finally:
        model.config._name_or_path = name
