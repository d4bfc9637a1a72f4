"""XIDs and SXids in lines of the kernel log, whatever wrote the lines: /dev/kmsg, dmesg, the journal, syslog.

An XID is an error of a GPU (``NVRM: Xid``), an SXid one of an NVSwitch (``nvidia-nvswitch0: SXid``). Shapes as the
driver has them::

    NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
    NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 …)
    NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.
    nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error

Colours, control characters and bytes that are no text are skipped; a line may have any length. A record of /dev/kmsg
may have several lines.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from health.xid.kernel_lines import is_about_gpus, lines_of, plain, seconds_since_boot, text_of_record

MAX_TEXT: Final = 1000
"""Characters of a line's own text that are kept."""
OFF_THE_BUS: Final = 79
_LINES_OF_ONE_SENTENCE: Final = 3

_PCI: Final = r"(?:PCI:)?(?P<pci>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
_XID: Final = re.compile(rf"NVRM: Xid \({_PCI}[^)]{{0,64}}\): (?P<code>\d{{1,9}})(?:,|\b)", re.IGNORECASE | re.ASCII)
_SXID: Final = re.compile(
    rf"nvidia-nvswitch\d*: SXid \({_PCI}\): (?P<code>\d{{1,9}})(?:,|\b)", re.IGNORECASE | re.ASCII
)
_LOST: Final = re.compile(rf"NVRM: GPU (?:at )?{_PCI}: GPU has fallen off the bus", re.IGNORECASE | re.ASCII)
_LOST_BEGINS: Final = re.compile(rf"NVRM: The NVIDIA GPU {_PCI}(?!\S)", re.IGNORECASE | re.ASCII)
_LOST_ENDS: Final = "fallen off the bus"
_UUID: Final = re.compile(rf"NVRM: GPU at {_PCI}: (?P<uuid>GPU-[0-9a-f-]{{36}})", re.IGNORECASE | re.ASCII)
_PROCESS: Final = re.compile(r"pid='?(?P<pid>\d+)'?(?:, name=(?P<name>[^,]{1,256}))?", re.ASCII)
_UNKNOWN_PROCESS: Final = re.compile(r"\s*(?:pid='?(?:\d+|<unknown>)'?, )?(?:name=[^,]{1,256}, )?", re.ASCII)


class LogKind(StrEnum):
    XID = "xid"
    SXID = "sxid"


@dataclass(frozen=True, slots=True)
class LogFault:
    """One XID or SXid of the log.

    ``pci``: domain, bus and device in lower case (``0000:05:00``), with the function where the line has one. ``text``:
    the line's own text after code and process. ``since_boot_s``: the kernel's clock, None where the line has none.
    ``gpu_uuid``: where the driver named the GPU at this address in an earlier line.
    """

    kind: LogKind
    code: int
    pci: str
    text: str
    pid: int | None = None
    process: str | None = None
    since_boot_s: float | None = None
    gpu_uuid: str | None = None


class KernelLogReader:
    """Reader of lines that returns faults.

    It remembers the beginning of a sentence over several lines, and GPUs by address.
    """

    def __init__(self) -> None:
        self._begun: str | None = None
        self._lines_left = 0
        self._uuid_at: dict[str, str] = {}

    def read(self, line: str) -> tuple[LogFault, ...]:
        """Return the faults that ``line`` states; most lines state none, and cost a search for two substrings."""
        if not is_about_gpus(line):
            return ()
        record = text_of_record(line)
        if record is None:
            line = plain(line)
            return self._read_one(line, seconds_since_boot(line))
        since_boot_s = seconds_since_boot(line)
        return tuple(fault for each in lines_of(record) for fault in self._read_one(plain(each), since_boot_s))

    def _read_one(self, line: str, since_boot_s: float | None) -> tuple[LogFault, ...]:
        named = _UUID.search(line)
        if named is not None:
            self._uuid_at[address_of(named["pci"]).partition(".")[0]] = named["uuid"]
        return (*self._logged(line, since_boot_s), *self._lost(line, since_boot_s))

    def _logged(self, line: str, since_boot_s: float | None) -> Iterator[LogFault]:
        found = sorted((*_XID.finditer(line), *_SXID.finditer(line)), key=lambda match: match.start())
        for at, match in enumerate(found):
            until = found[at + 1].start() if at + 1 < len(found) else len(line)
            is_xid = match.re is _XID
            words = line[match.end() : until]
            process = _PROCESS.search(words[:MAX_TEXT])
            pci = address_of(match["pci"])
            yield LogFault(
                kind=LogKind.XID if is_xid else LogKind.SXID,
                code=int(match["code"]),
                pci=pci,
                text=_UNKNOWN_PROCESS.sub("", words, count=1).strip()[:MAX_TEXT],
                pid=int(process["pid"]) if process is not None else None,
                process=_name_of(process),
                since_boot_s=since_boot_s,
                gpu_uuid=self._uuid_at.get(pci.partition(".")[0]) if is_xid else None,
            )

    def _lost(self, line: str, since_boot_s: float | None) -> Iterator[LogFault]:
        """Yield the fault of a lost GPU that is stated without an XID: in one line, or in a sentence over three."""
        match = _LOST.search(line)
        pci = address_of(match["pci"]) if match is not None else None
        begins = _LOST_BEGINS.search(line)
        if begins is not None:
            self._begun, self._lines_left = address_of(begins["pci"]), _LINES_OF_ONE_SENTENCE
        if self._begun is not None:
            if pci is None and _LOST_ENDS in line and _XID.search(line) is None:
                pci = self._begun
            self._lines_left -= 1
            if pci == self._begun or self._lines_left == 0:
                self._begun = None
        if pci is not None:
            pci = pci.partition(".")[0]
            text = "GPU has fallen off the bus."
            uuid = self._uuid_at.get(pci)
            yield LogFault(LogKind.XID, OFF_THE_BUS, pci, text, since_boot_s=since_boot_s, gpu_uuid=uuid)


def process_in(words: str) -> str | None:
    """Return the name of the process in the words after an XID's code; None where they name none."""
    return _name_of(_PROCESS.search(words[:MAX_TEXT]))


def _name_of(process: re.Match[str] | None) -> str | None:
    name = process["name"] if process is not None else None
    return name.strip() if name and name.strip() != "<unknown>" else None


def address_of(pci: str) -> str:
    """Return a PCI address with a domain of four digits, in lower case.

    NVML writes eight digits, some lines of the log none.
    """
    *domain, bus, device = pci.lower().split(":")
    return f"{int(domain[0], 16) if domain else 0:04x}:{bus}:{device}"
