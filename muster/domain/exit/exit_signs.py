"""The lines that programs print when they end by a fault, and the cause that each line indicates.

The phrases and their sources stand in ``fault_lines``, the one table of such lines.

No line makes a GPU's fault, since a program may print anything: the measurements of the GPU decide
(``exits.GpuFault``). The same holds for a CUDA error that a program's own bug causes as well ("unspecified launch
failure", "illegal memory access").
"""

import re
from dataclasses import dataclass
from typing import Final

from muster.domain.exit.fault_lines import FAULT_LINES, SignKind
from muster.domain.states import Cause

_OF_A_LAUNCHER: Final = re.compile(
    r"^srun: error: .*: tasks? |^slurmstepd.*: error: \*\*\* |launch\.py:\d+:sigkill_handler\]"
)
_BANNER: Final = re.compile(r"^Primary job +terminated normally, but|^mpi(run|exec) (detected|noticed) that")
"""First line of a message of mpirun, which ends with a line of dashes."""


@dataclass(frozen=True, slots=True)
class Sign:
    """A line that holds all ``tokens``, and the cause that it is a sign of."""

    tokens: tuple[str, ...]
    cause: Cause


def _signs(*kinds: SignKind) -> tuple[Sign, ...]:
    return tuple(Sign(each, row.cause) for row in FAULT_LINES if row.sign in kinds for each in row.alternatives)


OUT_OF_GPU_MEMORY: Final = _signs(SignKind.OUT_OF_GPU_MEMORY)
GPU_SIGNS: Final = _signs(SignKind.GPU)
"""Messages of CUDA and NVML about a GPU that failed: a root, and without a measurement no proof of it."""
ROOT_CAUSES: Final = _signs(SignKind.ROOT)
TIMEOUTS: Final = _signs(SignKind.TIMEOUT)
CASCADES: Final = (*TIMEOUTS, *_signs(SignKind.CASCADE))
"""Messages of a rank after the failure of another rank or a GPU: never a root while any rank has another message."""


USAGE_ERROR: Final = 2
"""Exit code of argparse, click and others for arguments that the program does not take; any program may end with it."""
_USAGE: Final = re.compile(r"^usage(: | of \S+:$)", re.IGNORECASE)
"""First words of argparse and click, and of Go's flags."""
_ABOUT_ARGUMENTS: Final = re.compile(
    r": error: (argument |unrecognized arguments: |ambiguous option: |the following arguments are required: "
    r"|one of the arguments |invalid choice: )"
)
"""argparse's own messages: its usage before them may be longer than the part of a log that is kept."""
_TRACEBACK: Final = "Traceback (most recent call last)"
_CHAINED_EXCEPTION_LINES: Final = ("During handling of the above exception", "The above exception was the direct cause")


_LAST_LINES: Final = 20


def ended_out_of_gpu_memory(text: str | None, *, was_raised: bool) -> str | None:
    """Return the line about missing GPU memory if that ended the program: no other exception was raised after it.

    A program may catch the error, take smaller pieces and continue. An exception that is raised while the first one is
    handled only follows from it. ``was_raised``: the program ended as by an exception, so the last one in its log ended
    it; otherwise only its last lines count.
    """
    lines = (text or "").splitlines()
    said = [n for n, line in enumerate(lines) if any(sign.tokens[0] in line for sign in OUT_OF_GPU_MEMORY)]
    if not said or (not was_raised and said[-1] < len(lines) - _LAST_LINES):
        return None
    above = ""
    for line in lines[said[-1] + 1 :]:
        if _TRACEBACK in line and not any(words in above for words in _CHAINED_EXCEPTION_LINES):
            return None
        above = line if line.strip() and not line.rstrip().endswith("]:") else above
    return lines[said[-1]].strip()


def is_usage_error(text: str | None) -> bool:
    """Return whether a program that ended with ``USAGE_ERROR`` reported that its arguments are wrong."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    if not lines or any(_TRACEBACK in line for line in lines):
        return False
    return bool(_ABOUT_ARGUMENTS.search(lines[-1])) or any(_USAGE.search(line) for line in lines)


def first_of(signs: tuple[Sign, ...], text: str | None) -> tuple[Sign, str] | None:
    """Return the sign whose line comes first in ``text``, and that line."""
    for line in (text or "").splitlines():
        for sign in signs:
            if all(token in line for token in sign.tokens):
                return sign, line.strip()
    return None


def last_words(text: str) -> str:
    """Return the program's last lines, without lines that mpirun, srun and DeepSpeed's launcher add to a rank's end."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own, is_banner = [], False
    for line in lines:
        is_dashes = not line.strip("-")
        is_banner = (is_banner and not is_dashes) or bool(_BANNER.search(line))
        if not is_banner and not is_dashes and not _OF_A_LAUNCHER.search(line):
            own.append(line)
    return (own or lines or [""])[-1]
