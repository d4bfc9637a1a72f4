"""The kernel log of this host, followed: XIDs from before anybody listened, or that NVML never tells (such as 79).

/dev/kmsg holds the records of this boot alone, so a reboot replays nothing. A record's number and clock make the
event's id: whatever lives the agent has, an XID is one event. Where the agent stopped reading is kept beside its spool,
after what it read is durable; without it everything is told once more, which does no harm.

SXids of NVSwitches are no events yet: they concern a fabric, and nothing judges one so far.
"""

import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog

from agents import host_facts
from agents.probes.interface import HostInventory, ProbeError, ProbeEvent
from health.xid.kernel_log import KernelLogReader, LogFault, LogKind, address_of
from muster.domain.evidence import EventKind, Source
from muster.domain.ids import GpuUuid
from muster.durable import write_durably

KMSG: Final = Path("/dev/kmsg")
MAX_EVENTS: Final = 200
"""How many events one turn gives: a storm is told in several reports."""
_RECORD_BYTES: Final = 64 << 10
"""More than the kernel's longest record."""
_ASK_AGAIN_S: Final = 60.0
_log = structlog.get_logger(__name__)


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest record that was read in this boot."""

    boot_id: str
    sequence: int


def monotonic_s() -> float:
    """The clock that the kernel's records are told by."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(slots=True)
class GpuAddresses:
    """Which GPU is at a PCI address. One that the driver no longer names keeps its place until another takes it."""

    identify: Callable[[], HostInventory]
    clock_s: Callable[[], float] = monotonic_s
    _known: dict[str, GpuUuid] = field(default_factory=dict)
    _asked_s: float | None = None

    def at(self, pci: str) -> GpuUuid | None:
        """None where the driver names none; it is asked again at most once a minute."""
        place = pci.partition(".")[0]
        now_s = self.clock_s()
        is_due = self._asked_s is None or now_s - self._asked_s >= _ASK_AGAIN_S
        if place not in self._known and is_due:
            self._asked_s = now_s
            self._ask()
        return self._known.get(place)

    def _ask(self) -> None:
        try:
            inventory = self.identify()
        except ProbeError as error:
            _log.info("gpus_of_the_kernel_log_not_named", fault=str(error))
            return
        for gpu in inventory.gpus:
            if gpu.pci_bus_id is not None:
                self._known[address_of(gpu.pci_bus_id).partition(".")[0]] = gpu.uuid


class KernelLog:
    """Raises OSError where the log cannot be opened (it wants CAP_SYSLOG, or kernel.dmesg_restrict=0)."""

    def __init__(
        self,
        gpu_at: Callable[[str], GpuUuid | None],
        boot_id: str,
        *,
        path: Path = KMSG,
        position_file: Path | None = None,
        wall_ms: Callable[[], int] = host_facts.wall_ms,
        clock_s: Callable[[], float] = monotonic_s,
    ) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._reader = KernelLogReader()
        self._gpu_at = gpu_at
        self._boot_id = boot_id
        self._position_file = position_file
        self._wall_ms = wall_ms
        self._clock_s = clock_s
        self._newest = _kept_position(position_file, boot_id)
        self._kept = self._newest

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def events(self, timeout_s: float) -> tuple[ProbeEvent, ...]:
        """Waits up to ``timeout_s`` for a record; all XIDs that are there, up to ``MAX_EVENTS``. Each is given once."""
        self._poll.poll(timeout_s * 1000)
        found: list[ProbeEvent] = []
        for record in self._records():
            found += self._events_of(record)
            if len(found) >= MAX_EVENTS:
                break
        return tuple(found)

    def keep_position(self) -> None:
        """What was read is durable elsewhere: the next life of the agent begins after it."""
        if self._position_file is not None and self._newest > self._kept:
            write_durably(self._position_file, msgspec.json.encode(Position(self._boot_id, self._newest)))
            self._kept = self._newest

    def _records(self) -> Iterator[bytes]:
        while True:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # the kernel wrote over what we had not read: it goes on with the oldest it has
                _log.warning("kernel_log_overran", after_record=self._newest)
                continue
            if not record:
                return
            yield record

    def _events_of(self, record: bytes) -> Iterator[ProbeEvent]:
        line = record.decode("utf-8", "replace").partition("\n")[0]
        sequence = _sequence_of(line)
        faults = self._reader.read(line)  # one that was read before may begin a sentence, or name a GPU
        if sequence is None or sequence <= self._newest:
            return
        self._newest = sequence
        for fault in faults:
            if fault.kind is LogKind.XID:
                yield self._event(fault, sequence)

    def _event(self, fault: LogFault, sequence: int) -> ProbeEvent:
        uuid = self._gpu_at(fault.pci) or (GpuUuid(fault.gpu_uuid) if fault.gpu_uuid is not None else None)
        since_boot_s = fault.since_boot_s or 0.0
        ago_ms = max(0, int((self._clock_s() - since_boot_s) * 1000))
        whose = "" if uuid is not None else f" (of a GPU at {fault.pci} that the driver does not name)"
        return ProbeEvent(
            origin=f"kmsg:{sequence}:{fault.pci}:xid:{fault.code}:{int(since_boot_s * 1e6)}",
            kind=EventKind.XID,
            source=Source.KERNEL_LOG,
            at_ms=self._wall_ms() - ago_ms,
            gpu_uuid=uuid,
            code=fault.code,
            text=f"{fault.text}{whose}",
        )


def open_kernel_log(
    gpu_at: Callable[[str], GpuUuid | None], boot_id: str, *, path: Path = KMSG, position_file: Path | None = None
) -> KernelLog | None:
    """None, and said why, where this process may not read it: NVML's events go on without it."""
    try:
        return KernelLog(gpu_at, boot_id, path=path, position_file=position_file)
    except OSError as error:
        advice = "the agent needs CAP_SYSLOG and its unit DeviceAllow=/dev/kmsg r; XIDs come from NVML alone now"
        _log.warning("kernel_log_cannot_be_read", path=str(path), fault=error.strerror, suggestion=advice)
        return None


def logged_until_now(inventory: HostInventory, boot_id: str, *, path: Path = KMSG) -> tuple[ProbeEvent, ...]:
    """The XIDs that this boot's log still holds, at once; none where it cannot be read."""
    log = open_kernel_log(GpuAddresses(lambda: inventory).at, boot_id, path=path)
    if log is None:
        return ()
    found: list[ProbeEvent] = []
    with log:
        while events := log.events(0):
            found += events
    return tuple(found)


def _sequence_of(line: str) -> int | None:
    """The second field of a record: ``6,339,5140900,-;words``. None where the line is none."""
    fields = line.split(",", 2)
    return int(fields[1]) if len(fields) > 2 and fields[1].isascii() and fields[1].isdigit() else None


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
