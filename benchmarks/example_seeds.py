"""Whether an example's policy improves on seeds that nobody chose: the same run over several seeds.

    python benchmarks/example_seeds.py adapo          # seeds 70 to 79, two at a time, each on one core
    python benchmarks/example_seeds.py srpo

Prints acc@t1 and acc@t2 before and after of each seed, with their 95 % intervals. A run that was finished is read, not
repeated. The exit code is 1 if acc@t2 did not rise by more than the intervals on some seed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trl_mmreason.evaluation.metrics import improves

ROOT = Path(__file__).parents[1]
METRICS = ("acc_t1", "acc_t2")


def run_example(method: str, seed: int, root: Path, options: list[str]) -> dict[str, Any]:
    """The results that the example writes: metric → before, after and change, each with value and interval."""
    folder = root / f"seed-{seed}"
    results = folder / "results.json"
    if not results.exists():
        folder.mkdir(parents=True, exist_ok=True)
        config = ROOT / "configs" / method / "miniature.yaml"
        command = [sys.executable, str(ROOT / "examples" / f"{method}.py"), "--config", str(config)]
        command += ["--use_cpu", "true", "--seed", str(seed), "--output_dir", str(folder), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (folder / "output.txt").open("w") as output:
            subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=output, stderr=output)
    return json.loads(results.read_text())


def rose(results: dict[str, Any]) -> bool:
    """Whether the interval of acc@t2 after training lies above that before it."""
    before, after = (results["acc_t2"][moment]["interval"] for moment in ("before", "after"))
    return improves(tuple(before), tuple(after))


def row_of(seed: int, results: dict[str, Any]) -> str:
    """One line of the table, in Markdown."""
    cells = [str(seed)]
    for metric in METRICS:
        for moment in ("before", "after"):
            estimate = results[metric][moment]
            low, high = estimate["interval"]
            cells.append(f"{100 * estimate['value']:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    return f"| {' | '.join(cells)} | {'yes' if rose(results) else 'no'} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=["adapo", "srpo"])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(70, 80)))
    parser.add_argument("--workers", type=int, default=2, help="Runs at a time, each on one core.")
    parser.add_argument("--output_dir", type=Path, default=ROOT / "runs" / "seeds")
    arguments, options = parser.parse_known_args()
    root = arguments.output_dir.resolve() / arguments.method
    with ThreadPoolExecutor(arguments.workers) as pool:
        found = list(pool.map(lambda seed: run_example(arguments.method, seed, root, options), arguments.seeds))
    print("| seed | acc@t1 before | acc@t1 after | acc@t2 before | acc@t2 after | acc@t2 rose |")
    print("|---|---|---|---|---|---|")
    print("\n".join(row_of(seed, results) for seed, results in zip(arguments.seeds, found, strict=True)))
    return 0 if all(map(rose, found)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
