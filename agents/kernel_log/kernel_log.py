"""The kernel log of this host, followed: XIDs from before the agent ran, or that NVML never reports (such as 79).

/dev/kmsg holds the records of this boot alone, so a reboot replays nothing. A record's number and clock make the
event's id: an XID is one event across all restarts of the agent. The position in the log is kept next to the spool,
after the events read so far are durable; without it everything is reported again, which does no harm.

Only the kernel's own messages count, and only where the driver's name begins the record: otherwise a program that may
write into the log, or that names a file of its own with a line break, could condemn a GPU. Records from before the
agent read are dated by the kernel's clock; later ones by ours, since the kernel's clock drifts by seconds in a week.

An SXid is an event of the host, about no GPU: an NVSwitch carries the links of all of them. So are messages of network
cards' drivers, and the kernel's about the host's own memory, PCIe and disks.
"""

import os
import re
import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog

from agents import host_facts
from agents.kernel_log.records import KmsgRecord, RecordJoiner, is_of_a_driver, read_record
from agents.probes.interface import HostInventory, ProbeError, ProbeEvent
from health.host_log import HostFault, HostLogReader
from health.nic_log import NicFault, read_nic
from health.xid.kernel_lines import lines_of, seconds_since_boot
from health.xid.kernel_log import KernelLogReader, LogFault, LogKind, address_of
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.evidence.state_readings import SINCE_BOOT_S
from muster.domain.ids import GpuUuid
from muster.durable import write_durably

KMSG: Final = Path("/dev/kmsg")
MAX_EVENTS: Final = 200
"""Most events of one turn: a storm is reported in several reports."""
_RECORD_BYTES: Final = 64 << 10
"""More than the kernel's longest record."""
_ASK_AGAIN_S: Final = 60.0
KEEP_EVERY_S: Final = 10.0
_UNNAMED: Final = "of a GPU at {} that the driver does not name: "
_NOT_NAMED: Final = re.compile(_UNNAMED.format(r"(\S{1,32})"), re.ASCII)
_log = structlog.get_logger(__name__)


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest record that was read in this boot."""

    boot_id: str
    sequence: int


@dataclass(slots=True)
class GpuAddresses:
    """GPUs by PCI address. One that the driver no longer names keeps its place until another takes it.

    ``ask`` it before the first fault: a GPU that fell off the bus is not named any longer.
    """

    identify: Callable[[], HostInventory]
    clock_s: Callable[[], float] = host_facts.monotonic_s
    _known: dict[str, GpuUuid] = field(default_factory=dict)
    _read_s: float | None = None

    def at(self, pci: str) -> GpuUuid | None:
        """Return the GPU, None where the driver names none; the driver is asked again at most once a minute."""
        place = pci.partition(".")[0]
        now_s = self.clock_s()
        is_due = self._read_s is None or now_s - self._read_s >= _ASK_AGAIN_S
        if place not in self._known and is_due:
            self.ask()
        return self._known.get(place)

    def ask(self) -> None:
        self._read_s = self.clock_s()
        try:
            inventory = self.identify()
        except ProbeError as error:
            _log.info("gpus_of_the_kernel_log_not_named", fault=str(error))
            return
        for gpu in inventory.gpus:
            if gpu.pci_bus_id is not None:
                self._known[address_of(gpu.pci_bus_id).partition(".")[0]] = gpu.uuid


class KernelLog:
    """The log of this boot. Raises OSError where it cannot be opened (needs CAP_SYSLOG, or kernel.dmesg_restrict=0)."""

    def __init__(
        self,
        gpu_at: Callable[[str], GpuUuid | None],
        boot_id: str,
        *,
        path: Path = KMSG,
        position_file: Path | None = None,
        wall_ms: Callable[[], int] = host_facts.wall_ms,
        clock_s: Callable[[], float] = host_facts.monotonic_s,
    ) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._joiner = RecordJoiner()
        self._reader = KernelLogReader()
        self._host_reader = HostLogReader()
        self._gpu_at = gpu_at
        self._boot_id = boot_id
        self._position_file = position_file
        self._wall_ms = wall_ms
        self._clock_s = clock_s
        self._newest = _kept_position(position_file, boot_id)
        self._kept = self._newest
        self._kept_s = clock_s()
        self._is_backlog = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def events(self, timeout_s: float) -> tuple[ProbeEvent, ...]:
        """Wait up to ``timeout_s`` for a record, and return all faults there, up to ``MAX_EVENTS``.

        Each is given once.
        """
        self._poll.poll(timeout_s * 1000)
        found: list[ProbeEvent] = []
        for record in self._records():
            found += self._events_of(record)
            if len(found) >= MAX_EVENTS:
                break
        return tuple(found)

    def keep_position(self, *, now: bool = True) -> None:
        """Store the position once the events read so far are durable elsewhere.

        The agent's next process begins after it. Without ``now`` each few seconds: other programs' lines are no news. A
        full disk is logged, and the next process reads more than necessary.
        """
        is_due = now or self._clock_s() - self._kept_s >= KEEP_EVERY_S
        if self._position_file is None or self._newest <= self._kept or not is_due:
            return
        self._kept_s = self._clock_s()
        try:
            write_durably(self._position_file, msgspec.json.encode(Position(self._boot_id, self._newest)))
        except OSError as error:
            _log.warning("kernel_log_position_not_kept", path=str(self._position_file), fault=error.strerror)
        else:
            self._kept = self._newest

    def _records(self) -> Iterator[KmsgRecord]:
        while True:
            try:
                raw = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                raw = b""
            except BrokenPipeError:  # the kernel overwrote unread records: reading continues with the oldest left
                _log.warning("kernel_log_overran", after_record=self._newest)
                continue
            record = read_record(raw)
            whole = self._joiner.flush() if not raw else None if record is None else self._joiner.push(record)
            if whole is not None:
                yield whole
            if not raw:
                self._is_backlog = False
                return

    def _events_of(self, record: KmsgRecord) -> Iterator[ProbeEvent]:
        head, sequence = record.head, record.sequence
        lines = lines_of(record.text)
        is_drivers = record.is_kernels and is_of_a_driver(lines)
        # A record that was read before may begin a sentence, or name a GPU.
        faults = self._reader.read(f"{head};{record.text}") if is_drivers else ()
        if sequence <= self._newest:
            return
        self._newest = record.last_sequence
        if not is_drivers:
            return
        for fault in faults:
            since_boot_s = fault.since_boot_s or 0.0
            origin = f"kmsg:{sequence}:{fault.pci}:{fault.kind}:{fault.code}:{int(since_boot_s * 1e6)}"
            yield event_of(fault, self._gpu_at, origin=origin, at_ms=self._at_ms(since_boot_s))
        nic = read_nic(lines[0])
        since_boot_s = seconds_since_boot(f"{head};") or 0.0
        if nic is not None:
            yield nic_event_of(nic, origin=f"kmsg:{sequence}", at_ms=self._at_ms(since_boot_s))
        own = self._host_reader.read(lines[0], since_boot_s)
        if own is not None:
            yield host_event_of(own, origin=f"kmsg:{sequence}", at_ms=self._at_ms(since_boot_s))

    def _at_ms(self, since_boot_s: float) -> int:
        ago_ms = max(0, int((self._clock_s() - since_boot_s) * 1000)) if self._is_backlog else 0
        return self._wall_ms() - ago_ms


def event_of(fault: LogFault, gpu_at: Callable[[str], GpuUuid | None], *, origin: str, at_ms: int) -> ProbeEvent:
    """Return the event of a fault: an SXid's is about no GPU, an XID's about the GPU at its address.

    The driver or an earlier line names that GPU.
    """
    is_xid = fault.kind is LogKind.XID
    named = GpuUuid(fault.gpu_uuid) if fault.gpu_uuid is not None else None
    uuid = (gpu_at(fault.pci) or named) if is_xid else None
    whose = "" if uuid is not None or not is_xid else _UNNAMED.format(fault.pci)
    return ProbeEvent(
        origin=origin,
        kind=EventKind.XID if is_xid else EventKind.SXID,
        source=Source.KERNEL_LOG,
        at_ms=at_ms,
        gpu_uuid=uuid,
        code=fault.code,
        text=f"{whose}{fault.text}",
        values={SINCE_BOOT_S: fault.since_boot_s} if fault.since_boot_s is not None else {},
    )


def unnamed_place(text: str) -> str | None:
    """Return the PCI address in the text of an XID whose GPU is unknown; None for any other."""
    found = _NOT_NAMED.match(text)
    return None if found is None else found[1]


def nic_event_of(fault: NicFault, *, origin: str, at_ms: int) -> ProbeEvent:
    """Return an event about the host. ``origin``: the line of the log."""
    return ProbeEvent(
        origin=f"{origin}:{fault.place}:nic:{fault.kind.name}",
        kind=EventKind.NIC_DRIVER,
        source=Source.KERNEL_LOG,
        at_ms=at_ms,
        text=fault.text,
    )


def host_event_of(fault: HostFault, *, origin: str, at_ms: int) -> ProbeEvent:
    """Return an event about the host. ``origin``: the line of the log."""
    return ProbeEvent(
        origin=f"{origin}:{fault.place}:host:{fault.kind.name}",
        kind=EventKind.HOST_LOG,
        source=Source.KERNEL_LOG,
        at_ms=at_ms,
        text=fault.text,
    )


def open_kernel_log(
    gpu_at: Callable[[str], GpuUuid | None], boot_id: str, *, path: Path = KMSG, position_file: Path | None = None
) -> KernelLog | None:
    """Return the log; None, with a logged reason, where this process may not read it.

    NVML's events continue without it.
    """
    try:
        return KernelLog(gpu_at, boot_id, path=path, position_file=position_file)
    except OSError as error:
        advice = (
            "the agent needs CAP_SYSLOG and its unit DeviceAllow=/dev/kmsg r; without it the journal may report XIDs"
        )
        _log.warning("kernel_log_cannot_be_read", path=str(path), fault=error.strerror, suggestion=advice)
        return None


def logged_until_now(inventory: HostInventory, boot_id: str, *, path: Path = KMSG) -> tuple[ProbeEvent, ...] | None:
    """Return the faults that this boot's log still holds, at once; None where it cannot be read."""
    log = open_kernel_log(GpuAddresses(lambda: inventory).at, boot_id, path=path)
    if log is None:
        return None
    found: list[ProbeEvent] = []
    with log:
        while events := log.events(0):
            found += events
    return tuple(found)


def _kept_position(file: Path | None, boot_id: str) -> int:
    if file is None:
        return -1
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=Position)
    except FileNotFoundError:
        return -1
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("kernel_log_position_not_read", path=str(file), fault=str(error))
        return -1
    return kept.sequence if kept.boot_id == boot_id else -1
