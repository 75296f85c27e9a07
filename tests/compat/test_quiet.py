"""What a short training leaves on stderr: no warning of other packages that says nothing to a user."""

import ast
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from support import saved_model

from trl_mmreason.compat.quiet import HARMLESS, silence_harmless

ROOT = Path(__file__).parents[2]
WARNING = re.compile(r"warn|deprecat|fail", re.IGNORECASE)

TRAINING = """
import sys
from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.miniature.tasks import make_dataset

run = {"use_cpu": True, "bf16": False, "per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 1}
run |= {"max_completion_length": 6, "report_to": [], "save_strategy": "no", "dataloader_num_workers": 1}
run |= {"learning_rate": 0.0}  # random answers earn nothing
args = AdaPOConfig("out", **run, filter_truncated=False, disable_tqdm=True)
trainer = AdaPOTrainer(sys.argv[1], args=args, train_dataset=make_dataset(["adding"], 2))
trainer.train()
"""


def warnings_of(folder, *command):
    """Lines of stderr that look like a warning."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stderr.splitlines() if WARNING.search(line)]


@pytest.mark.full
def test_a_training_without_progress_bars_prints_no_warning(tmp_path):
    assert warnings_of(tmp_path, "-c", TRAINING, saved_model("qwen2_5_vl", tmp_path / "model")) == []
    assert (tmp_path / "out").is_dir()


def first_imports(path):
    """The modules that an example imports before this package, which silences what others print."""
    statements = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in statements]
    first = next(number for number, name in enumerate(modules) if name.startswith("trl_mmreason"))
    return tuple(name for name in modules[:first] if name.partition(".")[0] not in sys.stdlib_module_names)


BY_IMPORTS = {}
for example in sorted(ROOT.glob("examples/*.py")):
    BY_IMPORTS.setdefault(first_imports(example), []).append(str(example))

HELP = """
import runpy
import sys

for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        assert not end.code, path
"""


@pytest.mark.full
@pytest.mark.parametrize("examples", BY_IMPORTS.values(), ids=["-".join(names) or "none" for names in BY_IMPORTS])
def test_the_imports_of_examples_print_no_warning(examples, tmp_path):
    """Those that begin with the same modules run one after the other in one Python: the first imports nearly all."""
    assert warnings_of(tmp_path, "-c", HELP, *examples) == []


@pytest.mark.full
def test_an_evaluation_prints_no_warning(tmp_path):
    model, config = saved_model("qwen2_5_vl", tmp_path / "model"), ROOT / "configs/evaluate/miniature.yaml"
    options = ["--model_name_or_path", model, "--output_dir", "out", "--eval_rows", 2, "--max_new_tokens", 4]
    assert warnings_of(tmp_path, ROOT / "examples/evaluate.py", "--config", config, *options) == []
    assert (tmp_path / "out/report.html").is_file()


def test_another_warning_of_the_same_kind_is_shown():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        silence_harmless()
        for message, category in HARMLESS:
            warnings.warn(f"{message} …", category, stacklevel=1)
            warnings.warn(f"Another: {message}", category, stacklevel=1)
            warnings.warn(f"{message} …", RuntimeWarning, stacklevel=1)
    assert [str(one.message).startswith("Another") for one in shown] == [True, False] * len(HARMLESS)
