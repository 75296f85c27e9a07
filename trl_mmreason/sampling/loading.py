"""Load what an engine samples from: a vision-language model, its processor, and a LoRA adapter if there is one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
import torch
from accelerate import PartialState
from huggingface_hub import snapshot_download
from peft import PeftConfig, PeftModel
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedModel, ProcessorMixin
from transformers.utils.peft_utils import find_adapter_config_file

from .. import torchvision_free  # noqa: F401  processors load without torchvision from here on
from ..checkpoint import check_adapter_restored
from ..rows import DECODING_ERRORS

# What a picture that cannot be read, a template that refuses and a processor that cannot use what it was given raise.
ENCODING_ERRORS = (*DECODING_ERRORS, jinja2.TemplateError, TypeError)

_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


def load_model(
    model: str,
    *,
    adapter: str | None = None,
    dtype: Any = "auto",
    device: str | torch.device | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **model_kwargs: Any,
) -> tuple[PreTrainedModel, str]:
    """Load a model for sampling, with its adapter merged into the weights unless these are quantised.

    Args:
        model: path or Hub id of a model, or of an adapter that names its base model.
        adapter: path or Hub id of an adapter for `model`.
        dtype: of the weights; "auto" as they are saved.
        device: this process's accelerator by default, or the CPU without one.
        revision: of `model`.
        trust_remote_code: run the code that comes with the model.
        **model_kwargs: for `from_pretrained`, such as `attn_implementation`, `quantization_config` or `device_map`.

    Returns:
        The model, and the fingerprint of its weights.

    Raises:
        CheckpointError: the adapter's weights are not in the model.
    """
    base, base_revision = model, revision
    if adapter is None and find_adapter_config_file(model, revision=revision) is not None:
        adapter = _local(model, revision)
        config = PeftConfig.from_pretrained(adapter)
        base, base_revision = config.base_model_name_or_path, config.revision
    if device is not None and "device_map" in model_kwargs:
        raise ValueError(f"Got device={str(device)!r} and a device_map, which both place the model; give one of them.")
    loaded = AutoModelForImageTextToText.from_pretrained(
        base,
        dtype=dtype,
        revision=base_revision,
        trust_remote_code=trust_remote_code,
        **{"device_map": {"": device or PartialState().device}, **model_kwargs},
    )
    if adapter is not None:
        loaded = PeftModel.from_pretrained(loaded, adapter := _local(adapter, None))
        check_adapter_restored(loaded, adapter)
    weights = fingerprint(loaded.named_parameters())  # merging would round them otherwise on another device
    if adapter is not None and getattr(loaded.get_base_model(), "quantization_method", None) is None:
        loaded = loaded.merge_and_unload(safe_merge=True)
    return loaded.eval(), weights


def load_processor(model: str, *, revision: str | None = None, trust_remote_code: bool = False) -> ProcessorMixin:
    """The processor of a model, or of an adapter's base model where the adapter has none of its own."""
    if find_adapter_config_file(model, revision=revision) is not None:
        folder = Path(_local(model, revision))
        if not any((folder / name).exists() for name in _PROCESSOR_FILES):
            config = PeftConfig.from_pretrained(str(folder))
            model, revision = config.base_model_name_or_path, config.revision
    return AutoProcessor.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)


def _local(adapter: str, revision: str | None) -> str:
    """The folder of an adapter, with its processor's files if it has any."""
    if Path(adapter).is_dir():
        return adapter
    return snapshot_download(adapter, revision=revision, allow_patterns=["adapter_*", "*.json", "*.jinja", "*.model"])


def fingerprint(parameters: Iterable[tuple[str, torch.Tensor]]) -> str:
    """A digest of a few values of every parameter: what any training changes, read in a moment."""
    digest = hashlib.sha256()
    for name, parameter in parameters:
        digest.update(name.encode())
        if not parameter.is_meta:  # offloaded
            digest.update(parameter.detach().reshape(-1)[:16].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def processor_fingerprint(processing_class: ProcessorMixin) -> str:
    """A digest of how conversations are written and pictures are scaled."""
    template = getattr(processing_class, "chat_template", None)
    pictures = json.loads(processing_class.image_processor.to_json_string())
    return hashlib.sha256(json.dumps([template, pictures], sort_keys=True).encode()).hexdigest()[:16]
