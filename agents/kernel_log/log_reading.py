"""The loop that follows the kernel log, in /dev/kmsg or in the journal."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agents.kernel_log.journal import Journal, open_journal
from agents.kernel_log.journalctl import JournalPlace
from agents.kernel_log.kernel_log import KMSG, GpuAddresses, KernelLog, open_kernel_log
from agents.observer import Observer
from agents.probes.interface import Probe
from muster.domain.gpu.signal_groups import SignalGroup

EVENT_WAIT_S: Final = 1.0
EARLY_PAUSE_S: Final = 0.25
"""Pause after a wait for events that ended early with none: a probe that cannot wait must not be called in a spin."""
POSITION_FILE: Final = "kernel_log.json"
JOURNAL_POSITION_FILE: Final = "kernel_journal.json"


@dataclass(frozen=True, slots=True)
class LogSource:
    """Sources of the log: the first of the two that is named and can be read is followed."""

    kmsg: Path | None = None
    journal: JournalPlace | None = None


def log_source_of(setting: str, kmsg: Path = KMSG) -> LogSource:
    """Return the sources. ``setting``: ``Settings.kernel_log``."""
    match setting:
        case "auto":
            return LogSource(kmsg, JournalPlace())
        case "kmsg":
            return LogSource(kmsg)
        case "journal":
            return LogSource(journal=JournalPlace())
        case path:
            return LogSource(journal=JournalPlace(Path(path)))


class LogReading:
    """State of the loop. Each run opens the log at its stored position: a fault ends one run alone.

    ``folder``: the folder of the position files.
    """

    def __init__(self, probe: Probe, folder: Path, boot_id: str, source: LogSource) -> None:
        self._addresses = GpuAddresses(probe.identify)
        self._folder = folder
        self._boot_id = boot_id
        self._source = source

    def run(self, observer: Observer, stop: threading.Event) -> None:
        """Follow the log until ``stop``. Where none can be opened, that is logged once, and the loop idles."""
        self._addresses.ask()
        log = self._opened()
        if log is None:
            stop.wait()
            return
        with log:
            observer.signs.saw(SignalGroup.KERNEL_LOG)
            while not stop.is_set():
                began_s = time.monotonic()
                num_told = observer.keep(log.events(EVENT_WAIT_S))
                log.keep_position(now=num_told > 0)
                observer.signs.saw(SignalGroup.KERNEL_LOG)
                if num_told == 0 and time.monotonic() - began_s < EVENT_WAIT_S / 2:
                    stop.wait(EARLY_PAUSE_S)

    def _opened(self) -> KernelLog | Journal | None:
        kmsg, journal, gpu_at = self._source.kmsg, self._source.journal, self._addresses.at
        log: KernelLog | Journal | None = None
        if kmsg is not None:
            log = open_kernel_log(gpu_at, self._boot_id, path=kmsg, position_file=self._folder / POSITION_FILE)
        if log is None and journal is not None:
            position_file = self._folder / JOURNAL_POSITION_FILE
            log = open_journal(gpu_at, self._boot_id, journal, position_file=position_file)
        return log
