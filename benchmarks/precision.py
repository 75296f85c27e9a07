"""Whether AdaPO's quickstart learns as much in bfloat16 as in float32: the same runs in three precisions.

The three runs of a seed start from one cold start, made in float32, so that only the training differs:

    float32   weights and computations in float32, the quickstart as it is
    autocast  `--bf16 true`: weights in float32, matrix products in bfloat16
    bfloat16  `--bf16 true --dtype bfloat16`: the weights themselves in bfloat16 too

A run that was finished is read, not repeated. The exit code is 1 if the accuracies of a run lie below those of float32
by more than the intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.evaluation.metrics import Estimate
from trl_mmreason.model_card import COMPARED, EVALUATIONS

ROOT = Path(__file__).parents[1]

METRICS, MOMENTS = ("acc_t1", "acc_t2"), ("before", "after")

PRECISIONS = {
    "float32": ["--bf16", "false", "--dtype", "float32"],
    "autocast": ["--bf16", "true", "--dtype", "float32"],
    "bfloat16": ["--bf16", "true", "--dtype", "bfloat16"],
}


def run_quickstart(precision: str, seed: int, root: Path) -> dict[str, dict[str, Estimate]]:
    """The results that the example writes: before and after → the metrics.

    Args:
        precision: a key of `PRECISIONS`.
        seed: of cold start, questions and sampling.
        root: folder of all runs.
    """
    folder = root / f"seed-{seed}" / precision
    if not (folder / COMPARED).exists():
        settings = [*PRECISIONS[precision], "--use_cpu", "true", "--seed", str(seed), "--output_dir", str(folder)]
        if precision != "float32":
            settings += ["--model_name_or_path", str(cold_start_of(seed, root))]
        config = ROOT / "configs" / "adapo" / "miniature.yaml"
        command = [sys.executable, str(ROOT / "examples" / "adapo.py"), "--config", str(config), *settings]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        begun = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=sys.stderr)
        (folder / "seconds.json").write_text(json.dumps(time.perf_counter() - begun))
    return {moment: read_evaluation(folder / EVALUATIONS / moment).results.metrics for moment in MOMENTS}


def cold_start_of(seed: int, root: Path) -> Path:
    """The policy that the float32 run of a seed began with; made by that run if need be."""
    run_quickstart("float32", seed, root)
    (folder,) = (root / f"seed-{seed}" / "float32" / "cold_start").iterdir()
    return folder


def reaches(after: dict[str, Estimate], float32: dict[str, Estimate]) -> bool:
    """Whether no accuracy after training lies below float32's by more than the two intervals."""
    return all(after[metric].interval[1] >= float32[metric].interval[0] for metric in METRICS)


def row_of(seed: int, precision: str, results: dict[str, dict[str, Estimate]], reached: bool) -> str:
    """One line of the table, in Markdown."""
    cells = [str(seed), precision]
    for metric in METRICS:
        for moment in MOMENTS:
            estimate = results[moment][metric]
            cells.append(f"{estimate.value:.3f} [{estimate.interval[0]:.3f}, {estimate.interval[1]:.3f}]")
    return f"| {' | '.join(cells)} | {'yes' if reached else 'no'} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--output_dir", type=Path, default=ROOT / "runs" / "precision")
    arguments = parser.parse_args()
    root = arguments.output_dir.resolve()
    rows, all_reach = [], True
    for seed in arguments.seeds:
        float32 = run_quickstart("float32", seed, root)
        for precision in arguments.precisions:
            results = run_quickstart(precision, seed, root)
            reached = reaches(results["after"], float32["after"])
            rows.append(row_of(seed, precision, results, reached))
            all_reach &= reached
    print("| seed | precision | acc@t1 before | acc@t1 after | acc@t2 before | acc@t2 after | reaches float32's |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    return 0 if all_reach else 1


if __name__ == "__main__":
    raise SystemExit(main())
