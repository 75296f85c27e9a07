"""The method in CONTRIBUTING.md needs its own folder and an entry in two modules: it trains, and has its curve."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n# (\S+\.py)\n(.*?)```", re.DOTALL)


def test_the_method_of_the_contributing_page_trains(checkpoints, tmp_path):
    files = dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert sum(text.count("\n") for text in files.values()) < 90  # with its blank lines and docstrings
    package = tmp_path / "trl_mmreason"
    shutil.copytree(ROOT / "trl_mmreason", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("evaluation/methods.py", "__init__.py"):
        with (package / name).open("a", encoding="utf-8") as module:
            module.write(files.pop(name))
    for name, text in files.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    (package / "concise" / "__init__.py").touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)  # with its layers, of which the method needs none

    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'tests/helpers'}"}
    study = {**environment, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    subprocess.run([Path(sys.executable).with_name("lint-imports")], env=study, cwd=tmp_path, check=True, timeout=300)
    command = [
        sys.executable,
        str(ROOT / "tests/helpers/sixth_method_run.py"),
        str(checkpoints("qwen2_5_vl")),
        str(tmp_path),
    ]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=300)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["package"] == str(package)
    assert len(found["logged"]) == 2
    assert "Length reward" in found["panels"]
    # λ = 0.5, -0.5 and, for a wrong answer, min(0, 0); nothing where all are equally long
    assert found["rewards"] == [[0.5, -0.5, 0.0], [0.0, 0.0, 0.0]]
