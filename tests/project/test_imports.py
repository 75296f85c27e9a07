"""What a module loads. TRL takes seconds, so that small modules and the command line do without it."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import trl_mmreason
from trl_mmreason.evaluation.methods import METHODS

TEXTS = ["messages", "grading", "training.documented", "generation.turn_after_turn", "jobs.store"]
TEXTS += ["evaluation.metrics", "cli.main", "chain_of_step.template", "srpo.response"]
TENSORS = ["functional", "compat.chat_template", "compat.model_parts", "training.stop_at_accuracy"]
TENSORS += [f"{method}.objective" for method in METHODS]
ROWS = ["evaluation.results", "evaluation.files", "chain_of_step.pairs", "adapo.prefilter", "miniature.lessons"]
ROWS += [f"{method}.recipe" for method in METHODS]


def test_small_modules_load_little():
    """In one process, as each kind may load more than the one before."""
    kinds = [(TEXTS, {"torch", "transformers", "datasets", "trl"}), (TENSORS, {"datasets", "trl"}), (ROWS, {"trl"})]
    lines = ["import sys"]
    for modules, unwanted in kinds:
        lines += [f"import trl_mmreason.{module}" for module in modules]
        lines += [f"assert not {unwanted!r} & set(sys.modules), {unwanted!r} & set(sys.modules)"]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_examples_import_nothing_of_the_study():
    """Whoever reads an example need not read the study."""
    scripts = sorted((Path(__file__).parents[2] / "examples").rglob("*.py"))
    assert scripts
    for script in scripts:
        nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8"))))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert "study" not in {name.partition(".")[0] for name in names}, script


def test_public_names_are_those_of_the_modules():
    """All of them are loaded on first use, and `dir` and type checkers know the same ones."""
    assert set(trl_mmreason.__all__) == set(trl_mmreason._PUBLIC)
    assert sorted(trl_mmreason.__all__) == trl_mmreason.__all__
    for name, module in trl_mmreason._PUBLIC.items():
        assert getattr(trl_mmreason, name) is getattr(importlib.import_module(f"trl_mmreason.{module}"), name)
    assert {"GroupGRPOTrainer", "MixedGroupsGRPOTrainer", "MixedGroupsGRPOConfig", "RolloutConfig"} <= {
        *dir(trl_mmreason)
    }
