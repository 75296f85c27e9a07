"""Runs the tests of mutations, and says which of them survive.

`python -m tests.paper_mutations.running adapo [words of an entry] [--changed]`: `--changed` leaves out that each test
passes on the code as it is.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.paper_mutations.mutation import ROOT, Mutation

METHODS = ("adapo", "srpo", "chain_of_step", "sophia", "self_evolution")
FOLDERS = ("trl_mmreason", "study", "tests", "configs", "examples", "docs", "benchmarks", "notebooks")
FAILED = 1  # pytest's exit code: tests ran and failed


def mutations_of(method: str) -> list[Mutation]:
    return importlib.import_module(f"tests.paper_mutations.{method}_mutations").MUTATIONS


def copied_tree(folder: Path) -> Path:
    """A copy of what tests read, to be changed."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, folder)
    shutil.copy(ROOT / "Makefile", folder)
    return folder


def exit_codes(copy: Path, jobs: Iterable[tuple[str, Mutation | None]]) -> Iterator[int]:
    """Run tests one by one in the copy, each with one change or with none, and give pytest's exit codes."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests/helpers/mutation_run.py"), str(copy)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=copy, **pipes) as runner:  # type: ignore[call-overload]
        for test, mutation in jobs:
            file = mutation.file if mutation else None
            text = mutation.apply((ROOT / mutation.file).read_text(encoding="utf-8")) if mutation else ""
            runner.stdin.write(json.dumps({"test": test, "file": file, "text": text}) + "\n")
            runner.stdin.flush()
            yield json.loads(runner.stdout.readline())
        runner.stdin.close()


def main(method: str, *words: str) -> None:
    wanted = set(words) - {"--changed"}
    chosen = [each for each in mutations_of(method) if all(word in " ".join(each) for word in wanted)]
    jobs: list[tuple[str, Mutation | None]] = [(each.test, each) for each in chosen]
    if "--changed" not in words:
        jobs = [(test, None) for test in dict.fromkeys(each.test for each in chosen)] + jobs
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        for (test, mutation), code in zip(jobs, exit_codes(copied_tree(Path(folder)), jobs), strict=True):
            expected = FAILED if mutation else 0
            name = mutation.row[:60] if mutation else "unchanged"
            verdict = "ok" if code == expected else f"WRONG: exit code {code}, expected {expected}"
            print(f"{time.monotonic() - begun:5.0f} s  {verdict}  {name}  {test}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
