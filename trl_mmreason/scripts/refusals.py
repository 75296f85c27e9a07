"""Errors that the user or the machine can put right end a program in one line; bugs keep their traceback."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dis import opmap
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError

_OURS = "trl_mmreason"
_PARTIES = ("accelerate", "bitsandbytes", "datasets", "huggingface_hub", "peft", "transformers", "trl", _OURS)
_COMPUTES = {"training_step", "prediction_step", "forward", "generate"}  # functions in which an error is a bug
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


class WrongArgument(ValueError):
    """An argument or option has an invalid value, or does not go with another one."""


@contextmanager
def exit_on_refusal(program: str | None = None, again: str = "the same command") -> Iterator[None]:
    """End the program with one line on an error that `refusal` explains, and with one and status 130 on Ctrl-C.

    Characters that stdout cannot encode are printed as escapes.

    Args:
        program: begins the line; the name of the running script by default.
        again: what resumes the work that is saved.
    """
    program = program or Path(sys.argv[0]).name
    if isinstance(sys.stdout, io.TextIOWrapper):  # as stderr does: a terminal or log may not be in UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except Exception as error:
        if (line := refusal(error)) is None:
            raise
        raise SystemExit(f"{program}: {line}") from error
    except KeyboardInterrupt as interrupt:
        if os.environ.get("RANK", "0") == "0":
            kept = str(interrupt) or "what was finished is saved"
            sys.stderr.write(f"\n{program}: interrupted: {kept}. To go on: {again}\n")  # a bar's line has no end
        raise SystemExit(130) from None  # the status that shells expect


def refusal(error: BaseException) -> str | None:
    """The line that a command ends with; `None` for what may be a bug, whose traceback has to be seen.

    A refusal is an error class of this package, an error of the Hub, a file that cannot be written, weights that cannot
    be read, or what one of the libraries or this package raised on purpose, by a `raise` statement, before the first
    pass through a model.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    functions = {frame.f_code.co_name for frame, _ in frames}
    if unwritten := _unwritten(error):
        fix = "Fix: free some space, or name another folder; what was saved before is kept."
        return f"a file could not be written: {unwritten}. {fix}"
    if isinstance(error, hub_errors()):
        fix = hub_fix(error)
        if "init_hf_repo" in functions:
            fix = f"{fix}, or --push_to_hub false" if fix else "--push_to_hub false"
        return f"the Hub: {hub_text(error)}{fix and f'. Fix: {fix}'}"
    if isinstance(error, SafetensorError):
        return f"the model's weights cannot be read: {error}. Fix: copy or download the model again."
    if type(error).__module__.startswith(_OURS) or isinstance(error, PermissionError):
        return str(error)
    expected = isinstance(error, ValueError | TypeError | KeyError | ImportError | OSError)
    module = frames[-1][0].f_globals["__name__"] if frames else ""
    on_purpose = module.partition(".")[0] in _PARTIES and _on_purpose(error.__traceback__)
    if not expected or not on_purpose or functions & _COMPUTES:
        return None
    return str(error) if module.startswith(_OURS) else f"{_first_part(error)} ({module})"


def hub_errors() -> tuple[type[Exception], ...]:
    """Errors of a Hub that refuses, or is out of reach."""
    from huggingface_hub import get_session  # imported late: it takes time
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    http: Any = importlib.import_module(type(get_session()).__module__.partition(".")[0])  # httpx, or httpx2
    return HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled, http.TransportError


def hub_text(error: BaseException) -> str:
    """What an error of the Hub says, in one line, with the address that was asked."""
    from huggingface_hub import constants

    text = _first_part(error).rstrip(".")
    return text if constants.ENDPOINT in text else f"{constants.ENDPOINT}: {text}"


def hub_fix(error: BaseException) -> str:
    """What puts the cause of an error of the Hub right; "" if only the error itself can say."""
    from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled

    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401 or isinstance(error, LocalTokenNotFoundError):
        return "log in with `hf auth login` or set HF_TOKEN"
    if status == 403:
        return "take a token that has the right to it (`hf auth login` or HF_TOKEN), or another repository"
    if isinstance(error, OfflineModeIsEnabled):
        return "unset HF_HUB_OFFLINE"
    return "try again later" if status is None or status == 429 or status >= 500 else ""


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
