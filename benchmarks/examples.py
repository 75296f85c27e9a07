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
from typing import Literal

from trl_mmreason.evaluation.files import headline, read_evaluation
from trl_mmreason.evaluation.metrics import Estimate, improves, metric_of
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
    method: str, seed: int, folder: Path, options: Sequence[str] = (), *, launcher: Sequence[str] = ()
) -> Estimates:
    """Run an example on the miniature; gives the accuracies that it measured, in their order."""
    evaluations = folder / ("evaluation" if method in STAGED else EVALUATIONS)
    if not (evaluations / "table.txt").exists():
        folder.mkdir(parents=True, exist_ok=True)
        config, section = ROOT / "configs" / method / "miniature.yaml", "common." if method in STAGED else ""
        command = [sys.executable, *launcher, str(ROOT / "examples" / f"{method}.py"), "--config", str(config)]
        command += [f"--{section}use_cpu", "true", f"--{section}seed", str(seed), "--output_dir", str(folder), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (folder / "output.txt").open("w") as output:
            subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=output, stderr=output)
    measured = sorted(evaluations.glob("*/results.json"), key=lambda path: path.stat().st_mtime)
    metrics = {path.parent.name: read_evaluation(path.parent).results.metrics for path in measured}
    shown = headline(next(iter(metrics.values())))
    return {f"{name} {policy}": found[name] for name in shown for policy, found in metrics.items()}


def print_table(rows: Mapping[str, Estimates], verdicts: Mapping[str, bool], title: str) -> None:
    """Print runs, their accuracies with 95 % intervals and their verdicts, in Markdown."""
    names = list(next(iter(rows.values())))
    print(f"| run | {' | '.join(names)} | {title} |\n|{'---|' * (len(names) + 2)}")
    for run, found in rows.items():
        cells = [metric_of(name.split()[0]).with_interval(found[name]) for name in names]
        print(f"| {run} | {' | '.join(cells)} | {'yes' if verdicts[run] else 'no'} |")


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
    rose = {
        run: improves(each[f"{metric} {first}"].interval, each[f"{metric} {last}"].interval)
        for run, each in rows.items()
    }
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
