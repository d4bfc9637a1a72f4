"""``muster xid`` explains an XID, or the XIDs and SXids in the lines of a kernel log. It needs no server and no GPU."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import AsJson, json_of, print_line
from muster.cli.framework.tables import paragraphs

if TYPE_CHECKING:
    from health.xid.kernel_log import LogFault
    from health.xid.reading import ErrorReading

_MAX_LINE_BYTES: Final = 4 << 20
_EXAMPLES: Final = "such as `muster xid 95`, or `dmesg | muster xid`"


def xid(
    code: Annotated[
        int | None, typer.Argument(min=1, max=999_999, help="An XID's number; without it, a log's lines on stdin.")
    ] = None,
    driver: Annotated[
        int | None,
        typer.Option(min=300, max=9999, help="Driver branch, such as 580: it says how NVLink errors are laid out."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> int:
    """Explain an XID, or the XIDs in the lines of a kernel log.

    With --json one object a line, SXids of NVSwitches too: `dmesg | muster xid --json`. Lines without one give nothing.
    An XID's own text (NVLink registers and units, resets of a memory error) takes precedence over its row in the
    catalogue. An unknown XID is watched: it never asks for a reset or a reboot.
    """
    if code is not None:
        from health.xid.reading import read_xid

        found = read_xid(code, driver_branch=driver)
        lines = [json_of(_document(code, found) | _row_of(code))] if as_json else _page(code, found)
        print_line("\n".join(lines))
        return Exit.OK
    if sys.stdin is None or sys.stdin.isatty():
        raise CommandError("neither a code nor lines of a log", f"Name one or pipe them in, {_EXAMPLES}.", Exit.USAGE)
    for fault, reading in _read_stdin(driver):
        document = _document(fault.code, reading, fault)
        print_line(json_of(document) if as_json else _line(fault, reading))
    return Exit.OK


def _read_stdin(driver: int | None) -> "Iterator[tuple[LogFault, ErrorReading]]":
    """Yield faults line by line, to follow ``dmesg --follow``; a line longer than 4 MiB is read in pieces."""
    from health.xid.kernel_log import KernelLogReader
    from health.xid.reading import read_fault

    reader = KernelLogReader()
    while line := sys.stdin.buffer.readline(_MAX_LINE_BYTES):
        for fault in reader.read(line.decode("utf-8", "replace")):
            yield fault, read_fault(fault, driver_branch=driver)


def _document(code: int, reading: "ErrorReading", fault: "LogFault | None" = None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "code": code,
        "kind": fault.kind.value if fault is not None else "xid",
        "pci": fault.pci if fault is not None else None,
        "class": reading.xid_class.value,
        "action": reading.action.value,
        "scope": reading.scope,
        "source": reading.source,
        "name": reading.name,
    }
    if fault is not None:
        told = {
            "gpu_uuid": fault.gpu_uuid,
            "pid": fault.pid,
            "process": fault.process,
            "since_boot_s": fault.since_boot_s,
            "text": fault.text,
        }
        document |= {name: value for name, value in told.items() if value is not None}
    return document | dict(reading.decoded)


def _row_of(code: int) -> dict[str, Any]:
    """Return the catalogue's facts beyond the error's class."""
    from health.xid.catalogue import entry_of

    entry = entry_of(code)
    return {
        "severity": entry.severity.name,
        "threatens_correctness": entry.threatens_correctness,
        "nvidia_class": entry.nvidia.value if entry.nvidia is not None else None,
        "announced_by_154_since": entry.announced_by_154_since,
        "why": entry.why,
    }


def _page(code: int, reading: "ErrorReading") -> Iterator[str]:
    return paragraphs(list(_facts(code, reading)), is_wide=False)


def _facts(code: int, reading: "ErrorReading") -> Iterator[str]:
    row = _row_of(code)
    yield f"XID {code}: {reading.name}"
    yield f"  class     {reading.xid_class}" + (
        f" (NVIDIA: {row['nvidia_class']})" if row["nvidia_class"] not in {None, reading.xid_class.value} else ""
    )
    yield f"  action    {reading.action}"
    yield f"  severity  {row['severity'].lower()}" + (
        "; what ran on the GPU may have computed with wrong data" if row["threatens_correctness"] else ""
    )
    yield f"  GPUs      {'all' if reading.scope == 'all' else reading.scope.replace(',', ', ')}"
    since = row["announced_by_154_since"]
    if since is not None:
        yield "  driver    " + (f"from R{since} on " if since else "") + "an XID 154 says what the driver asks for"
    yield f"  source    {reading.source}"
    if row["why"]:
        yield f"  why       {row['why']}"


def _line(fault: "LogFault", reading: "ErrorReading") -> str:
    details = "".join(f", {name} {value}" for name, value in _details(reading))
    who = f" ({fault.process or 'a process'}, pid {fault.pid})" if fault.pid is not None else ""
    return f"{fault.pci}  {fault.kind.upper()} {fault.code}  {reading.action}: {reading.name}{details}{who}"


def _details(reading: "ErrorReading") -> Iterator[tuple[str, object]]:
    for name in ("unit", "memory", "fbpa", "partition", "subpartition", "link", "gpc", "tpc", "follow_up"):
        if name in reading.decoded:
            yield name.replace("_", " "), reading.decoded[name]
    for bit in reading.link.bits if reading.link is not None else ():
        yield f"register {bit.register} bit", f"{bit.bit} ({bit.meaning})"
