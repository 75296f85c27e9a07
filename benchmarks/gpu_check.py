"""One check of a GPU within nine minutes: does it train, how fast, in how much memory (`make gpu-check`)."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import AutoConfig, TrainerState
from trl import GRPOConfig, ModelConfig

from trl_mmreason import AdaPOConfig
from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.adapo.recipe import two_answers
from trl_mmreason.cli.doctor import machine
from trl_mmreason.cli.doctor.memory import GIB, build_without_weights, estimate_memory
from trl_mmreason.cli.main import main as mmreason
from trl_mmreason.data.folders import atomic_path
from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.grading.reward import accuracy_reward
from trl_mmreason.miniature.models import build_model
from trl_mmreason.scripts.cold_start import cold_start
from trl_mmreason.training.model_card import EVALUATIONS
from trl_mmreason.training.prompt_length import prompt_length
from trl_mmreason.training.timing import device_clock

from . import training
from .common import GROUP, ROOT, Result, device_peak, forget_device_peak, make_questions, report, run_apart, take_turns
from .models import patches
from .training import ALL_ROWS, ReplayAdaPO, ReplayGRPO
from .two_turns import two_turns

VISION_3B: dict = {"hidden_size": 1280, "intermediate_size": 3420, "depth": 32, "num_heads": 16}
VISION_3B |= {"out_hidden_size": 2048, "fullatt_block_indexes": [7, 15, 23, 31], "initializer_range": 0.02}
TEXT_3B: dict = {"vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36}
TEXT_3B |= {"num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": True}
TEXT_3B |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}}
TEXT_3B |= {"initializer_range": 0.02}
"""Settings of Qwen2.5-VL-3B, which has 3.75 B parameters."""


class Scale(NamedTuple):
    """What the parts run on."""

    device: str
    dtype: str  # of the weights
    vision: dict[str, Any]
    text: dict[str, Any]
    side: int  # of an image, in pixels
    questions: int  # of a rollout, with 8 trajectories each
    tokens: int  # of a trajectory
    rounds: int
    quickstart: tuple[int, int, int]  # steps, trajectories per step, questions of an evaluation


GPU = Scale("cuda", "bfloat16", VISION_3B, TEXT_3B, 448, 2, 64, 2, (10, 128, 64))
CPU = Scale("cpu", "float32", training.VISION, training.TEXT, 112, 1, 16, 1, (2, 16, 16))
BATCH = 4  # trajectories in a micro-batch

Measured = tuple[list[str], Result]
"""Lines of the table, and all numbers."""


def draw(scale: Scale, folder: Path) -> tuple[Path, Dataset, list[dict[str, Any]]]:
    """Model, questions with an image each, and a rollout's rows; the first part that asks for the model saves it."""
    path, questions = folder / "policy", make_questions(scale.questions, sides=[scale.side], most_images=1)
    if not path.exists():
        model: dict[str, Any] = {"vision": scale.vision, "text": scale.text, "dtype": scale.dtype}
        with atomic_path(path) as unfinished:
            training.save_proportional_policy(unfinished, scale.side, **model, device=scale.device)
    return path, questions, [row for row in questions for _ in range(GROUP)]


def sampling(scale: Scale, turns: int, **others: Any) -> dict[str, Any]:
    """Settings of a trainer that samples a trajectory of fixed length in so many turns."""
    tokens = scale.tokens // turns
    run: dict[str, Any] = {"max_completion_length": tokens, "generation_kwargs": {"min_new_tokens": tokens}}
    run |= {"gradient_checkpointing": True, "beta": 0.001, "model_init_kwargs": {"dtype": "auto"}}
    return training.settings(scale.questions * GROUP, BATCH, **run, **others)


# --------------------------------------------------------------------------------------------------------------- parts


def start(scale: Scale, folder: Path) -> Measured:
    """The supervised start of the quickstart's policy: in float32, and accelerate has one precision per process."""
    model, processor = build_model("qwen2_5_vl", "demo")
    lessons, begun = two_answers(EVALUATION_PROMPT), device_clock()
    cold_start(model.to(scale.device), processor, ["adding"], folder / "start", lessons=lessons, target_accuracy=0.1)
    seconds = device_clock() - begun
    return [f"a tenth of the answers right after {seconds:.1f} s"], Result({"seconds": seconds})


def quickstart(scale: Scale, folder: Path) -> Measured:
    """AdaPO's quickstart in bfloat16 for a few steps, evaluated before and after."""
    run, (steps, batch, questions) = folder / "quickstart", scale.quickstart
    options = {"model_name_or_path": folder / "start", "output_dir": run, "use_cpu": scale.device == "cpu"}
    options |= {"bf16": True, "max_steps": steps, "logging_steps": 1}
    options |= {"per_device_train_batch_size": batch, "eval_rows": questions}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    mmreason(["train", "adapo", "--config", "adapo/miniature.yaml", *arguments])
    *logged, whole = TrainerState.load_from_json(str(run / "trainer_state.json")).log_history
    right = [read_evaluation(run / EVALUATIONS / when).results.metrics["acc_t2"].value for when in ("before", "after")]
    seconds = whole["train_runtime"] / steps
    result = Result({"seconds_per_step": seconds, "acc_t2": right, "logged": logged})
    finite = all(math.isfinite(entry[name]) for entry in logged for name in ("loss", "grad_norm"))
    result.check(finite and len(logged) == steps, f"expected {steps} steps with finite losses and gradients")
    return [f"{steps} steps of {seconds:.2f} s; acc@t2 {right[0]:.1%} before, {right[1]:.1%} after"], result


def step(scale: Scale, folder: Path) -> Measured:
    """A step from sampling to gradients, without an optimizer, beside TRL's on as many answers and tokens."""
    policy, questions, rows = draw(scale, folder)
    grpo = GRPOConfig(str(folder), **sampling(scale, 1))
    one = AdaPOConfig(str(folder), **sampling(scale, 1, **ALL_ROWS, evaluation_prompt=None))
    two = AdaPOConfig(str(folder), **sampling(scale, 2, **ALL_ROWS))
    trainers: dict[str, ReplayGRPO] = {
        "TRL's GRPO": ReplayGRPO(str(policy), accuracy_reward, args=grpo, train_dataset=questions),
        "AdaPO, one turn": ReplayAdaPO(str(policy), args=one, train_dataset=questions),
        "AdaPO, two turns of half as many tokens": ReplayAdaPO(str(policy), args=two, train_dataset=questions),
    }
    for trainer in trainers.values():
        training.prepare(trainer)
    work = {name: partial(training.measure_batch, trainer, rows) for name, trainer in trainers.items()}
    seconds, measured = take_turns(work, scale.rounds, warm_up=0)
    lines, gib, trl = [], {}, next(iter(trainers))
    for name, trainer in trainers.items():
        weights = (weight for model in training.models_of(trainer) for weight in model.parameters())
        gib[name] = sum(weight.nbytes for weight in weights) / GIB + median(mib for _, mib in measured[name]) / 1024
        ratios = f"{report(seconds, name, trl):.2f} of TRL's time, {gib[name] / gib[trl]:.2f} of its memory"
        lines.append(f"{name}: {median(seconds[name]):.2f} s, {gib[name]:.2f} GiB; {ratios}")
    return lines, Result({"seconds": seconds, "gib": gib})


def shared_images(scale: Scale, folder: Path) -> Measured:
    """A rollout batch whose images are encoded once, over one in which every row's are; with LoRA."""
    work: dict[str, Any] = {"questions": scale.questions, "batch": BATCH, "sides": (scale.side,)}
    result = training.images(rounds=scale.rounds, ways=("lora",), policy=draw(scale, folder)[0], **work)
    seconds, scoring = (report(result.numbers["lora"][part], "once", "every row") for part in ("seconds", "scoring"))
    return [f"encoded once: {seconds:.2f} of the time without, {scoring:.2f} of scoring alone (LoRA)"], result


def patch_embedding(scale: Scale, folder: Path) -> Measured:
    """The convolution that embeds patches, over the matrix product here; in an encoder of two layers."""
    result = patches(rounds=scale.rounds, dtype=scale.dtype, side=scale.side // 14, layers=2)
    ratios = {name: report(seconds, "convolution", "product") for name, seconds in result.numbers.items()}
    return [f"{name}: convolution / matrix product {ratio:.2f}" for name, ratio in ratios.items()], result


def estimate(scale: Scale, folder: Path) -> Measured:
    """Peak memory of two steps of AdaPO with all weights and AdamW, over the estimate of `mmreason doctor`."""
    policy, questions, _ = draw(scale, folder)
    args = AdaPOConfig(str(folder), **sampling(scale, 2, **ALL_ROWS, optim="adamw_torch_fused", max_steps=2))
    held = forget_device_peak()
    trainer = ReplayAdaPO(str(policy), args=args, train_dataset=questions)
    training.prepare(trainer)
    measured = (device_peak() - held) / 1024
    prompt = max(prompt_length(row, trainer.processing_class) for row in questions)
    known = {**vars(ModelConfig(dtype=scale.dtype)), **vars(args), "max_prompt_length": prompt}
    known["max_pixels"] = scale.side**2
    model = build_without_weights(AutoConfig.from_pretrained(policy))
    need = estimate_memory(model, known, processes=1).needs["one GPU"]
    parts, total = {part: size / GIB for part, size in need._asdict().items()}, need.total / GIB
    shown = ", ".join(f"{part} {gib:.2f}" for part, gib in parts.items())
    lines = [f"{measured:.2f} GiB measured / {total:.2f} estimated: {measured / total:.2f}", f"estimated: {shown}"]
    return lines, Result({"measured_gib": measured, "estimated_gib": parts})


def attention(scale: Scale, folder: Path, kernel: str = "flash_attention_2") -> Measured:
    """A rollout batch with a kernel of attention, over one with sdpa; with both tokens have to be as likely."""
    kernels, (policy, questions, rows) = (kernel, "sdpa"), draw(scale, folder)
    make = partial(training.make_trainer, "lora", policy, questions, BATCH, True)
    trainers = {each: make(attn_implementation=each) for each in kernels}
    work = {name: partial(training.train_on, trainer, rows) for name, trainer in trainers.items()}
    seconds, _ = take_turns(work, scale.rounds)
    entropy = {name: mean(trainer._metrics["train"]["entropy"]) for name, trainer in trainers.items()}
    result = Result({"seconds": seconds, "entropy": entropy})
    alike = math.isclose(*entropy.values(), rel_tol=0.02)
    result.check(alike, f"the mean entropies of tokens are {entropy}, expected equal ones within 2 %")
    return [f"{kernel}: {report(seconds, *kernels):.2f} of the time with sdpa (LoRA)"], result


def colocated(scale: Scale, folder: Path) -> Measured:
    """Rollouts of the miniature in a colocated vLLM."""
    result = two_turns(rounds=scale.rounds, questions=scale.questions, limit=math.inf, barrier_limit=0.0)
    ratio = report(result.numbers["seconds"], "without a barrier", "one turn")
    return [f"two turns of 128 tokens: {ratio:.2f} of the time of one of 256"], result


# --------------------------------------------------------------------------------------------------------------- check


class Part(NamedTuple):
    """A part of the check; `package` is what it needs, with a GPU, beyond the packages of the others."""

    name: str
    seconds: float  # time bound, imports included
    work: Callable[[Scale, Path], Measured]
    package: str | None = None


PARTS = (
    Part("supervised start", 60, start),
    Part("quickstart in bf16", 60, quickstart),
    Part("step beside TRL's", 140, step),
    Part("shared images", 70, shared_images),
    Part("patch embedding", 40, patch_embedding),
    Part("memory estimate", 60, estimate),
    Part("flash attention", 40, attention, "flash_attn"),
    Part("colocated vLLM", 60, colocated, "vllm"),
)
"""Their time bounds sum to less than nine minutes."""


class Row(NamedTuple):
    """What came of a part."""

    part: str
    status: str  # ok, FAIL or not run
    seconds: float
    lines: list[str]  # of the table; the last one of a part that failed is its error
    numbers: dict[str, Any]


def lacking(part: Part) -> str:
    """What the machine lacks for a part; "" if nothing."""
    if part.package is None:
        return ""
    missing = {"there is no GPU": not torch.cuda.is_available()}
    missing |= {f"{part.package} is not installed": find_spec(part.package) is None}
    return " and ".join(text for text, is_missing in missing.items() if is_missing)


def quietly(work: Callable[[Scale, Path], Measured], scale: Scale, folder: Path) -> Measured:
    """Do the work, and leave the standard output to the table."""
    with redirect_stdout(sys.stderr):
        return work(scale, folder)


def run_part(part: Part, seconds: float, scale: Scale, folder: Path) -> Row:
    """Run a part in a process of its own; its error becomes its row, with the traceback on stderr."""
    if missing := lacking(part):
        return Row(part.name, "not run", 0.0, [missing], {})
    # A forked process cannot use a GPU that an import has looked at; without one it need not import all again.
    context = get_context("forkserver" if scale.device == "cpu" else "spawn")
    context.set_forkserver_preload([__name__])
    begun = time.monotonic()
    try:
        lines, result = run_apart(quietly, part.work, scale, folder, context=context, seconds=seconds)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a part raises costs that part only
        traceback.print_exception(error)
        lines, result = [], Result(failures=[f"{type(error).__name__}: {' '.join(str(error).split())}"])
    status = "FAIL" if result.failures else "ok"
    return Row(part.name, status, time.monotonic() - begun, [*lines, *result.failures], result.numbers)


def run_parts(scale: Scale, folder: Path) -> list[Row]:
    """Run the parts; each may also use what the ones before it, or ones that are not run, leave of their time."""
    deadline, rows = time.monotonic() + sum(part.seconds for part in PARTS), []
    for number, part in enumerate(PARTS):
        later = sum(other.seconds for other in PARTS[number + 1 :] if not lacking(other))
        rows.append(run_part(part, deadline - later - time.monotonic(), scale, folder))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as plain text; further lines of a part stand below its first one."""
    lines = [f"{'part':<20}{'status':<9}{'seconds':>7}  result"]
    for row in rows:
        begin = f"{row.part:<20}{row.status:<9}{row.seconds:>7.0f}"
        lines += [f"{before:<36}  {line}" for before, line in zip_longest([begin], row.lines, fillvalue="")]
    return "\n".join(lines)


def gpu_check(*, output: Path = ROOT / "runs" / "gpu-check.json") -> Result:
    """Whether a GPU trains, how fast and in how much memory, in at most nine minutes.

    Its parts have a process and a time bound each: the quickstart in bf16; a step of a Qwen2.5-VL of 3.75 B random
    weights beside TRL's GRPO; images encoded once; the patch embedding; peak memory beside the estimate of `mmreason
    doctor`; flash attention and a colocated vLLM, where they are installed. Without a GPU all is small. A part that
    fails costs the others nothing, and makes the exit code 1.

    Args:
        output: file for the table's rows and all numbers, as JSON.
    """
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # TRL refuses several GPUs in one process
    scale = GPU if torch.cuda.is_available() else CPU
    device = torch.cuda.get_device_name() if scale is GPU else "the CPU at small size, as there is no GPU"
    installed = {name: machine.installed_version(name) for name in machine.PACKAGES}
    with TemporaryDirectory() as folder:
        rows = run_parts(scale, Path(folder))
    print(
        f"gpu-check on {device}; torch {torch.__version__}, transformers {installed['transformers']}\n\n{table(rows)}"
    )
    parts = {row.part: row._asdict() for row in rows}
    numbers = {"device": device, "versions": installed, "scale": scale._asdict(), "parts": parts}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(numbers, indent=1, default=str), encoding="utf-8")
    return Result(numbers, [f"{row.part}: {row.lines[-1]}" for row in rows if row.status == "FAIL"])
