"""The estimate of memory of `mmreason doctor` beside figures that others have published."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig

from trl_mmreason.cli.doctor.layer_bytes import Precision
from trl_mmreason.cli.doctor.memory import (
    CONTEXT_BYTES,
    GIB,
    build_without_weights,
    count_parameters,
    training_memory,
)
from trl_mmreason.cli.doctor.passes import Workload, pass_bytes
from trl_mmreason.compat.model_parts import freeze_vision_encoder, parts_of

from .common import Result
from .memory import build_published

_SWIFT = "https://github.com/modelscope/ms-swift/blob/"
_QWEN = "https://github.com/QwenLM/Qwen#profiling-of-memory-and-speed"
_LINEAR = r".*(language_model.*|model\.layers\..*)\.(q|k|v|o|gate|up|down)_proj"
_LOGITS = 14
"""Bytes of each logit that a loss without a fused head takes: in bfloat16, in float32, its log-probability, and the
gradient of that."""
_COCO = 391
"""Tokens of an image of 640 × 480 pixels, which most of COCO's have."""


class Peer(NamedTuple):
    """A published figure and its run.

    Attributes:
        run: what was run.
        source: where the figure is.
        gib: the figure.
        model: one of `MODELS`, or Qwen-7B, which reads text alone.
        rows: rows of a micro-batch.
        tokens: tokens of a row.
        image: those of its image.
        rank: of LoRA on the language model; 0 trains all weights.
        trains_vision: whether the vision encoder is trained.
        checkpointing: whether layers are computed again.
        gpus: GPUs.
        zero_stage: of ZeRO.
        copies: models in memory; 2 with a reference.
        is_assumed: whether the tokens are ours, as the source names only a bound or none.
    """

    run: str
    source: str
    gib: float
    model: str
    rows: int
    tokens: int
    image: int = 0
    rank: int = 0
    trains_vision: bool = False
    checkpointing: bool = True
    gpus: int = 1
    zero_stage: int = 0
    copies: int = 1
    is_assumed: bool = True


PEERS = (
    *(
        Peer(f"Qwen-7B, LoRA, {tokens:,} tokens", _QWEN, gib, "Qwen-7B", 1, tokens, rank=64, is_assumed=False)
        for tokens, gib in ((256, 20.1), (512, 20.4), (1024, 21.5), (2048, 23.8), (4096, 29.7), (8192, 36.6))
    ),
    Peer(
        "ms-swift, 7B, LoRA, COCO captions",
        f"{_SWIFT}13e86a084e425025f81ea4135da60694cfc85c0f/examples/train/multimodal/caption.sh",
        *(22, "Qwen2.5-VL-7B", 1, 600, _COCO, 8),
    ),
    Peer(
        "ms-swift, 7B, LoRA and vision encoder, COCO",
        f"{_SWIFT}e6ff2cb19be0cd69b0571477f1eacb0df15358cc/examples/train/multimodal/custom_tuner/lora_llm_full_vit.sh",
        *(25, "Qwen2.5-VL-7B", 1, 600, _COCO, 16, True),
    ),
    Peer(
        "ms-swift, 7B, DPO, ZeRO-3 on 4",
        f"{_SWIFT}236e3dc1b9a1aac8bc335c856db6e39ae5610949/examples/train/multimodal/rlhf/dpo/full.sh",
        *(48, "Qwen2.5-VL-7B", 2, 700, _COCO),
        gpus=4,
        zero_stage=3,
        copies=2,
    ),
    Peer(
        "ms-swift, 3B, GRPO, ZeRO-2 on 6",
        f"{_SWIFT}66d0ea1d09153bac04c2aa5ffd8426d745590fe4/examples/train/grpo/full_vllm_qwenvl.sh",
        *(60, "Qwen2.5-VL-3B", 4, 768 + 1536, 700),
        trains_vision=True,
        gpus=6,
        zero_stage=2,
        copies=2,
    ),
    Peer(
        "ms-swift, 7B, all weights, no checkpointing, ZeRO-3 on 4",
        f"{_SWIFT}5f19114b3f249291744cc2634474150f5227978b/examples/train/multimodal/vit_gradient_checkpointing.sh",
        *(77, "Qwen2.5-VL-7B", 4, 500, 384),
        trains_vision=True,
        checkpointing=False,
        gpus=4,
        zero_stage=3,
    ),
)


def qwen_7b() -> Any:
    """Build a language model of Qwen-7B's widths, with three layers in its MLP as there, without weights."""
    sizes = {"hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32}
    return build_without_weights(
        AutoConfig.for_model("qwen2", **sizes, num_key_value_heads=32, vocab_size=151_936, tie_word_embeddings=False)
    )


def estimated_gib(peer: Peer) -> float:
    """GiB that a run takes by the estimate, with CUDA's context, and its logits in the place of TRL's fused head."""
    model = qwen_7b() if peer.model == "Qwen-7B" else build_published(peer.model)
    parameters, places = count_parameters(model), parts_of(model)
    if peer.rank:
        model = get_peft_model(model, LoraConfig(r=peer.rank, target_modules=_LINEAR))
    elif not peer.trains_vision:
        freeze_vision_encoder(model)
    if peer.rank and peer.trains_vision:
        for name, weight in model.get_base_model().named_parameters():
            weight.requires_grad_(weight.requires_grad or places.get(name, "language") != "language")
    in_float32 = bool(peer.rank) and not peer.trains_vision
    precision = Precision(torch.bfloat16, torch.float32 if peer.rank else torch.bfloat16, torch.bfloat16)
    work = Workload(
        peer.rows,
        peer.tokens,
        peer.image,
        answers=1,
        answer=0,
        passes=2,
        checkpointing=peer.checkpointing,
        masked=False,
    )
    passes, words = pass_bytes(model, work, precision), model.config.get_text_config().vocab_size
    passes = passes._replace(at_head=passes.at_head + _LOGITS * peer.rows * peer.tokens * words)
    need = training_memory(
        2 * parameters * peer.copies,
        count_parameters(model, trained=True),
        passes,
        trained_bytes=4 if in_float32 else 2,
        optimizer_bytes=12 if peer.zero_stage else 8 if in_float32 else 4,
        step_bytes=4 if peer.zero_stage else 0,
        zero_stage=peer.zero_stage,
        processes=peer.gpus,
    )
    return (need.total + CONTEXT_BYTES) / GIB


def published_memory(*, limit: float = 0.15) -> Result:
    """Published figures of memory over the estimate of `mmreason doctor`, for the runs of peers.

    Their losses keep the logits of all tokens; 14 bytes of each are added. The figures are what a driver or an
    allocator held, mostly rounded, with what the allocator keeps in vain.

    Args:
        limit: largest share by which a figure may differ to be "within".
    """
    numbers = {}
    print("| run | tokens | published, GiB | estimated | published / estimated | within |\n|---|---|---|---|---|---|")
    for peer in PEERS:
        gib = estimated_gib(peer)
        tokens = f"{peer.rows} × {peer.tokens:,}{' (assumed)' if peer.is_assumed else ''}"
        within = "yes" if abs(peer.gib / gib - 1) <= limit else "**no**"
        print(
            f"| [{peer.run}]({peer.source}) | {tokens} | {peer.gib:g} | {gib:.1f} | {peer.gib / gib:.2f} | {within} |"
        )
        numbers[peer.run] = {"published": peer.gib, "estimated": gib}
    return Result(numbers)
