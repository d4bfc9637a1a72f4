"""The newest faults of this host's kernel log, read once: from /dev/kmsg, else from the journal.

Nothing is kept or followed. Both readings have an end: the kernel's buffer by its size, the journal by time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agents.kernel_log.journal import Journal
from agents.kernel_log.journalctl import HOSTS_OWN, JournalPlace
from agents.kernel_log.kernel_log import KMSG, KernelLog
from agents.probes.interface import ProbeEvent
from muster.domain.ids import GpuUuid

JOURNAL_WAIT_S: Final = 3.0
_TURN_S: Final = 0.25
_MOST_TURNS: Final = 200


@dataclass(frozen=True, slots=True)
class RecentFaults:
    """Faults in the order of the log. ``remark``: why it could not be read, or not to its end; empty where it was."""

    events: tuple[ProbeEvent, ...] = ()
    remark: str = ""


def recent_faults(
    gpu_at: Callable[[str], GpuUuid | None],
    boot_id: str,
    since_ms: int,
    *,
    kmsg: Path = KMSG,
    journal: JournalPlace = HOSTS_OWN,
) -> RecentFaults:
    """Return the faults since ``since_ms`` (1970, this host's clock). Never raises for a log that is closed to us."""
    remark = ""
    try:
        found = _of_kmsg(gpu_at, boot_id, kmsg)
    except OSError as closed:
        of_journal, why = _of_journal(gpu_at, boot_id, journal)
        if of_journal is None:
            return RecentFaults(remark=f"the kernel's log was not read: {kmsg}: {closed.strerror}; {why}")
        found, remark = of_journal, f"the kernel's log was not read to its end: {why}" if why else ""
    return RecentFaults(tuple(each for each in found if each.at_ms >= since_ms), remark)


def _of_kmsg(gpu_at: Callable[[str], GpuUuid | None], boot_id: str, path: Path) -> list[ProbeEvent]:
    found: list[ProbeEvent] = []
    with KernelLog(gpu_at, boot_id, path=path) as log:
        for _ in range(_MOST_TURNS):  # a storm that never ends must not hold the caller
            if not (events := log.events(0)):
                break
            found += events
    return found


def _of_journal(
    gpu_at: Callable[[str], GpuUuid | None], boot_id: str, place: JournalPlace
) -> tuple[list[ProbeEvent] | None, str]:
    """Return its faults, with the reason if they are not all; None if it shows this user no line of the kernel.

    journalctl follows the log, so its end is a turn in which no further line came.
    """
    found: list[ProbeEvent] = []
    newest: str | None = None
    until_s = time.monotonic() + JOURNAL_WAIT_S
    try:
        log = Journal(gpu_at, boot_id, place)
    except OSError as fault:
        return None, f"{place.program}: {fault.strerror}"
    with log:
        while time.monotonic() < until_s:
            found += log.events(_TURN_S)
            if newest is not None and log.newest == newest:
                return found, ""
            newest = log.newest
    if newest is None:
        return None, f"{place.program} shows no line of the kernel"
    return found, f"{place.program}: its newest lines were not read within {JOURNAL_WAIT_S:g} s"
