"""Check the installed packages, the devices and the private methods that this package relies on."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence

import torch
from packaging.requirements import Requirement
from packaging.version import Version

from ...scripts.recipes import ROOT
from . import Finding
from .memory import GIB

PACKAGES = (
    *("torch", "transformers", "trl", "accelerate", "peft", "datasets"),
    *("openai", "bitsandbytes", "vllm", "deepspeed"),
)
_EXTRAS = ("server", "tracking")  # extras whose packages are checked where they are installed


def pinned_versions(file: str) -> dict[str, str]:
    """Package → version in the last test run, of a constraints file."""
    lines = (ROOT / file).read_text().splitlines()
    return {package.removesuffix("-cpu"): version for package, _, version in (one.partition("==") for one in lines)}


def installed_version(package: str) -> str | None:
    """Version of an installed package, or `None`."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_packages(
    installed: Mapping[str, str | None], changes: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Finding]:
    """Compare installed versions with the requirements and with the tested versions.

    Args:
        installed: package → version, or `None`.
        changes: package → its private methods that are not those expected, as `changed_methods` describes them.
    """
    for requirement in _requirements():
        version, allowed = installed.get(requirement.name), requirement.specifier
        if version is not None and not allowed.contains(version, prereleases=True):
            known = len((changes or {}).get(requirement.name, ()))
            problems = f"{known} known problem{'s' * (known != 1)}; {allowed} is required."
            fix = f'pip install "{requirement.name}{allowed}"'
            yield Finding("FAIL", f"{requirement.name} {version}: not tested, {problems}", fix)
    has_engine = bool(installed.get("vllm") or installed.get("deepspeed"))
    file = "constraints-engines.txt" if has_engine else "constraints.txt"
    tested = pinned_versions(file)
    for package, version in installed.items():
        if version is None:
            yield Finding("ok", f"{package} is not installed.")
        elif package not in tested:
            yield Finding("ok", f"{package} {version}.")
        elif Version(Version(version).base_version) == Version(tested[package]):
            yield Finding("ok", f"{package} {version}, as tested.")
        else:
            yield Finding("note", f"{package} {version}: the tests ran with {tested[package]} ({file}).")


def _requirements() -> list[Requirement]:
    """This package's requirements and those of `_EXTRAS`; none where it runs uninstalled."""
    try:
        lines = importlib.metadata.requires("trl-mmreason") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    extras = [{"extra": name} for name in _EXTRAS]
    return [one for one in map(Requirement, lines) if one.marker is None or any(map(one.marker.evaluate, extras))]


def check_devices() -> Iterator[Finding]:
    """Name the accelerators and their memory."""
    for index in range(torch.cuda.device_count()):
        free, whole = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        yield Finding("ok", f"GPU {index}: {name}, {free / GIB:.0f} of {whole / GIB:.0f} GiB free.")
    if not torch.cuda.is_available():
        yield Finding("note", f"no GPU that torch {torch.__version__} can use: training runs on the CPU.")


def check_contract(changes: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Say of private methods whether they still are what this package expects."""
    required = {requirement.name: requirement for requirement in _requirements()}
    for package, changed in changes.items():
        if not changed:
            yield Finding("ok", f"{package}: its private methods are those that this package relies on.")
        for change in changed:
            yield Finding("FAIL", f"{package}: {change}.", f'pip install "{required.get(package, package)}"')
