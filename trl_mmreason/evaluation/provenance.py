"""Provenance of an evaluation: versions, and digests of everything that determines the numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from datasets import Dataset

from .. import __version__
from ..generation.engine import Engine, SamplingParams
from ..generation.protocols import AnsweringProtocol
from ..grading import Grader, JudgeGrader
from ..grading.grader import grader_settings
from ..grading.version import grader_version
from ..jobs.questions import image_digests
from .runner import GREEDY

_PACKAGES = ("torch", "transformers", "trl", "peft", "vllm", "mpmath", "pillow", "datasets")


def versions() -> dict[str, str]:
    """Installed versions of the libraries that determine answers."""
    installed = {"trl_mmreason": __version__}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:  # the package of an extra
            continue
    return installed


def provenance_record(
    engine: Engine,
    protocol: AnsweringProtocol,
    *,
    command: str,
    benchmark: Mapping[str, Any],
    sampling_params: SamplingParams = GREEDY,
    n: int = 1,
    grader: Grader | JudgeGrader | None = None,
    system_prompt: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Record an evaluation's settings, versions and digests, as JSON.

    Args:
        engine, protocol, sampling_params, n, grader, system_prompt, seed: arguments that `evaluate` was given.
        benchmark: name, title, source, split and whatever else says which questions were asked, and how.
    """
    return {
        "command": command,
        "benchmark": dict(benchmark),
        "settings": {
            "protocol": protocol.settings,
            "n": n,
            "system_prompt": system_prompt,
            "engine": engine.settings,
            "sampling_params": asdict(sampling_params),
            "seed": seed,
            "grader": {"settings": grader_settings(grader or Grader()), "version": grader_version()},
        },
        "versions": versions(),
    }


def digest_of(rows: Dataset) -> str:
    """Digest of the questions, their images and their gold answers, in order."""
    digest = hashlib.sha256()
    names = ("id", "prompt", "answer", "choices", "group", "tolerance")
    words_of_rows = rows.select_columns([name for name in names if name in rows.column_names])
    for row, image in zip(words_of_rows, image_digests(rows), strict=True):
        words = [row["id"], *(message["content"] for message in row["prompt"]), repr(row["answer"])]
        words += [json.dumps(row.get(name), sort_keys=True) for name in ("choices", "group", "tolerance")]
        words += [f"{image:016x}"] if image else []
        digest.update(repr(words).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
