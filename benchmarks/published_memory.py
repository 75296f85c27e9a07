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
    weight_bytes,
)
from trl_mmreason.cli.doctor.passes import Workload, pass_bytes
from trl_mmreason.compat.model_parts import freeze_vision_encoder, parts_of

from .common import Result
from .memory import MODELS, QWEN2_7B, QWEN3_TEXT, build_published

_SWIFT = "https://github.com/modelscope/ms-swift/blob/"
_QWEN = "https://github.com/QwenLM/Qwen#profiling-of-memory-and-speed"
_LINEAR = r".*(language_model.*|model\.layers\..*)\.(q|k|v|o|gate|up|down)_proj"
_LOGITS = 14
"""Bytes of each logit that a loss without a fused head takes: in bfloat16, in float32, its log-probability, and the
gradient of that."""
_DROPOUT = 0.05
"""Of all adapters here: each source says so, or it is the default of what it runs."""
_COCO = 391
"""Tokens of an image of 640 × 480 pixels, which most of COCO's have."""


class Peer(NamedTuple):
    """A published figure and its run.

    Attributes:
        run: what was run.
        source: where the figure is.
        gib: the figure.
        model: one of `MODELS` or of `LANGUAGE_MODELS`.
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
        targets: layers of LoRA, as a regular expression.
        adapter: dtype of its weights.
        computing: that of autocast; `None` without.
        in_4bit: whether the frozen weights are loaded in four bits.
        masked: whether attention is given a mask.
        logits: bytes of each logit that the loss takes; 0 where a kernel computes some at a time.
        answer: tokens of a row that are sampled by the policy itself, in a rollout of 32 rows; 0 without one.
        held: whether the figure is what a driver or an allocator held; else of tensors alone.
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
    targets: str = _LINEAR
    adapter: torch.dtype = torch.float32
    computing: torch.dtype | None = torch.bfloat16
    in_4bit: bool = False
    masked: bool = False
    logits: int = _LOGITS
    answer: int = 0
    held: bool = True


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


_COURSE = "https://github.com/yiqiao-yin/deepspeed-course/blob/6b7a4cc975c8d4379d1ad863550cfafb76c9a98d/"
_PROBES = "/MyIA.AI.Notebooks/GenAI/PostTraining/_measurements/vram_probe_results_2026-"
_PROBE = {
    (8, 96): f"b9fc2d3c1ab77824b289a2f5859a3d17d55d0d5c{_PROBES}10-06_8b_3080ti16.jsonl",
    (8, 160): f"b9fc2d3c1ab77824b289a2f5859a3d17d55d0d5c{_PROBES}10-06_8b_3080ti16.jsonl",
    (8, 224): f"4066ba32bd03208015354b683e5da636e7e90a91{_PROBES}09-22_envelope8b.jsonl",
    (8, 288): f"b9fc2d3c1ab77824b289a2f5859a3d17d55d0d5c{_PROBES}10-06_8b_3080ti16.jsonl",
    (4, 96): f"ce5a711eedefb2455d8e871aa540f695442df862{_PROBES}09-11_4b.jsonl",
}
_LITGPT = (
    "https://github.com/Lightning-AI/litgpt/blob/4839345a97a0a90bc5f2361664b04d665c9a0e89/tutorials/resource-tables.md"
)
_GB = 1e9 / GIB
_IN_BF16: dict[str, Any] = {"adapter": torch.bfloat16, "computing": None, "checkpointing": False, "held": False}

LATER = (
    *(
        Peer(
            f"Qwen3-VL-8B, LoRA, {tokens:,} tokens, no checkpointing",
            f"{_COURSE}04_video_text/06_qwen3vl/README.md",
            *(gb * _GB, "Qwen3-VL-8B", 1, tokens, image, 16),
            targets=r".*language_model.*\.(q|k|v|o)_proj",
            zero_stage=3,
            is_assumed=False,
            **_IN_BF16,
        )
        for tokens, image, gb in ((276, 256, 22.1), (540, 512, 25.3), (1068, 1024, 31.6), (1596, 1536, 37.9))
    ),
    *(
        Peer(
            f"TRL, Qwen3-{size}B, GRPO, QLoRA, answers of {answer}",
            f"https://github.com/jsboige/CoursIA/blob/{_PROBE[size, answer]}",
            *(gib, f"Qwen3-{size}B", 8, 11 + answer),
            rank=8,
            adapter=torch.bfloat16,
            in_4bit=True,
            masked=True,
            answer=answer,
            held=False,
        )
        for size, answer, gib in ((8, 96, 7.85), (8, 160, 9.155), (8, 224, 10.465), (8, 288, 11.773), (4, 96, 4.096))
    ),
    Peer(
        "torchtune, Llama 3.2 3B, all weights in bfloat16, no checkpointing",
        "https://github.com/pytorch/torchtune/blob/a9ea6d5bf023ebebca7a8ec7981099b03696c67a/README.md",
        *(60, "Llama-3.2-3B", 2, 4096),
        masked=True,
        is_assumed=False,
        **_IN_BF16,
    ),
    *(
        Peer(
            f"litgpt, Llama 2 7B, {'Q' * in_4bit}LoRA, {rows} row{'s' * (rows > 1)}, no checkpointing",
            _LITGPT,
            *(gb * _GB, "Llama-2-7B", rows, 1304),
            rank=8,
            targets=r".*\.(q|v)_proj",
            in_4bit=in_4bit,
            logits=0,
            is_assumed=False,
            **_IN_BF16,
        )
        for rows, in_4bit, gb in ((1, False, 21.30), (1, True, 14.14), (2, False, 29.07))
    ),
    Peer(
        "ms-swift, 7B, LoRA, packed, ZeRO-2 on 4",
        f"{_SWIFT}9300d89b572a4a4d7bd8ae0097c504b755946e36/examples/train/packing/qwen2_5_vl.sh",
        *(36, "Qwen2.5-VL-7B", 1, 8192, 6144, 8),
        gpus=4,
        zero_stage=2,
        is_assumed=False,
    ),
    Peer(
        "ms-swift, Qwen3-VL-4B, LoRA, packed, ZeRO-2 on 2",
        f"{_SWIFT}07b1d69e2fc46fdd56dd15d481cb1523c693f57e/examples/models/qwen3_vl/mixed.sh",
        *(21, "Qwen3-VL-4B", 1, 4096, 1024, 8),
        gpus=2,
        zero_stage=2,
        is_assumed=False,
    ),
    Peer(
        "ms-swift, 7B, DPO, packed, ZeRO-3 on 4",
        f"{_SWIFT}5520ce1795472258f300734439eca42ff88f4155/examples/train/packing/dpo_vlm.sh",
        *(50, "Qwen2.5-VL-7B", 1, 8192, 4096),
        gpus=4,
        zero_stage=3,
        copies=2,
    ),
    Peer(
        "ms-swift, Qwen2.5-7B, LoRA, packed",
        f"{_SWIFT}24159dabf4617e821428b83ef972a4d5b977a000/examples/train/packing/llm.sh",
        *(22, "Qwen2.5-7B", 1, 2048),
        rank=8,
        is_assumed=False,
    ),
    Peer(
        "ms-swift, Qwen2.5-7B, all weights, Liger, packed, ZeRO-3 on 4",
        f"{_SWIFT}3bbc7fe43e6766561df1bff8295862e67a9c1cd8/examples/train/packing/liger_kernel.sh",
        *(42, "Qwen2.5-7B", 1, 16384),
        gpus=4,
        zero_stage=3,
        logits=0,
        is_assumed=False,
    ),
    Peer(
        "ms-swift, Qwen2.5-7B, DPO, packed, ZeRO-3 on 4",
        f"{_SWIFT}09b2151682771e6d94895c3954280459f2bd2bf6/examples/train/packing/dpo.sh",
        *(50, "Qwen2.5-7B", 1, 8192),
        gpus=4,
        zero_stage=3,
        copies=2,
    ),
)
"""Collected by someone who had not seen the estimate, and chosen before they were estimated."""

LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "Qwen-7B": {"model_type": "qwen2", "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 151_936},
    "Qwen2.5-7B": {"model_type": "qwen2", **QWEN2_7B, "vocab_size": 152_064},
    "Qwen3-8B": {"model_type": "qwen3", **QWEN3_TEXT, "hidden_size": 4096, "intermediate_size": 12_288}
    | {"vocab_size": 151_936},
    "Qwen3-4B": {"model_type": "qwen3", **QWEN3_TEXT, "hidden_size": 2560, "intermediate_size": 9728}
    | {"vocab_size": 151_936, "tie_word_embeddings": True},
    "Llama-3.2-3B": {"model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28}
    | {"num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256}
    | {"tie_word_embeddings": True},
    "Llama-2-7B": {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32_000},
}
"""Models that read text alone. Qwen-7B has three matrices in its MLP, as Qwen2 has, and no grouped keys."""


def build_peer(name: str) -> Any:
    """Build one of `MODELS` or of `LANGUAGE_MODELS` without weights."""
    if name not in LANGUAGE_MODELS:
        return build_published(name)
    settings = {"tie_word_embeddings": False, **LANGUAGE_MODELS[name]}
    return build_without_weights(AutoConfig.for_model(settings.pop("model_type"), **settings))


def estimated_gib(peer: Peer) -> float:
    """GiB that a run takes by the estimate, with CUDA's context if that was measured, and its own loss's logits."""
    model = build_peer(peer.model)
    places = parts_of(model)
    loading = {"dtype": "bfloat16", "load_in_4bit": peer.in_4bit, "load_in_8bit": False, "use_bnb_nested_quant": True}
    weights = weight_bytes(model, loading)
    if peer.rank:
        model = get_peft_model(model, LoraConfig(r=peer.rank, lora_dropout=_DROPOUT, target_modules=peer.targets))
    elif not peer.trains_vision and peer.model in MODELS:
        freeze_vision_encoder(model)
    if peer.rank and peer.trains_vision:
        for name, weight in model.get_base_model().named_parameters():
            weight.requires_grad_(weight.requires_grad or places.get(name, "language") != "language")
    trained = peer.adapter if peer.rank and not peer.trains_vision else torch.bfloat16
    precision = Precision(torch.bfloat16, peer.adapter if peer.rank else torch.bfloat16, peer.computing)
    work = Workload(
        peer.rows,
        peer.tokens - peer.answer,
        peer.image,
        answers=1,
        answer=peer.answer,
        passes=2,
        sampled=32 if peer.answer else 0,
        questions=4,
        samples=bool(peer.answer),
        checkpointing=peer.checkpointing,
        masked=peer.masked,
        quantised=peer.in_4bit,
    )
    passes, words = pass_bytes(model, work, precision), model.config.get_text_config().vocab_size
    scored = peer.rows * (peer.answer or peer.tokens)
    passes = passes._replace(at_head=passes.at_head + peer.logits * scored * words)
    need = training_memory(
        weights * peer.copies,
        count_parameters(model, trained=True),
        passes,
        trained_bytes=trained.itemsize,
        optimizer_bytes=12 if peer.zero_stage else 2 * trained.itemsize,
        step_bytes=4 if peer.zero_stage else 0,
        zero_stage=peer.zero_stage,
        processes=peer.gpus,
    )
    return (need.total + CONTEXT_BYTES * peer.held) / GIB


def published_memory(*, limit: float = 0.15) -> Result:
    """Published figures of memory over the estimate of `mmreason doctor`, for the runs of peers.

    Where a loss keeps the logits of all tokens, 14 bytes of each are added. Most figures are what a driver or an
    allocator held, rounded, with what the allocator keeps in vain; others are of tensors alone.

    Args:
        limit: largest share by which a figure may differ to be "within".
    """
    numbers = {}
    titles = ("run", "tokens", "of", "published, GiB", "estimated", "published / estimated", "within")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for peer in (*PEERS, *LATER):
        gib = estimated_gib(peer)
        tokens = f"{peer.rows} × {peer.tokens:,}{' (assumed)' if peer.is_assumed else ''}"
        within = "yes" if abs(peer.gib / gib - 1) <= limit else "**no**"
        of = "all held" if peer.held else "tensors"
        cells = (
            f"[{peer.run}]({peer.source})",
            tokens,
            of,
            f"{peer.gib:.3g}",
            f"{gib:.1f}",
            f"{peer.gib / gib:.2f}",
            within,
        )
        print(f"| {' | '.join(cells)} |")
        numbers[peer.run] = {"published": peer.gib, "estimated": gib}
    return Result(numbers)
