"""Load an engine's model, with or without vision, its processor or tokenizer, and a LoRA adapter."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import torch
from accelerate.utils import broadcast
from huggingface_hub import snapshot_download
from peft import PeftConfig, PeftModel
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    ProcessorMixin,
)
from transformers.utils.peft_utils import find_adapter_config_file

from ..compat import torchvision_free  # noqa: F401  processors load without torchvision from here on
from ..compat.adapters import check_adapter_restored, merged
from ..compat.chat_template import ProcessingClass
from ..compat.patch_embedding import use_matrix_product_for_patches
from ..compat.precision import keep_training_layout
from ..compat.sharding import is_sharded, loading_whole
from ..data.folders import check_model_path
from ..data.images import DECODING_ERRORS
from .engine import Failure
from .patience import patient_state

if TYPE_CHECKING:
    from transformers import Trainer

logger = logging.getLogger(__name__)

# What an image that cannot be read, a template that refuses and a processor that cannot use what it was given raise.
ENCODING_ERRORS = (*DECODING_ERRORS, jinja2.TemplateError, TypeError)

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
TOKENIZER_FILES = ("tokenizer_config.json",)
# What of `from_pretrained`'s arguments says where a checkpoint's files are.
_WHEREABOUTS = ("cache_dir", "code_revision", "local_files_only", "subfolder", "token")


def unencodable(error: Exception) -> Failure:
    """The failure of a request for one of `ENCODING_ERRORS`."""
    return Failure(f"the conversation cannot be encoded: {type(error).__name__}: {error}")


def sees_images(config: Any) -> bool:
    """Whether a configuration is of a vision-language model; others are loaded as text-only."""
    return (
        type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        or "AutoModelForImageTextToText" in (getattr(config, "auto_map", None) or {})
        or hasattr(config, "vision_config")
    )


def auto_class_of(config: Any) -> Any:
    """The class of transformers that loads a model of this configuration."""
    return AutoModelForImageTextToText if sees_images(config) else AutoModelForCausalLM


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
    """Load a model for sampling; its adapter is merged unless the weights are quantised.

    Args:
        model: path or Hub id of a model, or of an adapter that names its base model.
        adapter: path or Hub id of an adapter for `model`, which is loaded in the revision that the adapter names.
        dtype: dtype of the weights; "auto" as they are saved.
        device: this process's accelerator by default, or the CPU without one.
        revision: revision of `model`.
        **model_kwargs: arguments of `from_pretrained`, such as `attn_implementation` or `device_map`.

    Returns:
        The model, and the fingerprint of its weights.

    Raises:
        CheckpointError: the adapter's weights are not in the model.
        NoSuchFolder: a path is named where nothing is, or a Hub id that is not cached while the Hub is out of reach.
    """
    check_model_path(model, model_kwargs.get("cache_dir"))
    if adapter is not None:
        check_model_path(adapter)
    base, base_revision, adapter = _base_of(model, revision, adapter)
    if device is not None and "device_map" in model_kwargs:
        raise ValueError(f"Got device={str(device)!r} and a device_map, which both place the model; give one of them.")
    source = {"revision": base_revision, "trust_remote_code": trust_remote_code}
    whereabouts = {name: model_kwargs[name] for name in _WHEREABOUTS if name in model_kwargs}
    config = AutoConfig.from_pretrained(base, **source, **whereabouts)
    placed = {"device_map": {"": device or patient_state().device}, **model_kwargs}
    with loading_whole():  # whatever shards the policies that are trained here
        loaded = auto_class_of(config).from_pretrained(base, dtype=dtype, **source, **placed)
        if adapter is not None:
            loaded = PeftModel.from_pretrained(loaded, adapter)
            check_adapter_restored(loaded, adapter)
    keep_training_layout(loaded)
    use_matrix_product_for_patches(loaded)
    weights = fingerprint(loaded.named_parameters())  # merging would round them differently on another device
    if adapter is not None and getattr(loaded.get_base_model(), "quantization_method", None) is None:
        loaded = merged(loaded)
    return loaded.eval(), weights


def load_processor(
    model: str, *, adapter: str | None = None, revision: str | None = None, trust_remote_code: bool = False
) -> Any:
    """Load a model's processor, or a text-only model's tokenizer; for an adapter without one, its base model's."""
    check_model_path(model)
    base, base_revision, adapter = _base_of(model, revision, adapter)
    config = AutoConfig.from_pretrained(base, revision=base_revision, trust_remote_code=trust_remote_code)
    sees = sees_images(config)
    own = PROCESSOR_FILES if sees else TOKENIZER_FILES
    if adapter is not None and any((Path(adapter) / name).exists() for name in own):
        base, base_revision = adapter, revision
    # Not AutoProcessor for both: it hides why a tokenizer cannot be loaded.
    auto_class = AutoProcessor if sees else AutoTokenizer
    return auto_class.from_pretrained(base, revision=base_revision, trust_remote_code=trust_remote_code)


def saved_settings(model: str, *, revision: str | None = None, trust_remote_code: bool = False) -> GenerationConfig:
    """The generation settings that a model has when it is loaded from this path or Hub id."""
    source = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        return GenerationConfig.from_pretrained(model, revision=revision)
    except OSError:  # a checkpoint may have none
        return GenerationConfig.from_model_config(AutoConfig.from_pretrained(model, **source))


def _base_of(model: str, revision: str | None, adapter: str | None) -> tuple[str, str | None, str | None]:
    """Base model and its revision, and the adapter's folder; the model itself if it is no adapter."""
    if adapter is not None:
        adapter = _local(adapter, None)
        if revision is None and (saved := PeftConfig.from_pretrained(adapter)).base_model_name_or_path == model:
            revision = saved.revision
        return model, revision, adapter
    if find_adapter_config_file(model, revision=revision) is None:
        return model, revision, None
    adapter = _local(model, revision)
    peft_config = PeftConfig.from_pretrained(adapter)
    return peft_config.base_model_name_or_path, peft_config.revision, adapter


def warn_of_another_base(model: str, adapter: str) -> None:
    """Warn of an adapter that is put on another model than the one that it was trained on, going by their names."""
    own = PeftConfig.from_pretrained(_local(adapter, None)).base_model_name_or_path
    if own and Path(own).resolve() != Path(model).resolve():
        logger.warning(
            "The adapter %s was trained on %s, and is put on %s: unless these are copies of one model, it is neither. "
            "Fix: name that model, or the adapter alone.",
            *(adapter, own, model),
        )


def _local(adapter: str, revision: str | None) -> str:
    """Local folder of an adapter, with its processor's files if it has any."""
    if Path(adapter).is_dir():
        return adapter
    patterns = ["adapter_*", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
    return snapshot_download(adapter, revision=revision, allow_patterns=patterns)


def fingerprint(parameters: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Digest of a few values of every parameter, which any training changes."""
    digest = hashlib.sha256()
    for name, parameter in parameters:
        digest.update(name.encode())
        if not parameter.is_meta:  # offloaded
            digest.update(parameter.detach().reshape(-1)[:16].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def processor_fingerprint(processing_class: ProcessingClass) -> str:
    """Digest of the chat template and, for a processor, of the scaling of images."""
    template = getattr(processing_class, "chat_template", None)
    scales = isinstance(processing_class, ProcessorMixin)
    images = json.loads(processing_class.image_processor.to_json_string()) if scales else None
    return hashlib.sha256(json.dumps([template, images], sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def whole_policy(trainer: Trainer, saved: str | Path | None = None) -> Iterator[PreTrainedModel]:
    """Yield the policy, whole and on this process's device; all processes have to ask for it.

    Under FSDP, whose processes run a sharded model together, it is read from where it is saved.

    Args:
        trainer: its model may be sharded, or wait on the CPU for training to begin, as under DeepSpeed and FSDP.
        saved: a folder that holds the policy; under FSDP it may be `None` only before training.
    """
    accelerator: Any = trainer.accelerator
    policy: Any = accelerator.unwrap_model(trainer.model)
    if trainer.is_fsdp_enabled and saved is not None:
        whole, _ = load_model(str(saved))
        whole.config._name_or_path = policy.config._name_or_path  # the folder may be moved
        yield whole
        return
    if policy.device.type != accelerator.device.type and not is_sharded(policy):
        policy.to(accelerator.device)
    if trainer.is_fsdp_enabled:
        for weight in [*policy.parameters(), *policy.buffers()]:  # the first process alone may have read them
            broadcast(weight.data, from_process=0)
    from trl.models import unwrap_model_for_generation  # here: TRL takes seconds to load

    with unwrap_model_for_generation(trainer.model_wrapped, accelerator) as policy:
        yield policy
