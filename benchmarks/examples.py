"""Whole runs of the examples: on seeds that nobody chose, in low precision, and what an SRPO policy's reflections do.

A run that was finished is read, not repeated.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from matplotlib.figure import Figure

from study.intervals import Rule
from trl_mmreason.evaluation.files import headline, read_evaluation
from trl_mmreason.evaluation.metrics import Estimate, metric_of
from trl_mmreason.evaluation.training_run import read_state
from trl_mmreason.generation import Failure, Request, SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.miniature.solutions import remark
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.srpo.response import parse_reflection_response
from trl_mmreason.training.model_card import EVALUATIONS

from .common import ROOT, Result

STAGED = {
    "chain_of_step": ("SFT", "GRPO"),
    "self_evolution": ("before", "self-evolution"),
    "sophia": ("before", "SOPHIA"),
}
"""Examples of several stages: the evaluations that stand for before and after."""

Estimates = dict[str, Estimate]
"""Metric and policy, such as "acc_t2 after" → value and interval."""


WITH_VLLM = """
import runpy, sys
from dataclasses import replace
from trl_mmreason.miniature.models import SIZES
sys.path[:0] = ["tests/engines", "examples"]
from vllm_cpu import let_cpus_take_vllm
if __name__ == "__main__":
    let_cpus_take_vllm()
    SIZES["demo"] = replace(SIZES["demo"], hidden=128)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A program that runs another with a vLLM that takes CPUs, and a miniature whose heads have 32 numbers, as it needs."""


def run_example(
    method: str,
    seed: int,
    folder: Path,
    options: Sequence[str] = (),
    *,
    launcher: Sequence[str] = (),
    config: str = "miniature",
) -> Estimates:
    """Run an example with a configuration of its own; gives the accuracies that it measured, in their order."""
    evaluations = folder / ("evaluation" if method in STAGED else EVALUATIONS)
    if not (evaluations / "table.txt").exists():
        folder.mkdir(parents=True, exist_ok=True)
        recipe, section = ROOT / "configs" / method / f"{config}.yaml", "common." if method in STAGED else ""
        command = [sys.executable, *launcher, str(ROOT / "examples" / f"{method}.py"), "--config", str(recipe)]
        command += [f"--{section}use_cpu", "true", f"--{section}seed", str(seed), "--output_dir", str(folder), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (folder / "output.txt").open("w") as output:
            subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=output, stderr=output)
    measured = sorted(evaluations.glob("*/results.json"), key=lambda path: path.stat().st_mtime)
    metrics = {path.parent.name: read_evaluation(path.parent).results.metrics for path in measured}
    shown = headline(next(iter(metrics.values())))
    return {f"{name} {policy}": found[name] for name in shown for policy, found in metrics.items()}


def logged(folder: Path, name: str) -> list[float]:
    """The values of a metric that a run logged."""
    return [each[name] for each in read_state(folder)["log_history"] if name in each]


def print_table(rows: Mapping[str, Estimates], verdicts: Mapping[str, bool], title: str) -> None:
    """Print runs, their accuracies with 95 % intervals and their verdicts, in Markdown."""
    names = list(next(iter(rows.values())))
    print(f"| run | {' | '.join(names)} | {title} |\n|{'---|' * (len(names) + 2)}")
    for run, found in rows.items():
        cells = [metric_of(name.split()[0]).with_interval(found[name]) for name in names]
        print(f"| {run} | {' | '.join(cells)} | {'yes' if verdicts[run] else 'no'} |")


def _apart(before: Estimate, after: Estimate) -> bool:
    """Whether the interval `after` lies wholly above `before`: more than their change's lying above 0."""
    return after.interval[0] > before.interval[1]


def seeds(
    *,
    method: Literal["adapo", "srpo", "chain_of_step", "self_evolution", "sophia"] = "adapo",
    seeds: tuple[int, ...] = tuple(range(70, 80)),
    workers: int = 2,
    output_dir: Path = ROOT / "runs" / "seeds",
) -> Result:
    """Whether an example's policy improves on seeds that nobody chose.

    Prints the accuracies of each seed with their 95 % intervals: acc@t1 and acc@t2 before and after, or that of every
    policy of an example of several stages. Accuracy (acc@t2) has to rise by more than the intervals on each seed.

    Args:
        method: the example.
        seeds: of cold start, questions and sampling.
        workers: runs at a time, each on one core.
        output_dir: folder of the runs.
    """
    root = output_dir.resolve() / method
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(lambda seed: run_example(method, seed, root / f"seed-{seed}"), seeds))
    metric, (first, last) = "accuracy" if method in STAGED else "acc_t2", STAGED.get(method, ("before", "after"))
    rows = {f"seed {seed}": each for seed, each in zip(seeds, found, strict=True)}
    rose = {run: _apart(each[f"{metric} {first}"], each[f"{metric} {last}"]) for run, each in rows.items()}
    print_table(rows, rose, "rose")
    result = Result({run: {name: vars(one) for name, one in each.items()} for run, each in rows.items()})
    result.check(all(rose.values()), f"{metric} did not rise on each seed.")
    return result


PRECISIONS = {
    "float32": ["--bf16", "false", "--dtype", "float32"],
    "autocast": ["--bf16", "true", "--dtype", "float32"],
    "bfloat16": ["--bf16", "true", "--dtype", "bfloat16"],
}


def precision(*, seeds: tuple[int, ...] = (0, 1, 2), output_dir: Path = ROOT / "runs" / "precision") -> Result:
    """Whether AdaPO's quickstart learns as much in bfloat16 as in float32.

    The three runs of a seed start from one cold start, made in float32: "float32" is the quickstart as it is,
    "autocast" has weights in float32 and matrix products in bfloat16, and "bfloat16" has its weights in bfloat16, too.
    No accuracy after training may lie below float32's by more than the intervals.

    Args:
        seeds: of cold start, questions and sampling.
        output_dir: folder of the runs.
    """
    rows: dict[str, Estimates] = {}
    reached: dict[str, bool] = {}
    for seed in seeds:
        folder = output_dir.resolve() / f"seed-{seed}"
        run = partial(run_example, "adapo", seed)
        float32 = run(folder / "float32", PRECISIONS["float32"])
        (cold_start,) = (folder / "float32/cold_start").iterdir()
        for name, options in PRECISIONS.items():
            start = [] if name == "float32" else ["--model_name_or_path", str(cold_start)]
            found = rows[f"seed {seed}, {name}"] = run(folder / name, [*options, *start])
            reached[f"seed {seed}, {name}"] = all(
                found[metric].interval[1] >= float32[metric].interval[0] for metric in found if metric.endswith("after")
            )
    print_table(rows, reached, "reaches float32's")
    result = Result({run: {name: vars(one) for name, one in each.items()} for run, each in rows.items()})
    result.check(all(reached.values()), "An accuracy lies below float32's by more than the intervals.")
    return result


class _Arm(NamedTuple):
    """An arm of `pretrained`.

    Attributes:
        example: its example.
        logged: the accuracy that it logs in training.
        answer: the answer that it is trained for.
        times: its updates for one of AdaPO, so that all sample as many answers.
    """

    example: str
    logged: str
    answer: Literal["acc_t1", "acc_t2"]
    times: int = 1


PRETRAINED = {
    "AdaPO": _Arm("adapo", "acc_t2", "acc_t2"),
    "GRPO": _Arm("grpo", "reward", "acc_t1", times=2),
    "SRPO": _Arm("srpo", "acc_t2", "acc_t2"),
}

_POINTS = 4  # of a curve, each the mean of a quarter of a run


def pretrained(
    *,
    config: Literal["pretrained", "pretrained_images"] = "pretrained",
    arms: tuple[str, ...] = ("AdaPO", "GRPO"),
    seeds: tuple[int, ...] = (1, 2, 3),
    updates: int = 24,
    precision: Literal["float32", "autocast", "bfloat16"] = "float32",
    workers: int = 2,
    output_dir: Path = ROOT / "runs" / "pretrained" / "seeds",
    picture: Path | None = None,
) -> Result:
    """What AdaPO, plain GRPO and SRPO teach a pretrained language model, after two stages of `make pretrained`.

    Prints the accuracies of each run before and after. Then, over the seeds, what each arm gained and how far AdaPO's
    second answers are above GRPO's first ones, with 95 % intervals by Student's t. SRPO begins with another policy,
    that of `configs/reflection_sft/pretrained.yaml`.

    Args:
        config: of each arm, in its folder of `configs/`: questions in words, or about images.
        arms: of AdaPO, GRPO and SRPO.
        seeds: of the order of questions and of sampling; all begin with one policy.
        updates: AdaPO's and SRPO's; GRPO has twice as many, of one answer where the others have two.
        precision: of the weights and products; "bfloat16" is fastest on processors with AMX.
        workers: runs at a time, each on one core.
        output_dir: folder of the runs.
        picture: where the curves of both arms are drawn.
    """
    root = output_dir.resolve()

    def train(run: tuple[int, str]) -> Estimates:
        seed, arm = run
        method, steps = PRETRAINED[arm].example, PRETRAINED[arm].times * updates
        options = [*PRECISIONS[precision], "--max_steps", str(steps), "--eval_rows", "200"]
        options += ["--resume_from_checkpoint", "auto"]
        return run_example(method, seed, root / f"{method}-{seed}", options, config=config)

    runs = [(seed, arm) for seed in seeds for arm in arms]
    with ThreadPoolExecutor(workers) as pool:
        found = dict(zip(runs, pool.map(train, runs), strict=True))
    rows = {f"{arm}, seed {seed}": each for (seed, arm), each in found.items()}
    rose = {run: _apart(each["acc_t2 before"], each["acc_t2 after"]) for run, each in rows.items()}
    print_table(rows, rose, "acc@t2 rose")

    def change(arm: str, less: str, moment: str) -> list[float]:
        now, then = f"{PRETRAINED[arm].answer} after", f"{PRETRAINED[less].answer} {moment}"
        return [found[seed, arm][now].value - found[seed, less][then].value for seed in seeds]

    changes = {f"{arm}'s {PRETRAINED[arm].answer}, after less before": change(arm, arm, "before") for arm in arms}
    if {"AdaPO", "GRPO"} <= set(arms):
        changes["AdaPO's acc_t2 less GRPO's acc_t1"] = change("AdaPO", "GRPO", "after")
    for name, each in changes.items():
        mean = Rule(len(each), len(each)).interval(each)
        low, high = mean.interval
        print(f"{name}: {100 * mean.value:+.1f} points [{100 * low:.1f}, {100 * high:.1f}]")
    if picture:
        _draw_pretrained(root, arms, seeds, picture)
    return Result(
        {"changes": changes, "runs": {run: {k: vars(v) for k, v in each.items()} for run, each in rows.items()}}
    )


def _draw_pretrained(root: Path, arms: Sequence[str], seeds: Sequence[int], picture: Path) -> None:
    """Draw the accuracy of sampled answers in training: of each seed thinly, and the mean."""
    page = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = page.add_subplot(xlabel="updates, or twice as many of GRPO", ylabel="right sampled answers, %")
    for colour, arm in enumerate(arms):
        method, metric, _, times = PRETRAINED[arm]
        points = []
        for seed in seeds:
            values = logged(root / f"{method}-{seed}", metric)
            size = len(values) // _POINTS
            parts = [values[at : at + size] for at in range(0, size * _POINTS, size)]
            points.append([100 * fmean(part) for part in parts])
        updates = [size / times * (place + 0.5) for place in range(_POINTS)]
        for each in points:
            axes.plot(updates, each, color=f"C{colour}", linewidth=0.8, alpha=0.5)
        mean = [fmean(each) for each in zip(*points, strict=True)]
        axes.plot(
            updates, mean, color=f"C{colour}", marker="o", label=f"{arm}, {'second' if times == 1 else 'first'} answers"
        )
    axes.legend()
    page.savefig(picture, dpi=150)


KINDS = {"finds the same": remark(), "finds a mistake": remark("").strip()}


def reflections(*, policy: str, problems: int = 150, seed: int = 999) -> Result:
    """How often the second answer of a miniature SRPO policy is right, by its first answer and its reflection.

    Samples four responses to each of some drawn sums, as reinforcement does (temperature 1, top-p 0.95).

    Args:
        policy: path of a policy that SRPO's example trained: `runs/srpo/reflection_sft/*/` or `runs/srpo`.
        problems: sums.
        seed: of the sums.
    """
    drawn = make_problems(["adding"], problems, seed=seed)
    requests = [Request(problem.prompt, [problem.image], n=4, seed=k) for k, problem in enumerate(drawn)]
    engine = TransformersEngine(policy, batch_size=250)
    second_right: Counter[tuple[str, str]] = Counter()
    responses: Counter[tuple[str, str]] = Counter()
    for problem, samples in zip(drawn, engine.sample(requests, SamplingParams(96, 1.0, 0.95)), strict=True):
        if isinstance(samples, Failure):
            raise RuntimeError(samples.reason)
        for sample in samples:
            response = parse_reflection_response(sample.text)
            said = (response.reflection or "").strip()
            kind = next((kind for kind, begin in KINDS.items() if said.startswith(begin)), "neither")
            case = ("right" if response.first_answer == problem.answer else "wrong", kind)
            responses[case] += 1
            second_right[case] += response.second_answer == problem.answer
    print("| first answer | reflection | responses | second answer right |\n|---|---|---|---|")
    for case in sorted(responses):
        print(f"| {case[0]} | {case[1]} | {responses[case]} | {second_right[case] / responses[case]:.0%} |")
    return Result({", ".join(case): [second_right[case], n] for case, n in responses.items()})
