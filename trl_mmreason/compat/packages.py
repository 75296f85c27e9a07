"""Which settings need packages that a plain installation leaves out, and which of these are missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from accelerate.utils import str_to_bool

_TRACKERS = {"trackio": 'pip install "trl-mmreason[tracking]"'} | {
    name: f"pip install {name}" for name in ("wandb", "tensorboard", "mlflow", "swanlab", "clearml")
}
_AS_GOOD = {
    "tensorboard": "tensorboardX",
    "flash_attn": "kernels",
}  # transformers takes FlashAttention from kernels, too


class NeededPackage(NamedTuple):
    """A package that a setting needs beyond those of a plain installation; as a string, the error that it is missing.

    Attributes:
        setting: name of the setting.
        package: name of the package.
        install: the command that installs it.
        instead: value of the setting that does without, as the command line takes it; "" where it is left out.
    """

    setting: str
    package: str
    install: str
    instead: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.package} is not installed"

    def fix(self, option: str = "--") -> str:
        """How to do with or without the package.

        Args:
            option: what stands before the names of options, such as "--common.".
        """
        without = f"{option}{self.setting} {self.instead}" if self.instead else f"leave {option}{self.setting} out"
        return f"{self.install}, or {without}"


DEEPSPEED = NeededPackage("deepspeed", "deepspeed", 'pip install "trl-mmreason[deepspeed]"', "")


def missing_packages(settings: Mapping[str, Any]) -> Iterator[NeededPackage]:
    """List what settings need and this environment lacks."""
    return (needed for needed in _needed(settings) if not _is_installed(needed.package))


def _needed(settings: Mapping[str, Any]) -> Iterator[NeededPackage]:
    """The packages that settings need, beyond those of a plain installation."""
    report_to = settings.get("report_to") or []
    for name in [report_to] if isinstance(report_to, str) else report_to:
        if name in _TRACKERS:
            yield NeededPackage("report_to", name, _TRACKERS[name], "none")
    on_cpu = str_to_bool(os.environ.get("ACCELERATE_USE_CPU", "false"))  # where vLLM is switched off
    if settings.get("use_vllm") in (True, "true", "True") and not on_cpu:
        yield NeededPackage("use_vllm", "vllm", 'pip install "trl-mmreason[vllm]"', "false")
    if settings.get("vllm") and not on_cpu:
        yield NeededPackage("vllm", "vllm", 'pip install "trl-mmreason[vllm]"', "null")
    if settings.get("deepspeed"):
        yield DEEPSPEED
    if settings.get("attn_implementation") == "flash_attention_2":
        yield NeededPackage("attn_implementation", "flash_attn", "pip install flash-attn", "sdpa")


def _is_installed(package: str) -> bool:
    """Whether the package, or one that does as well, is installed."""
    return any(name is not None and find_spec(name) is not None for name in (package, _AS_GOOD.get(package)))


def refuse_missing_packages(settings: Mapping[str, Any], option: str = "--") -> None:
    """Refuse settings whose packages are missing, before slow work; they are imported only after loading the model.

    Args:
        option: what stands before the names of options, such as "--common.".

    Raises:
        ValueError: names the setting, the package and the fix.
    """
    for missing in missing_packages(settings):
        raise ValueError(f"{missing}. Fix: {missing.fix(option)}")
