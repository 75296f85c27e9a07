"""Check the installed packages, the devices and the private methods that this package relies on."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import torch
from packaging.requirements import Requirement
from packaging.version import Version

from ...scripts.recipes import ROOT
from .finding import Finding
from .memory import GIB

PACKAGES = (
    *("torch", "transformers", "trl", "accelerate", "peft", "datasets"),
    *("openai", "bitsandbytes", "vllm", "deepspeed"),
)
_EXTRAS = ("server", "tracking")  # extras whose packages are checked where they are installed


@cache
def pinned_versions() -> dict[str, dict[str, str]]:
    """Constraints file → package → version in the last test run."""
    lines = {path.name: path.read_text().splitlines() for path in sorted(ROOT.glob("constraints*.txt"))}
    pins = {name: [line.split("==") for line in each if "==" in line] for name, each in lines.items()}
    return {name: {package.removesuffix("-cpu"): version for package, version in each} for name, each in pins.items()}


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
        version = installed.get(requirement.name)
        if version is not None and not requirement.specifier.contains(version, prereleases=True):
            fix = f'pip install "{requirement.name}{requirement.specifier}"'
            known = len((changes or {}).get(requirement.name, ()))
            yield Finding(
                "FAIL",
                f"{requirement.name} {version}: not tested, {known} known problem{'s' * (known != 1)}; "
                f"{requirement.specifier} is required.",
                fix,
            )
    has_engine = bool(installed.get("vllm") or installed.get("deepspeed"))
    name = "constraints-engines.txt" if has_engine else "constraints.txt"
    tested = pinned_versions().get(name, {})
    for package, version in installed.items():
        if version is None:
            yield Finding("ok", f"{package} is not installed.")
        elif package not in tested or Version(Version(version).base_version) == Version(tested[package]):
            yield Finding("ok", f"{package} {version}" + (", as tested." if package in tested else "."))
        else:
            yield Finding("note", f"{package} {version}: the tests ran with {tested[package]} ({name}).")
    if installed.get("vllm") and installed.get("transformers"):
        pair = {package: str(installed[package]) for package in ("vllm", "transformers")}
        is_tested = all(Version(Version(version).base_version) == Version(tested[p]) for p, version in pair.items())
        text = " with ".join(f"{package} {version}" for package, version in pair.items())
        tested_pair = ", ".join(f"{package}=={tested[package]}" for package in pair)
        yield (
            Finding("ok", f"engine vLLM: {text}, a tested pair.")
            if is_tested
            else Finding("note", f"engine vLLM: {text} is no tested pair; tested: {tested_pair}.")
        )


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
    """Say of private methods whether they still are what this package expects.

    Args:
        changes: package → what has changed, as `changed_methods` describes it.
    """
    required = {requirement.name: requirement for requirement in _requirements()}
    for package, changed in changes.items():
        if not changed:
            yield Finding("ok", f"{package}: its private methods are those that this package relies on.")
        for change in changed:
            yield Finding("FAIL", f"{package}: {change}.", f'pip install "{required.get(package, package)}"')
