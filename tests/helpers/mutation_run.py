"""Runs tests on changed copies of the package: `python mutation_run.py COPY` reads jobs and writes exit codes.

A job is a line of JSON, `{"test": node id, "file": path or null, "text": contents}`; the answer is pytest's exit code.
What tests import of other packages is imported once: each test runs in a fork of this process. That saves ten seconds
a test.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

import accelerate  # noqa: F401
import datasets  # noqa: F401
import peft  # noqa: F401
import pytest
import sympy  # noqa: F401
import transformers  # noqa: F401
import trl.trainer.dpo_trainer
import trl.trainer.grpo_trainer
import trl.trainer.sft_trainer  # noqa: F401

LONGEST_SECONDS = 1200  # of a test, which a change may have made endless
OPTIONS = ["-p", "no:cacheprovider", "-x", "--no-header", "--tb=line", "-W", "ignore"]


def run(copy: Path, test: str) -> int:
    """The exit code of one test in a fork."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(LONGEST_SECONDS)
    try:
        os.dup2(2, 1)  # stdout is for the answers
        code = int(pytest.main([test, f"--rootdir={copy}", *OPTIONS]))
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        code = 3
    os._exit(code)


def put(copy: Path, file: str, text: str) -> None:
    """Write a module; its bytecode may have the same time and size."""
    (copy / file).write_text(text, encoding="utf-8")
    for compiled in (copy / file).parent.glob(f"__pycache__/{Path(file).stem}.*"):
        compiled.unlink()


def main() -> None:
    copy = Path(sys.argv[1])
    os.chdir(copy)
    sys.path[0] = str(copy)
    assert not any(name.startswith("trl_mmreason") for name in sys.modules)
    for line in sys.stdin:
        job = json.loads(line)
        file = job["file"]
        before = (copy / file).read_text(encoding="utf-8") if file else ""
        if file:
            put(copy, file, job["text"])
        code = run(copy, job["test"])
        if file:
            put(copy, file, before)
        print(json.dumps(code), flush=True)


if __name__ == "__main__":
    main()
