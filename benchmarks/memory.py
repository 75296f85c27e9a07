"""The estimate of memory of `mmreason doctor`: beside measured peaks, and what fits which GPU."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import torch
from peft import LoraConfig
from transformers import AutoConfig, PrinterCallback
from trl import ModelConfig

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.cli.doctor.layer_bytes import LiveBytes
from trl_mmreason.cli.doctor.memory import (
    CONTEXT_BYTES,
    GIB,
    MARGIN,
    build_without_weights,
    count_parameters,
    estimate_memory,
    workload_of,
)
from trl_mmreason.cli.doctor.passes import cache_bytes
from trl_mmreason.cli.doctor.settings import MethodParser, read_settings
from trl_mmreason.compat.model_parts import freeze_vision_encoder
from trl_mmreason.compat.replaced import replaced
from trl_mmreason.generation import live_rows
from trl_mmreason.miniature.models import build_model
from trl_mmreason.training.prompt_length import prompt_length

from .common import GROUP, Result, make_questions
from .on_paper import BYTES, Machine, Policy, drawn_lengths, step_parts
from .training import ALL_ROWS, LANGUAGE, ReplayAdaPO, save_proportional_policy, settings

_QWEN2_VISION = {"hidden_size": 1280, "depth": 32, "num_heads": 16, "fullatt_block_indexes": [7, 15, 23, 31]}
QWEN3_TEXT = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
QWEN2_7B = {"hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28}
QWEN2_7B |= {"num_attention_heads": 28, "num_key_value_heads": 4}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool]] = {
    "Qwen2.5-VL-3B": (
        "qwen2_5_vl",
        {"vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36}
        | {"num_attention_heads": 16, "num_key_value_heads": 2},
        _QWEN2_VISION | {"intermediate_size": 3420, "out_hidden_size": 2048},
        True,
    ),
    "Qwen2.5-VL-7B": (
        "qwen2_5_vl",
        QWEN2_7B | {"vocab_size": 152_064},
        _QWEN2_VISION | {"intermediate_size": 3420, "out_hidden_size": 3584},
        False,
    ),
    "Qwen2.5-VL-32B": (
        "qwen2_5_vl",
        {"vocab_size": 152_064, "hidden_size": 5120, "intermediate_size": 27_648, "num_hidden_layers": 64}
        | {"num_attention_heads": 40, "num_key_value_heads": 8},
        _QWEN2_VISION | {"intermediate_size": 3456, "out_hidden_size": 5120},
        False,
    ),
    "Qwen3-VL-4B": (
        "qwen3_vl",
        QWEN3_TEXT | {"hidden_size": 2560, "intermediate_size": 9728},
        {"hidden_size": 1024, "intermediate_size": 4096, "depth": 24, "out_hidden_size": 2560}
        | {"deepstack_visual_indexes": [5, 11, 17]},
        True,
    ),
    "Qwen3-VL-8B": (
        "qwen3_vl",
        QWEN3_TEXT | {"hidden_size": 4096, "intermediate_size": 12_288},
        {"out_hidden_size": 4096},
        False,
    ),
    "InternVL3-8B": (
        "internvl",
        QWEN2_7B | {"model_type": "qwen2", "vocab_size": 151_674},
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
        False,
    ),
}
"""Model → its type in transformers, settings of the language model and of the encoder, whether embeddings are tied."""


def build_published(name: str) -> Any:
    """Build one of `MODELS` without weights; what its settings leave out are the defaults of its type."""
    kind, text, vision, tied = MODELS[name]
    text, sections = dict(text), {"mrope_section": [16, 24, 24] if kind == "qwen2_5_vl" else [24, 20, 20]}
    if kind != "internvl":
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, **sections}
    text["tie_word_embeddings"] = tied
    return build_without_weights(
        AutoConfig.for_model(kind, text_config=text, vision_config=dict(vision), tie_word_embeddings=tied)
    )


MIB = 2**20
SIDE = 112  # of an image, in pixels
Way = Literal["full", "lora", "frozen"]


class Case(NamedTuple):
    """A small run: family, what is trained, whether activations are computed again, and answers of a trajectory."""

    family: str
    way: Way
    checkpointing: bool
    answers: int = 1

    def __str__(self) -> str:
        way = {"full": "all weights", "lora": "LoRA", "frozen": "frozen vision"}[self.way]
        turns = "" if self.answers == 1 else ", two answers"
        return f"{self.family}, {way}{', checkpointing' if self.checkpointing else ''}{turns}"


CASES = (
    Case("qwen2_5_vl", "full", False),
    Case("qwen2_5_vl", "full", True),
    Case("qwen2_5_vl", "lora", False, 2),
    Case("qwen2_5_vl", "lora", True),
    Case("qwen2_5_vl", "frozen", False),
    Case("internvl", "full", False),
    Case("internvl", "lora", True, 2),
    Case("internvl", "frozen", True),
)


def save_case(family: str, folder: Path) -> None:
    """Save the policy of a family, whose images have `SIDE` pixels."""
    if family == "qwen2_5_vl":
        save_proportional_policy(folder, SIDE)
        return
    model, processor = build_model(family, "study")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def token_sum(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward by which the answers of a policy that knows nothing differ."""
    return [float(sum(ids) % 7) for ids in completion_ids]


class WatchedAdaPO(ReplayAdaPO):
    """Samples answers as long as they may be, and measures the peak of sampling.

    Attributes:
        memory: what counts bytes.
        rollout_peak: most bytes while it sampled.
    """

    memory: LiveBytes
    rollout_peak = 0

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        before, self.memory.peak = self.memory.peak, self.memory.live
        generated = super()._generate_single_turn(*args, **kwargs)
        self.rollout_peak = max(self.rollout_peak, self.memory.peak)
        self.memory.peak = max(before, self.memory.peak)
        return generated


def measured_and_estimated(case: Case, policy: Path, tokens: int, batch: int) -> dict[str, tuple[float, float]]:
    """Peak bytes of two updates of AdaPO, and where answers have their full length of their rollouts, by the estimate.

    Args:
        case: what is run.
        policy: folder of the policy.
        tokens: tokens of an answer.
        batch: trajectories in a micro-batch.

    Returns:
        What was measured → bytes measured and estimated.
    """
    asked = make_questions(2, sides=[SIDE], most_images=1)
    run: dict[str, Any] = settings(2 * GROUP, batch, **ALL_ROWS, max_completion_length=tokens, max_steps=2)
    run |= {"gradient_checkpointing": case.checkpointing, "beta": 0.001, "learning_rate": 1e-6}
    run |= {"optim": "adamw_torch_fused", **({"evaluation_prompt": None} if case.answers == 1 else {})}
    lora = {"r": 16, "lora_alpha": 32, "target_modules": LANGUAGE}
    if case.answers == 2:  # answers that end by chance would hardly ever be twice as long as they may be
        run["generation_kwargs"] = {"min_new_tokens": tokens}
    gc.collect()
    trainer = (AdaPOTrainer if case.answers == 1 else WatchedAdaPO)(
        str(policy),
        args=AdaPOConfig(str(policy.parent / "run"), **run),
        train_dataset=asked,
        reward_funcs=token_sum,
        peft_config=LoraConfig(**lora) if case.way == "lora" else None,
    )
    if case.way == "frozen":
        freeze_vision_encoder(trainer.model)
    trainer.remove_callback(PrinterCallback)
    models = [model for model in (trainer.model, trainer.ref_model) if model is not None]
    with LiveBytes() as memory:
        for model in models:
            memory.hold([*model.parameters(), *model.buffers()])
        trainer.memory = memory
        trainer.train()
    peft: dict[str, Any] = {"use_peft": True, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.0}
    peft["lora_target_modules"] = LANGUAGE
    known = {**vars(ModelConfig(dtype="float32", **(peft if case.way == "lora" else {}))), **vars(trainer.args)}
    prompt = max(prompt_length(row, trainer.processing_class) for row in asked)
    asked_again = len(trainer._followup_ids) if case.answers == 2 else 0
    known |= {"max_prompt_length": prompt + asked_again, "max_pixels": SIDE**2}
    known |= {"freeze_vision_encoder": case.way == "frozen"}
    need = estimate_memory(build_without_weights(AutoConfig.from_pretrained(policy)), known, 1).needs["one GPU"]
    found = {str(case): (float(memory.peak), need.total)}
    if case.answers == 2:
        found[f"{case}: rollout"] = float(trainer.rollout_peak), need.resting + need.rollout
    return found


def memory(*, tokens: int = 64, batch: int = 4, a_pass: int | None = None, limit: float = 0.1) -> Result:
    """Peak memory of two updates of AdaPO over the estimate of `mmreason doctor`, on a CPU in float32.

    Counted are the bytes of all tensors that are alive: every operation of the run tells what it returns
    (`LiveBytes`), so that neither the allocator nor the libraries of the process are in the number. A run has two
    questions of eight trajectories, in micro-batches.

    Args:
        tokens: of an answer.
        batch: trajectories in a micro-batch.
        a_pass: tokens of prompts that a rollout reads at a time; by default as in training, here all.
        limit: largest share by which measured and estimated bytes may differ.
    """
    torch.manual_seed(0)
    read_so = replaced(live_rows, _TOKENS_A_PASS=a_pass or live_rows._TOKENS_A_PASS)
    result = Result()
    print("| run | measured, MiB | estimated, MiB | measured / estimated |\n|---|---|---|---|")
    with TemporaryDirectory() as folder, read_so:
        for case in CASES:
            policy = Path(folder) / case.family / "policy"
            if not policy.exists():
                save_case(case.family, policy)
            for name, (peak, estimate) in measured_and_estimated(case, policy, tokens, batch).items():
                ratio = peak / estimate
                print(f"| {name} | {peak / MIB:.1f} | {estimate / MIB:.1f} | {ratio:.3f} |", flush=True)
                result.numbers[name] = {"measured": peak, "estimated": estimate}
                result.check(abs(ratio - 1) <= limit, f"{name}: measured / estimated {ratio:.3f}.")
    return result


# ------------------------------------------------------------------------------------------------------- what fits

GPUS = {"24 GB": 23.6, "40 GB": 39.4, "48 GB": 44.4, "80 GB": 79.1, "141 GB": 139.8}
"""GPU → GiB that torch finds on it."""
STAGES = {"adapo": "training", "srpo": "training", "chain_of_step": "grpo", "sophia": "grpo"}
STAGES |= {"self_evolution": "evolution"}
"""Method → the stage of its `your_model.yaml` that samples."""
_QLORA = {"load_in_4bit": True, "use_bnb_nested_quant": True, "optim": "adamw_8bit"}
_ALL = {"use_peft": False, "gradient_accumulation_steps": 2}  # as many trajectories on eight GPUs as on one
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "LoRA": ({}, "one GPU"),
    "QLoRA": (_QLORA, "one GPU"),
    "all weights, ZeRO-3 on 8": (_ALL, "ZeRO-3 or FSDP2 on 8 GPUs"),
}
"""Way to train → what it changes in a recipe, and the plan of the estimate that it is."""


def fitting(gib: float) -> str:
    """GiB, and the smallest of `GPUS` that has them, and 15 % more, beside CUDA's context."""
    least = next((name for name, size in GPUS.items() if MARGIN * gib + CONTEXT_BYTES / GIB <= size), "none")
    return f"{gib:.0f} → {least}"


def paper_seconds(model: Any, settings: Mapping[str, Any], gpus: int) -> float:
    """Seconds of a step on H100 by `on_paper`, with vLLM; answers have a quarter of their limit in the mean."""
    work, machine = workload_of(model, settings), Machine()
    policy = Policy(count_parameters(model), len(list(model.parameters())), cache_bytes(model, BYTES))
    bound = work.answers * work.answer
    lengths = drawn_lengths(work.sampled * gpus, bound / 4, 1.0, bound)
    return sum(step_parts(lengths, gpus, work.prompt, policy, machine).values())


def needs_of(model: str, way: str) -> tuple[dict[str, tuple[float, float]], float]:
    """GiB of each method, with answers of its own and with a vLLM server's, and seconds of AdaPO's step on paper."""
    (changes, plan), gib = WAYS[way], {}
    for method, stage in STAGES.items():
        recipe = read_settings(f"{method}/your_model.yaml", MethodParser(method).configs)[1][stage] | changes
        need = estimate_memory(build_published(model), recipe, 8).needs[plan]
        gib[method] = need.total / GIB, need._replace(rollout=0.0).total / GIB
        if method == "adapo":
            seconds = paper_seconds(build_published(model), recipe, 8 if changes is _ALL else 1)
    return gib, seconds


def tables() -> tuple[str, dict[str, Any]]:
    """Tables of `your_model.yaml` of each method, in Markdown, and their numbers."""
    head = f"| model, way to train | {' | '.join(f'`{method}`' for method in STAGES)} |"
    line = f"|---|{'---|' * len(STAGES)}"
    own, served, numbers = [head, line], [f"{head} AdaPO, s per step |", f"{line}---|"], {}
    for name in (f"{model}, {way}" for model in MODELS for way in WAYS):
        gib, seconds = needs_of(*name.split(", ", 1))
        numbers[name] = gib | {"seconds": seconds}
        first, second = (" | ".join(fitting(both[place]) for both in gib.values()) for place in (0, 1))
        own.append(f"| {name} | {first} |")
        served.append(f"| {name} | {second} | {seconds:.0f} |")
    return _TEXT.format("\n".join(own), "\n".join(served)), numbers


def what_fits(*, page: Path | None = None) -> Result:
    """What the methods' recipes for your own model take of a GPU, by model and way to train: by `mmreason doctor`.

    Args:
        page: Markdown file whose tables are replaced, between `<!-- tables -->` and `<!-- end -->`.
    """
    text, numbers = tables()
    print(text)
    if page is not None:
        before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
        page.write_text(f"{before}{_BEGIN}\n\n{text}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")
    return Result(numbers)


_TEXT = """### The policy samples its answers itself

{}

### A vLLM server samples them, on GPUs of its own

{}"""
_BEGIN, _END = "<!-- tables -->", "<!-- end -->"
