"""Exit codes, and the one place where a fault becomes a sentence: no traceback reaches a user."""

import os
import sys
import traceback
from enum import IntEnum
from typing import Final

from muster.cli.framework.command_words import for_a_person
from muster.cli.framework.installed import Part, has, missing_words, part_of
from muster.cli.framework.terminal import takes_escapes


class Exit(IntEnum):
    """Exit codes that scripts may rely on."""

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
    """A fault that a command itself finds: its text, what to do, and the exit code."""

    def __init__(self, words: str, suggestion: str = "", code: Exit = Exit.FAILED) -> None:
        self.suggestion = suggestion
        self.code = code
        super().__init__(words)


def exit_of(fault: BaseException) -> tuple[Exit, str, str]:
    """Return the exit code, the cause, and what to do."""
    if isinstance(fault, CommandError):
        return fault.code, str(fault), fault.suggestion
    if isinstance(fault, KeyboardInterrupt):
        return Exit.INTERRUPTED, "interrupted", ""
    if isinstance(fault, ModuleNotFoundError) and not has(Part.WHOLE):
        return Exit.USAGE, missing_words("this command", part_of(fault.name or "")), ""
    found = _of_the_api(fault) or _of_ours(fault)
    if found is not None:
        return found
    words = f"{type(fault).__name__}: {fault}"
    return Exit.FAILED, words, "This is a fault in Muster; MUSTER_DEBUG=1 shows the trace."


def _of_the_api(fault: BaseException) -> tuple[Exit, str, str] | None:
    from muster.client.transport import InsecureAddressError, Problem, UnreachableError

    if isinstance(fault, Problem):
        by_class = Exit.SERVER_FAULT if fault.status >= 500 else Exit.FAILED
        words, suggestion = for_a_person(fault.code, str(fault), fault.suggestion)
        return _BY_STATUS.get(fault.status, by_class), words, suggestion
    if isinstance(fault, UnreachableError):
        advice = "Is the control plane up? `muster up` starts one here; see `muster doctor`."
        return Exit.UNREACHABLE, str(fault), advice
    if isinstance(fault, InsecureAddressError):
        return Exit.USAGE, str(fault), ""
    return None


def _of_ours(fault: BaseException) -> tuple[Exit, str, str] | None:
    from muster.domain.errors import MusterError
    from muster.settings import SettingsError

    if isinstance(fault, SettingsError):
        return Exit.USAGE, str(fault), ""
    if isinstance(fault, MusterError):
        words, suggestion = for_a_person(fault.code, fault.detail, fault.suggestion)
        return _BY_STATUS.get(fault.status, Exit.FAILED), words, suggestion
    return None


def print_fault(fault: BaseException) -> Exit:
    code, words, suggestion = exit_of(fault)
    if os.environ.get("MUSTER_DEBUG"):
        traceback.print_exception(fault)
    head = "error:"
    if "NO_COLOR" not in os.environ and takes_escapes(sys.stderr):
        head = f"\x1b[1;31m{head}\x1b[0m"
    sys.stderr.write(f"{head} {_visible(words)}\n" + (f"{_visible(suggestion)}\n" if suggestion else ""))
    return code


def _visible(words: str) -> str:
    """Escape control characters: a text that a fault quotes, such as a key of a file, must not control the terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in words)


def close_quietly() -> None:
    """Point stdout elsewhere after its reader has ended (``| head``), which is no fault: the last flush is
    then silent.
    """
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
