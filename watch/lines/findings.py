"""From one line of a running job to a finding by the table of fault lines (``muster.domain.exit.fault_lines``).

A program may print the words of NCCL or PyTorch itself, such as in a note about an earlier run. So a line counts only
in the form that its component writes::

    host:983:1261 [3] transport/net_ib.cc:2301 NCCL WARN NET/IB: Got completion from peer …      NCCL
    [rank3]:[E1120 10:22:31.5 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught …               PyTorch's C++ log
    [rank3]: torch.AcceleratorError: CUDA error: …                                               an exception

Lines of the kernel are read from the kernel's log alone.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from muster.domain.exit.fault_lines import FAULT_LINES, Fault, FaultLine, LineSource, Role

MAX_TEXT: Final = 1000
"""Longest text of a finding; what it names stands in these first characters too."""
MAX_LINE: Final = 8192
OF_A_PROGRAM: Final = "program.exception"
"""The name of a finding that is of no row: the program raised."""
_NO_DETAILS: Final[Mapping[str, str]] = MappingProxyType({})


class _Form(StrEnum):
    NCCL = "nccl"
    TORCH_LOG = "torch_log"
    EXCEPTION = "exception"
    KERNEL = "kernel"
    OTHER = "other"


_FORMS_OF: Final[Mapping[LineSource, frozenset[_Form]]] = {
    LineSource.NCCL: frozenset({_Form.NCCL, _Form.TORCH_LOG, _Form.EXCEPTION}),
    LineSource.C10D: frozenset({_Form.TORCH_LOG, _Form.EXCEPTION}),
    LineSource.GLOO: frozenset({_Form.TORCH_LOG, _Form.EXCEPTION}),
    LineSource.CUDA: frozenset({_Form.NCCL, _Form.TORCH_LOG, _Form.EXCEPTION}),
    LineSource.LOADER: frozenset({_Form.EXCEPTION}),
    LineSource.PROGRAM: frozenset({_Form.EXCEPTION}),
    LineSource.LAUNCHER: frozenset({_Form.TORCH_LOG}),
    LineSource.KERNEL: frozenset({_Form.KERNEL}),
}
_ROWS_OF: Final[Mapping[_Form, tuple[tuple[str, tuple[str, ...], FaultLine], ...]]] = {
    form: tuple(
        (max(tokens, key=len), tokens, row)
        for row in FAULT_LINES
        if form in _FORMS_OF[row.source]
        for tokens in row.alternatives
    )
    for form in _Form
}
"""Alternatives of each form in the table's order, with the token that is searched first: it excludes most lines."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_PREFIX: Final = re.compile(
    r"(?:\[\d{1,5},(?P<mpi>\d{1,7})\]<std(?:err|out)>: ?|\[default\d{1,4}\]: ?|(?P<srun>\d{1,6}): +)?"
    r"(?:\[rank(?P<rank>\d{1,7})\]: ?)?"
)
"""Prefixes that mpirun, srun, torchrun and PyTorch put before the line of a rank."""
_NCCL_FORM: Final = re.compile(
    r"(?:\[?\d{4}-\d{2}-\d{2}[ T][\d:.,]{8,26}\]? )?(?P<host>[\w.-]{1,64}):\d{1,9}:\d{1,9} \[(?P<device>-?\d{1,3})\] "
    r"(?:[\w./-]{1,80}:\d{1,6} )?NCCL (?:WARN|INFO) "
)
_TORCH_FORM: Final = re.compile(
    r"\[?[EFW](?:\d{3,4} [\d:.]{4,24} ?(?:\d{1,9} )?)? ?[\w./-]{0,120}\.(?:cpp|cc|hpp|h|py):\d{1,6}\] "
)
_OWN_RANK: Final = re.compile(r"\[Rank (?P<rank>\d{1,7})\]| Rank (?P<late>\d{1,7})\] ")
_EXCEPTION_FORM: Final = re.compile(r"(?:what\(\): {1,2}|[A-Za-z_][\w.]{0,120}(?:Error|Exception|Interrupt)(?::|$))")
_KERNEL_FORM: Final = re.compile(r"(?:<\d{1,3}>)?(?:\[ *\d{1,9}\.\d{1,9}\] )?(?:\S+ kernel: )?(?:\[ *\d+\.\d+\] )?")


@dataclass(frozen=True, slots=True)
class LineFinding:
    """A line of a job's output or of its host's kernel log that is about a fault.

    ``name``: the row of the table. ``rank``: of the line's prefix, else of the stream; None if unknown. ``host``: as
    the line names it. ``peer``, ``port``: the other side of a connection. ``hca``: the network card. ``details``:
    further named parts of the line, such as ``sequence`` or ``xid``. ``text``: the line, shortened.
    """

    name: str
    source: LineSource
    fault: Fault
    role: Role
    text: str
    rank: int | None = None
    host: str = ""
    peer: str = ""
    port: int = 0
    hca: str = ""
    details: Mapping[str, str] = field(default_factory=lambda: _NO_DETAILS)


def read_line(
    line: str,
    *,
    rank: int | None = None,
    is_kernel: bool = False,
    is_wanted: Callable[[str], bool] = lambda _name: True,
) -> LineFinding | None:
    """Return the finding that a line states; None for most. ``rank``: of the stream that the line is from.

    ``is_wanted``: is called with the row's name before the details are read; if it returns False, there is no finding.
    """
    plain = _plain(line)
    if is_kernel:
        words = plain[_end(_KERNEL_FORM, plain) :]
        row = _row(words, _Form.KERNEL)
        return None if row is None or not is_wanted(row.name) else _finding(row, words, plain, None, "")
    prefix = _PREFIX.match(plain)
    words = plain[prefix.end() :] if prefix else plain
    form, host = _form(words)
    row = None if form is _Form.OTHER else _row(words, form)
    if row is None or not is_wanted(row.name):
        return None
    return _finding(row, words, plain, _rank_of(prefix, words, form, rank), host)


def exception_of(
    line: str, *, rank: int | None = None, is_wanted: Callable[[str], bool] = lambda _name: True
) -> LineFinding | None:
    """Return the finding of a line that ends a traceback: the table's row for it, else that the program raised."""
    plain = _plain(line)
    prefix = _PREFIX.match(plain)
    words = plain[prefix.end() :] if prefix else plain
    form, host = _form(words)
    if form is _Form.OTHER:
        return None
    own = _rank_of(prefix, words, form, rank)
    if (row := _row(words, form)) is not None:
        return _finding(row, words, plain, own, host) if is_wanted(row.name) else None
    if form is not _Form.EXCEPTION or not is_wanted(OF_A_PROGRAM):
        return None
    return LineFinding(OF_A_PROGRAM, LineSource.PROGRAM, Fault.EXCEPTION, Role.ROOT, plain[:MAX_TEXT], own)


def without_prefix(line: str) -> str:
    """Return a line without the prefix that a launcher or PyTorch put before it; leading spaces stay."""
    plain = _without_colour(line[:MAX_LINE])
    return plain[_end(_PREFIX, plain) :]


def _plain(line: str) -> str:
    return _without_colour(line[:MAX_LINE]).strip()


def _without_colour(line: str) -> str:
    return _COLOUR.sub("", line) if "\x1b" in line else line


def _end(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.match(text)
    return found.end() if found else 0


def _form(words: str) -> tuple[_Form, str]:
    if (nccl := _NCCL_FORM.match(words)) is not None:
        return _Form.NCCL, nccl["host"]
    if _TORCH_FORM.match(words):
        return _Form.TORCH_LOG, ""
    if _EXCEPTION_FORM.match(words):
        return _Form.EXCEPTION, ""
    return _Form.OTHER, ""


def _row(words: str, form: _Form) -> FaultLine | None:
    for key, tokens, row in _ROWS_OF[form]:
        if key in words and all(token in words for token in tokens):
            return row
    return None


def _rank_of(prefix: re.Match[str] | None, words: str, form: _Form, rank: int | None) -> int | None:
    """Return the rank that the prefix names, else the one that PyTorch's log names, else the stream's."""
    stated = next((each for each in prefix.group("rank", "mpi", "srun") if each), None) if prefix else None
    if stated is None and form is _Form.TORCH_LOG and (own := _OWN_RANK.search(words, 0, MAX_TEXT)) is not None:
        stated = own["rank"] or own["late"]
    return int(stated) if stated is not None else rank


def _finding(row: FaultLine, words: str, plain: str, rank: int | None, host: str) -> LineFinding:
    found = (re.search(each, words[:MAX_TEXT]) for each in row.details)
    details = {key: value for each in found if each for key, value in each.groupdict().items() if value is not None}
    port = details.pop("port", "0")
    return LineFinding(
        name=row.name,
        source=row.source,
        fault=row.fault,
        role=row.role,
        text=plain[:MAX_TEXT],
        rank=rank,
        host=host,
        peer=details.pop("peer", ""),
        port=int(port),
        hca=details.pop("hca", ""),
        details=MappingProxyType(details),
    )
