"""Which errors are about what the user gave or about the machine, so that one line says more than a traceback."""

from __future__ import annotations

import errno
import importlib
import traceback
from dis import opmap
from types import TracebackType
from typing import Any

from safetensors import SafetensorError

from ..data.folders import NoSuchFolder
from ..grading.replies import UnsuitableEngine

REFUSALS = (ValueError, TypeError, KeyError, ImportError, OSError, RuntimeError, SafetensorError)
"""Errors that may be such; `refusal` says whether one is."""

_PARTIES = ("accelerate", "bitsandbytes", "datasets", "huggingface_hub", "peft", "transformers", "trl", "trl_mmreason")
_COMPUTES = {"training_step", "prediction_step", "forward", "generate"}  # functions in which an error is a bug
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


def refusal(error: BaseException) -> str | None:
    """The line that a command ends with; `None` for what may be a bug, whose traceback has to be seen.

    A refusal is an error of the Hub, a file that cannot be written, weights that cannot be read, or what one of the
    libraries or this package raised on purpose, by a `raise` statement, before the first pass through a model.

    Args:
        error: exception with its traceback.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    functions = {frame.f_code.co_name for frame, _ in frames}
    if unwritten := _unwritten(error):
        fix = "Fix: free some space, or name another folder; what was saved before is kept."
        return f"a file could not be written: {unwritten}. {fix}"
    if isinstance(error, hub_errors()):
        fix = " Fix: log in with `hf auth login` or set HF_TOKEN, or --push_to_hub false"
        return f"the Hub: {_first_part(error)}{fix if 'init_hf_repo' in functions else ''}"
    if isinstance(error, SafetensorError):
        return f"the model's weights cannot be read: {error}. Fix: copy or download the model again."
    if isinstance(error, NoSuchFolder | UnsuitableEngine):
        return str(error)
    if isinstance(error, RuntimeError) or functions & _COMPUTES:
        return None
    module = frames[-1][0].f_globals["__name__"] if frames else ""
    if module.partition(".")[0] not in _PARTIES or not _on_purpose(error.__traceback__):
        return None
    return str(error) if module.startswith("trl_mmreason") else f"{_first_part(error)} ({module})"


def hub_errors() -> tuple[type[Exception], ...]:
    """Errors of a Hub that refuses, or is out of reach."""
    from huggingface_hub import get_session  # imported late: it takes time
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    http: Any = importlib.import_module(type(get_session()).__module__.partition(".")[0])  # httpx, or httpx2
    return HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled, http.TransportError


def _on_purpose(trace: TracebackType | None) -> bool:
    """Whether a `raise` statement raised it, and not an operation that failed."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]


def _unwritten(error: BaseException | None) -> str | None:
    """What could not be written for want of space, or to a disk that takes nothing."""
    while error is not None:
        by_system = isinstance(error, OSError) and error.errno in _FULL
        by_safetensors = isinstance(error, SafetensorError) and any(
            f"(os error {code})" in str(error) for code in _FULL
        )
        by_torch = isinstance(error, RuntimeError) and "PytorchStreamWriter failed writing" in str(error)
        if by_system or by_safetensors or by_torch:
            return _first_part(error)
        error = error.__cause__ or error.__context__
    return None


def _first_part(error: BaseException) -> str:
    """An error's text up to the first empty line, in one line."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(text.strip().partition("\n\n")[0].split())
