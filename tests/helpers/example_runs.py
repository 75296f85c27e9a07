"""Examples in processes of their own, and the pipeline of a staged one in this process."""

import os
import subprocess
import sys
from pathlib import Path

import processes
import yaml
from trl import ModelConfig, TrlParser

from trl_mmreason.cli.main import main
from trl_mmreason.miniature.models import build_model
from trl_mmreason.scripts.recipes import load_script
from trl_mmreason.scripts.sections import StagedArguments
from trl_mmreason.scripts.stages import Pipeline

ROOT = Path(__file__).parents[2]
ACCELERATE = (str(Path(sys.executable).with_name("accelerate")), "launch")

# Of a staged example that two cores run in seconds.
SMALL = {
    "dataset_name": "miniature/adding",
    "eval_dataset_name": "miniature/adding",
    "eval_split": "new_pictures",
    "eval_rows": 4,
    "dtype": "float32",
}
SMALL_COMMON = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "seed": 0}
SMALL_COMMON |= {"save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}


def load_example(name):
    """The module of an example."""
    return load_script(name, f"{name}_example")


def start(name, folder, *options, launcher=None):
    """Let an example run with these options, `folder` its output folder.

    Args:
        launcher: what users start it with, in a Python that imports everything anew; by default a forked process.
    """
    command = [str(ROOT / f"examples/{name}.py"), "--output_dir", str(folder), *map(str, options)]
    cwd, cache = folder.parent, {"HF_DATASETS_CACHE": str(folder.parent / "cache")}
    if launcher is None:
        return processes.run(*command, cwd=cwd, environment=cache)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **cache}
    return subprocess.run([*launcher, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def train_here(monkeypatch, method, *flags):
    """`mmreason train` in this process, whose main module and arguments it takes the place of."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr("sys.argv", sys.argv)
    main(["train", method, *map(str, flags)])


def save_base(folder, **known):
    """A random policy in `folder`, and its path."""
    for part in build_model("qwen2_5_vl", "test", **known):
        part.save_pretrained(folder)
    return str(folder)


class StagedExample:
    """A staged example with small settings, which it may be started with as often as wanted.

    Attributes:
        name: of the example.
        folder: its output folder.
        config: its configuration file.
        done: how the first start ended.
    """

    def __init__(self, name, root, settings):
        self.name, self.folder, self.config = name, root / "out", root / "small.yaml"
        self.config.write_text(yaml.safe_dump({**SMALL, **settings}, sort_keys=False))
        self.done = self.start()
        assert self.done.returncode == 0, self.done.stderr[-3000:]

    def start(self, *options):
        return start(self.name, self.folder, "--config", self.config, *options)

    def pipeline(self, folder, *options):
        """The pipeline in this process, writing into `folder`."""
        example = load_example(self.name)
        (arguments,) = (one for one in vars(example).values() if is_own(one, StagedArguments))
        (pipeline,) = (one for one in vars(example).values() if is_own(one, Pipeline))
        given = ["--config", str(self.config), "--output_dir", str(folder), *map(str, options)]
        return pipeline(*TrlParser((arguments, ModelConfig)).parse_args_and_config(given))

    def assert_done_once(self):
        """Started again it trains nothing, and says the same."""
        before = modified(self.folder)
        again = self.start()
        assert again.returncode == 0, again.stderr[-3000:]
        assert modified(self.folder) == before
        assert (self.folder / "evaluation/table.txt").read_text().strip() in again.stdout


def is_own(one, base):
    return isinstance(one, type) and issubclass(one, base) and one is not base


def modified(folder):
    """When each model was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
