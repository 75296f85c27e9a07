"""Whether an example's policy improves on seeds that nobody chose: the same run over several seeds.

    python benchmarks/example_seeds.py adapo                          # seeds 70 to 79, two at a time, each on one core
    python benchmarks/example_seeds.py sophia --seeds 70 71 72

Prints the accuracies of each seed with their 95 % intervals: acc@t1 and acc@t2 before and after, or that of every
policy of an example of several stages. A run that was finished is read, not repeated. The exit code is 1 if accuracy
(acc@t2) did not rise by more than the intervals on some seed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trl_mmreason.evaluation.files import headline, read_evaluation
from trl_mmreason.evaluation.metrics import Estimate, improves, metric_of
from trl_mmreason.model_card import EVALUATIONS

ROOT = Path(__file__).parents[1]
STAGED = {
    "chain_of_step": ("SFT", "GRPO"),
    "self_evolution": ("before", "self-evolution"),
    "sophia": ("before", "SOPHIA"),
}
"""Examples of several stages: the evaluations that stand for before and after."""

Estimates = dict[str, Estimate]
"""Metric and policy → value and interval."""


def run_example(method: str, seed: int, root: Path, options: list[str]) -> Estimates:
    """The accuracies that the example measured, in their order."""
    folder = root / f"seed-{seed}"
    evaluations = folder / ("evaluation" if method in STAGED else EVALUATIONS)
    if not (evaluations / "table.txt").exists():
        folder.mkdir(parents=True, exist_ok=True)
        config, section = ROOT / "configs" / method / "miniature.yaml", "common." if method in STAGED else ""
        command = [sys.executable, str(ROOT / "examples" / f"{method}.py"), "--config", str(config)]
        command += [f"--{section}use_cpu", "true", f"--{section}seed", str(seed), "--output_dir", str(folder), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (folder / "output.txt").open("w") as output:
            subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=output, stderr=output)
    measured = sorted(evaluations.glob("*/results.json"), key=lambda path: path.stat().st_mtime)
    metrics = {path.parent.name: read_evaluation(path.parent).results.metrics for path in measured}
    shown = headline(next(iter(metrics.values())))
    return {f"{name} {policy}": found[name] for name in shown for policy, found in metrics.items()}


def rose(method: str, found: Estimates) -> bool:
    """Whether the interval after training lies above that before it."""
    metric = "accuracy" if method in STAGED else "acc_t2"
    before, after = (found[f"{metric} {policy}"] for policy in STAGED.get(method, ("before", "after")))
    return improves(before.interval, after.interval)


def row_of(seed: int, names: list[str], found: Estimates, verdict: bool) -> str:
    """One line of the table, in Markdown."""
    cells = [str(seed), *(metric_of(name.split()[0]).with_interval(found[name]) for name in names)]
    return f"| {' | '.join(cells)} | {'yes' if verdict else 'no'} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=["adapo", "srpo", *STAGED])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(70, 80)))
    parser.add_argument("--workers", type=int, default=2, help="Runs at a time, each on one core.")
    parser.add_argument("--output_dir", type=Path, default=ROOT / "runs" / "seeds")
    arguments, options = parser.parse_known_args()
    root = arguments.output_dir.resolve() / arguments.method
    with ThreadPoolExecutor(arguments.workers) as pool:
        found = list(pool.map(lambda seed: run_example(arguments.method, seed, root, options), arguments.seeds))
    names, verdicts = list(found[0]), [rose(arguments.method, each) for each in found]
    print(f"| seed | {' | '.join(names)} | rose |\n|{'---|' * (len(names) + 2)}")
    rows = zip(arguments.seeds, found, verdicts, strict=True)
    print("\n".join(row_of(seed, names, each, verdict) for seed, each, verdict in rows))
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
