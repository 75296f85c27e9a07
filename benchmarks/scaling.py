"""How time and memory grow: of a training step with what it trains on, and of an answer store with its units."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as ready
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import datasets
import numpy as np
import torch
from datasets import Dataset, load_from_disk
from matplotlib.figure import Figure
from transformers import PrinterCallback, TrainerCallback

from trl_mmreason import AdaPOConfig
from trl_mmreason.evaluation.curves import style_axes
from trl_mmreason.generation.engine import Failure, Request, Sample, SamplingParams
from trl_mmreason.generation.protocols import Direct
from trl_mmreason.grading import Grader, Verdict
from trl_mmreason.jobs.answering import Answers, answer_questions
from trl_mmreason.jobs.merge_stores import merge_stores
from trl_mmreason.jobs.run import run
from trl_mmreason.jobs.store import Store
from trl_mmreason.jobs.verdicts import verdict_stage

from .common import GROUP, SIDES, Result, forget_peak, make_questions, memory, run_apart, save_policy, take_turns
from .training import ALL_ROWS, ReplayAdaPO, settings

Axis = Literal["group", "length", "images", "processes", "store"]
AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "group": ("answers a question", (2, 4, 8, 16, 32, 64)),
    "length": ("tokens of each turn", (32, 64, 128, 256, 512, 1024)),
    "images": ("images a row", (1, 2, 4, 8)),
    "processes": ("processes", (1, 2, 4)),
    "store": ("units in the store", (10_000, 100_000, 1_000_000, 10_000_000)),
}
MICRO_BATCH = 2
SIDE = max(SIDES)  # of an image, in pixels: 36 tokens
TOKENS = 64  # of each turn, where the axis is another
FITTED = 3  # sizes, the largest, that a growth is fitted over

Measured = dict[str, dict[str, dict[str, list[float]]]]
"""Part of the work → size → "seconds" and "mebibytes" of each round, where they are known."""

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["benchmarks.scaling"])


# ------------------------------------------------------------------------------------------------------ a training step


class Load(NamedTuple):
    """What a step trains on."""

    group: int = 4
    length: int = TOKENS
    images: int = 1
    processes: int = 1


class TakesTurns(TrainerCallback):
    """Lets a step begin when it is told to, and tells what the step took."""

    def __init__(self, turns: Connection) -> None:
        self.turns = turns
        self.held: float | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.turns.recv()
        if self.held is None:
            self.held = forget_peak()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **_: Any) -> None:
        if self.held is not None and "loss" in logs:
            parts = {name.removeprefix("time/"): logs[name] for name in logs if name.startswith("time/")}
            parts["update"] *= args.gradient_accumulation_steps  # logged as the mean of a micro-batch
            self.turns.send({"parts": parts, "mebibytes": memory("VmHWM") - self.held})


def train(load: Load, model: str, folder: str, steps: int, group: Mapping[str, str], turns: Connection) -> None:
    """Train, in a process of its own, a step at each turn."""
    os.environ.update(group)
    torch.set_num_threads(1)
    asked = make_questions(load.processes, sides=[SIDE], fewest_images=load.images, most_images=load.images)
    run = settings(
        load.group,
        MICRO_BATCH,
        **ALL_ROWS,
        num_generations=load.group,
        max_completion_length=load.length,
        generation_kwargs={"min_new_tokens": load.length},
        gradient_checkpointing=False,
        max_steps=steps,
        logging_steps=1,
        optim="adamw_torch_fused",
        bf16=False,
        use_cpu=True,
    )
    args = AdaPOConfig(f"{folder}/{'-'.join(map(str, load))}", **run)  # two trainings in one folder are refused
    trainer = ReplayAdaPO(model, args=args, train_dataset=asked)
    if trainer.accelerator.num_processes != load.processes:
        raise RuntimeError(f"{trainer.accelerator.num_processes} processes train together, expected {load.processes}.")
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(TakesTurns(turns))
    trainer.train()


def begin(load: Load, model: str, folder: str, steps: int, opened: ExitStack) -> list[Connection]:
    """Start the processes of a load; they wait for their turns."""
    group = {}
    if load.processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        group |= {"WORLD_SIZE": str(load.processes), "LOCAL_WORLD_SIZE": str(load.processes)}
    ends = []
    for rank in range(load.processes):
        place = group and {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        here, there = _FORKS.Pipe()
        process = _FORKS.Process(target=train, args=(load, model, folder, steps, place, there), daemon=True)
        process.start()
        there.close()  # so that the end of the process is seen
        opened.push(partial(end_process, process))
        ends.append(here)
    return ends


def end_process(process: Any, failure: type[BaseException] | None, *_: object) -> None:
    """Wait for a process; after a failure of another it would wait for its turn for ever."""
    if failure is not None:
        process.kill()  # SIGTERM would let it finish its step
    process.join()


def step(ends: Sequence[Connection]) -> dict[str, Any]:
    """Let all processes of a load take a step; gives what the first one's took, and the most memory of any.

    Raises:
        EOFError, ConnectionError: one of them has died, whatever the others wait for; it has printed why.
    """
    for end in ends:
        end.send("go")
    told: dict[Any, dict[str, Any]] = {}
    while len(told) < len(ends):
        waiting: list[Any] = [end for end in ends if end not in told]
        arrived: list[Any] = ready(waiting)
        told |= {end: end.recv() for end in arrived}
    return {**told[ends[0]], "mebibytes": max(each["mebibytes"] for each in told.values())}


def measure_steps(axis: str, sizes: Sequence[int], rounds: int, policy: str) -> Measured:
    """Let the sizes take turns, and gather the seconds of every part."""
    warm_up = 1
    with TemporaryDirectory() as folder, ExitStack() as opened:
        save_policy(Path(folder) / "model", policy)
        contestants = {}
        for size in sizes:
            ends = begin(Load(**{axis: size}), f"{folder}/model", folder, warm_up + rounds, opened)
            contestants[str(size)] = partial(step, ends)
        seconds, told = take_turns(contestants, rounds, warm_up=warm_up)
    measured: Measured = {part: {} for part in ["step", *told[str(sizes[0])][0]["parts"]]}
    for name, steps in told.items():
        measured["step"][name] = {"seconds": seconds[name], "mebibytes": [one["mebibytes"] for one in steps]}
        for part in steps[0]["parts"]:
            measured[part][name] = {"seconds": [one["parts"][part] for one in steps]}
    return measured


# ------------------------------------------------------------------------------------------------------ an answer store


class AtOnce:
    """An engine that nobody has to ask, because all answers are kept."""

    settings = {"kind": "at once"}

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        raise RuntimeError(f"Asked for {len(requests)} answers, expected that all are in the store.")


class AllRight(Grader):
    """Takes no time to grade."""

    def grade_batch(self, items: Any) -> list[Verdict]:
        return [Verdict(True, "7", "") for _ in items]


STAGE, BATCH = "answers", 256
_PAYLOAD = {"turns": [{"text": "The two digits are 3 and 4, and so their sum is \\boxed{7}."}]}
_SETTINGS = {
    "engine": AtOnce.settings,
    "protocol": Direct().settings,
    "sampling_params": asdict(SamplingParams()),
    "system_prompt": None,
    "seed": 0,
}


def _write(store: Store, rows: Dataset, **place: Any) -> None:
    run(
        store,
        STAGE,
        rows,
        lambda units: [_PAYLOAD] * len(units),
        settings=_SETTINGS,
        n=GROUP,
        batch_size=BATCH,
        **place,
    )


def _grade(store: Store, rows: Dataset) -> None:
    answer_questions(rows, AtOnce(), store, Direct(), stage=STAGE, n=GROUP, grader=AllRight(), batch_size=BATCH)


def _read_graded(store: Store, rows: Dataset) -> None:
    answers = Answers(rows, GROUP, 1, store, STAGE, verdict_stage(STAGE, AllRight()))
    _expect(sum(not isinstance(sample, Failure) for samples in answers for sample in samples), rows)


def _write_halves(store: Store, rows: Dataset) -> None:
    for rank in range(2):
        with Store(store.path.with_name(f"half-{rank}.sqlite")) as half:
            _write(half, rows, rank=rank, world_size=2)


def _merge(store: Store, rows: Dataset) -> None:
    halves = [store.path.with_name(f"half-{rank}.sqlite") for rank in range(2)]
    _expect(merge_stores(halves, store.path.with_name("merged.sqlite")).stages[STAGE].units, rows)


def _expect(units: int, rows: Dataset) -> None:
    if units != len(rows) * GROUP:
        raise RuntimeError(f"Read {units} units of {len(rows) * GROUP}.")


OPERATIONS: dict[str, Callable[[Store, Dataset], None]] = {
    "write": _write,
    "resume": _write,
    "read": lambda store, rows: _expect(sum(1 for _ in store.records(STAGE)), rows),
    "grade": _grade,
    "read graded": _read_graded,
    "write halves": _write_halves,
    "merge": _merge,
}


def make_rows(folder: Path, units: int) -> None:
    """Questions of eight samples each, on the disk."""
    datasets.disable_progress_bars()
    number = units // GROUP
    prompt = [{"role": "user", "content": "What is the sum of the two digits?"}]
    columns = {"id": [f"row-{k}" for k in range(number)], "prompt": [prompt] * number, "answer": ["7"] * number}
    Dataset.from_dict(columns).save_to_disk(folder / "rows")


def operate(name: str, folder: Path) -> dict[str, float]:
    """Do one operation; gives its seconds of the processor, and its memory."""
    datasets.disable_progress_bars()
    datasets.config.HF_DATASETS_CACHE = folder / "cache"
    rows = load_from_disk(folder / "rows")
    held, begun = forget_peak(), time.process_time()
    with Store(folder / "answers.sqlite") as store:
        OPERATIONS[name](store, rows)
    return {"seconds": time.process_time() - begun, "mebibytes": memory("VmHWM") - held}


def measure_store(sizes: Sequence[int], rounds: int) -> Measured:
    """Fill stores, do each operation on them, and delete them."""
    measured: Measured = {name: {str(size): {} for size in sizes} for name in OPERATIONS}
    for number in range(rounds):
        for size in sizes[:: -1 if number % 2 else 1]:
            with TemporaryDirectory() as name:
                folder = Path(name)
                run_apart(make_rows, folder, size, context=_FORKS)
                for operation in OPERATIONS:
                    told = run_apart(operate, operation, folder, context=_FORKS)
                    if operation == "write":
                        told["bytes"] = (folder / "answers.sqlite").stat().st_size
                    for kind, value in told.items():
                        measured[operation][str(size)].setdefault(kind, []).append(value)
                    print(f"{size} units, round {number + 1}, {operation}: {told}", file=sys.stderr, flush=True)
    return measured


# -------------------------------------------------------------------------------------------------------------- output


def medians(by_size: Mapping[str, Mapping[str, Sequence[float]]], kind: str) -> dict[int, float]:
    """Size → median over the rounds, of the sizes that have it."""
    return {int(size): median(rounds[kind]) for size, rounds in by_size.items() if rounds.get(kind)}


def merge(known: Measured, measured: Measured) -> Measured:
    """What is known of an axis with what was measured anew: sizes in order, a size measured again as it is now."""
    parts = {part: {**known.get(part, {}), **measured.get(part, {})} for part in {**known, **measured}}
    return {part: {size: by_size[size] for size in sorted(by_size, key=int)} for part, by_size in parts.items()}


def growth(points: Mapping[int, float]) -> float:
    """The power of the size that the largest sizes follow: 1 is linear, 0 is constant."""
    last = sorted(points)[-FITTED:]
    return float(np.polyfit(np.log(last), np.log([points[size] for size in last]), 1)[0])


def table(rows: Sequence[tuple[str, str]], known: Mapping[str, Measured]) -> str:
    """In Markdown, of axes and parts: what they take at the smallest and at the largest size, and how that grows."""
    lines = ["| | over | seconds | ratio | power | MiB | power |", "|---|---|---|---|---|---|---|"]
    for axis, part in rows:
        seconds, mebibytes = (medians(known[axis][part], kind) for kind in ("seconds", "mebibytes"))
        low, high = min(seconds), max(seconds)
        time = f"{seconds[low]:.3g} → {seconds[high]:.3g} | {seconds[high] / seconds[low]:.3g} | {growth(seconds):.2f}"
        held = f"{mebibytes[low]:.3g} → {mebibytes[high]:.3g} | {growth(mebibytes):.2f}" if mebibytes else "|"
        lines.append(f"| {part} | {AXES[axis][0]}, {low:,} → {high:,} | {time} | {held} |")
    return "\n".join(lines)


def draw(known: Mapping[str, Measured], path: Path) -> None:
    """Draw seconds above memory, an axis a column; dashed is what grows linearly."""
    figure = Figure(figsize=(3.7 * len(known), 6.4), layout="constrained")
    for column, (axis, measured) in zip(figure.subplots(2, len(known), squeeze=False).T, known.items(), strict=True):
        for axes, kind, title in zip(column, ("seconds", "mebibytes"), ("Time", "Memory"), strict=True):
            lines = {part: medians(by_size, kind) for part, by_size in measured.items()}
            lines = {part: points for part, points in lines.items() if points}
            for part, points in lines.items():
                axes.plot(list(points), list(points.values()), marker="o", markersize=3, label=part)
            top = max(lines.values(), key=lambda points: points[max(points)])
            first, last = min(top), max(top)
            axes.plot([first, last], [top[last] * first / last, top[last]], "--", color="#999999", linewidth=1)
            axes.set_xscale("log")
            axes.set_yscale("log")
            if last < 10_000:
                axes.set_xticks(list(top), [str(size) for size in top])
                axes.minorticks_off()
            axes.legend(fontsize=7, frameon=False)
            style_axes(axes, title, AXES[axis][0], "seconds" if kind == "seconds" else "MiB")
    figure.savefig(path, format="png", dpi=80)


def scaling(
    *,
    rounds: int = 5,
    axes: tuple[Axis, ...] = (),
    sizes: tuple[int, ...] | None = None,
    policy: str = "study",
    known: Path | None = None,
    images: Path | None = None,
) -> Result:
    """How time and memory grow: of a training step with what it trains on, and of an answer store with its units.

    A step is AdaPO's: both turns sampled to their full length, graded, scored by the reference, and trained on in
    micro-batches of two rows, optimizer included. Each size has processes of its own, and sizes take turns. A store's
    operations run one after the other, each in a fresh process; its answers are there at once and every verdict is
    "right", so that what remains is the work of keeping and reading them.

    Memory is the most that a process held, beyond what it held before its first step or its operation. It counts the
    pages of files that are mapped, which the system takes back when it needs them.

    Args:
        axes: what to measure; without it the known numbers are printed.
        sizes: of the axes, instead of theirs.
        policy: size of the miniature model.
        known: JSON file of numbers; sizes in it that are not measured again stay, perhaps from a busier machine.
        images: folder for the plots.
    """
    numbers = json.loads(known.read_text()) if known and known.exists() else {}
    for axis in axes:
        chosen = sizes or AXES[axis][1]
        measured = measure_store(chosen, rounds) if axis == "store" else measure_steps(axis, chosen, rounds, policy)
        numbers[axis] = merge(numbers.get(axis, {}), measured)
        if known:
            known.write_text(json.dumps(numbers, indent=1))
    steps = {axis: numbers[axis] for axis in AXES if axis in numbers and axis != "store"}
    store = {"store": numbers["store"]} if "store" in numbers else {}
    operations = [(axis, part) for axis in store for part in numbers[axis]]
    print(table([*((axis, "step") for axis in steps), *operations], numbers), end="\n\n")
    print(table([(axis, part) for axis in steps for part in numbers[axis] if part != "step"], numbers))
    for name, drawn in {"scaling_step": steps, "scaling_store": store}.items():
        if images and drawn:
            draw(drawn, images / f"{name}.png")
    return Result(numbers)
