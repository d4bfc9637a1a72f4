"""The kernel log as journald keeps it, for hosts where /dev/kmsg cannot be read: ``journalctl -o json --follow``.

The rules are the same as in ``kernel_log``: this boot alone, the kernel's own lines alone, the driver's name at their
beginning, and each fault one event under one id across restarts of the agent. The journal's cursor is kept next to the
spool, after the events read so far are durable. journald records both clocks as it takes a line, and the kernel's clock
of the line itself (``_SOURCE_MONOTONIC_TIMESTAMP``): their difference gives the time of the fault, also where the line
was taken minutes later.

journalctl is a child process without a shell. One that ends is started again after a pause that grows; lines of other
boots and other programs cost a check each. Fields: systemd.journal-fields(7); bytes in JSON: systemd's journal export.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import structlog

from agents import host_facts
from agents.kernel_log.journalctl import HOSTS_OWN, Journalctl, JournalPlace, plain_boot_id
from agents.kernel_log.kernel_log import (
    KEEP_EVERY_S,
    MAX_EVENTS,
    event_of,
    host_event_of,
    nic_event_of,
)
from agents.kernel_log.records import is_of_a_driver
from agents.probes.interface import ProbeEvent
from health.host_log import HostLogReader
from health.nic_log import read_nic
from health.xid.kernel_lines import lines_of
from health.xid.kernel_log import KernelLogReader
from muster.domain.ids import GpuUuid
from muster.durable import write_durably

_KERNEL: Final = "0"
"""The syslog facility of the kernel's own messages: programs that write into /dev/kmsg have another."""
_log = structlog.get_logger(__name__)


class JournalPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest line that was read in this boot."""

    boot_id: str
    cursor: str


class Journal:
    """The journal of this boot. Raises OSError where journalctl cannot be started at all."""

    def __init__(
        self,
        gpu_at: Callable[[str], GpuUuid | None],
        boot_id: str,
        place: JournalPlace = HOSTS_OWN,
        *,
        position_file: Path | None = None,
        wall_ms: Callable[[], int] = host_facts.wall_ms,
        clock_s: Callable[[], float] = host_facts.monotonic_s,
    ) -> None:
        self._gpu_at = gpu_at
        self._boot_id = boot_id
        self._position_file = position_file
        self._wall_ms = wall_ms
        self._clock_s = clock_s
        self._reader = KernelLogReader()
        self._host_reader = HostLogReader()
        self._newest = _kept_cursor(position_file, boot_id)
        self._kept = self._newest
        self._kept_s = clock_s()
        self._journalctl = Journalctl(place, boot_id, cursor=lambda: self._newest, clock_s=clock_s)
        self._journalctl.on_refused = self._begin_again

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def newest(self) -> str | None:
        """The cursor of the newest line of this boot that was read."""
        return self._newest

    def close(self) -> None:
        self._journalctl.close()

    def events(self, timeout_s: float) -> tuple[ProbeEvent, ...]:
        """Wait up to ``timeout_s`` for lines, and return about ``MAX_EVENTS`` faults at most. Each is given once."""
        found: list[ProbeEvent] = []
        for line in self._journalctl.lines(timeout_s):
            found += self._events_of(line)
            if len(found) >= MAX_EVENTS:
                break
        return tuple(found)

    def keep_position(self, *, now: bool = True) -> None:
        """Store the position once the events read so far are durable elsewhere, as ``KernelLog.keep_position`` does."""
        is_due = now or self._clock_s() - self._kept_s >= KEEP_EVERY_S
        if self._position_file is None or self._newest is None or self._newest == self._kept or not is_due:
            return
        self._kept_s = self._clock_s()
        try:
            write_durably(self._position_file, msgspec.json.encode(JournalPosition(self._boot_id, self._newest)))
        except OSError as error:
            _log.warning("kernel_log_position_not_kept", path=str(self._position_file), fault=error.strerror)
        else:
            self._kept = self._newest

    def _begin_again(self) -> None:
        """Read all of this boot again; its events have the same ids as before."""
        self._newest = None

    def _events_of(self, line: bytes) -> Iterator[ProbeEvent]:
        try:
            entry = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _log.warning("kernel_journal_line_not_read", begins=line[:80].decode("utf-8", "replace"))
            return
        if not isinstance(entry, dict) or not self._is_of_this_boot(entry):
            return
        self._journalctl.has_reported = True
        cursor = entry.get("__CURSOR")
        if isinstance(cursor, str) and cursor:
            self._newest = cursor
        words = _words_of(entry.get("MESSAGE"))
        lines = () if words is None else lines_of(words)
        if entry.get("SYSLOG_FACILITY") != _KERNEL or not is_of_a_driver(lines):
            return
        since_boot_us = _number(entry, "_SOURCE_MONOTONIC_TIMESTAMP")
        taken_us = _number(entry, "__MONOTONIC_TIMESTAMP")
        at_us = since_boot_us if since_boot_us is not None else taken_us
        for fault in self._reader.read(f"6,0,{at_us or 0},-;{words}"):
            origin = f"journal:{at_us}:{fault.pci}:{fault.kind}:{fault.code}"
            yield event_of(fault, self._gpu_at, origin=origin, at_ms=self._at_ms(entry, since_boot_us, taken_us))
        nic = read_nic(lines[0])
        if nic is not None:
            yield nic_event_of(nic, origin=f"journal:{at_us}", at_ms=self._at_ms(entry, since_boot_us, taken_us))
        own = self._host_reader.read(lines[0], (at_us or 0) / 1e6)
        if own is not None:
            yield host_event_of(own, origin=f"journal:{at_us}", at_ms=self._at_ms(entry, since_boot_us, taken_us))

    def _is_of_this_boot(self, entry: Mapping[str, Any]) -> bool:
        boot_id = entry.get("_BOOT_ID")
        is_kernels = entry.get("_TRANSPORT", "kernel") == "kernel"
        return is_kernels and isinstance(boot_id, str) and plain_boot_id(boot_id) == plain_boot_id(self._boot_id)

    def _at_ms(self, entry: Mapping[str, Any], since_boot_us: int | None, taken_us: int | None) -> int:
        """Return the time of the line, never after now."""
        wall_us = _number(entry, "__REALTIME_TIMESTAMP")
        now_ms = self._wall_ms()
        if wall_us is None:
            return now_ms
        waited_us = 0 if since_boot_us is None or taken_us is None else max(0, taken_us - since_boot_us)
        return min(now_ms, max(0, wall_us - waited_us) // 1000)


def open_journal(
    gpu_at: Callable[[str], GpuUuid | None],
    boot_id: str,
    place: JournalPlace = HOSTS_OWN,
    *,
    position_file: Path | None = None,
) -> Journal | None:
    """Return None, with a logged reason, where journalctl cannot be started: NVML's events continue without it."""
    try:
        return Journal(gpu_at, boot_id, place, position_file=position_file)
    except OSError as error:
        advice = "install systemd's journalctl, or let the agent read /dev/kmsg; XIDs come from NVML alone now"
        _log.warning("kernel_journal_cannot_be_read", program=place.program, fault=error.strerror, suggestion=advice)
        return None


def _words_of(message: object) -> str | None:
    """Return the message with its backslashes as /dev/kmsg has them, None where there is none.

    journald has replaced the kernel's escapes by the bytes themselves. Its JSON has bytes as a list of numbers, and a
    field that is too large as null.
    """
    if isinstance(message, list) and all(isinstance(each, int) and 0 <= each <= 255 for each in message):
        message = bytes(message).decode("utf-8", "replace")
    return message.replace("\\", r"\x5c") if isinstance(message, str) else None


def _number(entry: Mapping[str, Any], name: str) -> int | None:
    value = entry.get(name)
    is_one = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18
    return int(str(value)) if is_one else None


def _kept_cursor(file: Path | None, boot_id: str) -> str | None:
    if file is None:
        return None
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=JournalPosition)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("kernel_log_position_not_read", path=str(file), fault=str(error))
        return None
    return kept.cursor if kept.boot_id == boot_id else None
