"""What a short training leaves on stderr: no warning of other packages that says nothing to a user."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from support import saved_model

from trl_mmreason.quiet import HARMLESS, silence_harmless

ROOT = Path(__file__).parents[1]
WARNING = re.compile(r"warn|deprecat|fail", re.IGNORECASE)

TRAINING = """
import sys
from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.miniature.tasks import make_dataset

run = {"use_cpu": True, "bf16": False, "per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 1}
run |= {"max_completion_length": 6, "report_to": [], "save_strategy": "no", "dataloader_num_workers": 1}
args = AdaPOConfig("out", **run, filter_truncated=False, disable_tqdm=True)
trainer = AdaPOTrainer(sys.argv[1], args=args, train_dataset=make_dataset(["adding"], 2))
trainer.train()
"""


@pytest.mark.full
def test_a_training_without_progress_bars_prints_no_warning(tmp_path):
    model = saved_model("qwen2_5_vl", tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(model)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "train_loss" in done.stdout
    assert [line for line in done.stderr.splitlines() if WARNING.search(line)] == []


def test_another_warning_of_the_same_kind_is_shown():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        silence_harmless()
        for message, category in HARMLESS:
            warnings.warn(f"{message} …", category, stacklevel=1)
            warnings.warn(f"Another: {message}", category, stacklevel=1)
            warnings.warn(f"{message} …", RuntimeWarning, stacklevel=1)
    assert [str(one.message).startswith("Another") for one in shown] == [True, False] * len(HARMLESS)
