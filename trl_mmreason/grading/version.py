"""Version of the grading rules."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def grader_version() -> str:
    """A digest of the rules that read and compare answers: tolerances too.

    It changes with every change to them, so that two results of one version were graded alike.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    digest.update(f"mpmath {version('mpmath')}".encode())
    return digest.hexdigest()[:12]
