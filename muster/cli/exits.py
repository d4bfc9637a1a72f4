"""Exit codes, and the one place where a fault becomes a sentence: no traceback reaches a user."""

import os
import sys
import traceback
from enum import IntEnum
from typing import Final

from rich.console import Console

from muster.client.transport import InsecureAddressError, Problem, UnreachableError
from muster.domain.errors import MusterError
from muster.settings import SettingsError


class Exit(IntEnum):
    """What scripts may rely on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    CONFLICT = 5
    INVALID = 6
    UNREACHABLE = 7
    SERVER_FAULT = 8
    JOB_FAILED = 20
    JOB_CANCELLED = 21
    INTERRUPTED = 130


_BY_STATUS: Final = {
    400: Exit.INVALID,
    401: Exit.DENIED,
    403: Exit.DENIED,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    412: Exit.CONFLICT,
    422: Exit.INVALID,
}


class CommandError(Exception):
    """A fault that a command itself finds: words, what to do, exit code."""

    def __init__(self, words: str, suggestion: str = "", code: Exit = Exit.FAILED) -> None:
        self.suggestion = suggestion
        self.code = code
        super().__init__(words)


def exit_of(fault: BaseException) -> tuple[Exit, str, str]:
    """(exit code, what went wrong, what to do)."""
    if isinstance(fault, CommandError):
        return fault.code, str(fault), fault.suggestion
    if isinstance(fault, Problem):
        by_class = Exit.SERVER_FAULT if fault.status >= 500 else Exit.FAILED
        return _BY_STATUS.get(fault.status, by_class), str(fault), fault.suggestion
    if isinstance(fault, UnreachableError):
        return (
            Exit.UNREACHABLE,
            str(fault),
            "Is the control plane up? `muster up` starts one here; see `muster doctor`.",
        )
    if isinstance(fault, (InsecureAddressError, SettingsError)):
        return Exit.USAGE, str(fault), ""
    if isinstance(fault, MusterError):
        return _BY_STATUS.get(fault.status, Exit.FAILED), fault.detail, fault.suggestion
    if isinstance(fault, KeyboardInterrupt):
        return Exit.INTERRUPTED, "interrupted", ""
    words = f"{type(fault).__name__}: {fault}"
    return Exit.FAILED, words, "This is a fault of ours; MUSTER_DEBUG=1 shows the trace."


def say_fault(fault: BaseException) -> Exit:
    code, words, suggestion = exit_of(fault)
    if os.environ.get("MUSTER_DEBUG"):
        traceback.print_exception(fault)
    console = Console(stderr=True, highlight=False, soft_wrap=True, no_color="NO_COLOR" in os.environ)
    console.print("[bold red]error:[/] ", end="")
    console.print(words, markup=False)
    if suggestion:
        console.print(suggestion, markup=False, style="dim")
    return code


def close_quietly() -> None:
    """A reader that went away (``| head``) is no fault: point stdout elsewhere so that the last flush is silent."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
