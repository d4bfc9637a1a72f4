"""The watch over one part of an attempt: it tracks progress, and takes forensics once when the part is overdue."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from muster.domain.policy.watch import WatchPolicy
from watch.forensics.documents import to_document
from watch.progress.durations import Durations
from watch.progress.tracker import Overdue, Tracker
from watch.reports import HostReport, RankReport
from workers.host.supervisor import files
from workers.host.supervisor.record.log_streams import tail_of_file
from workers.host.watch.dumps import Dumps
from workers.host.watch.part import Part
from workers.host.watch.rank_reader import RankReader
from workers.host.watch.stacks import Means, with_late_answers

MOST_LINES: Final = 20
LONGEST_LINE: Final = 500
AGAIN_EVERY_S: Final = 60.0
"""Between two reports of a part that stays overdue: one may be lost, and the newest counts."""
EARLY_EVERY_S: Final = 300.0
"""The same of a part that may work on its GPUs."""
LATE_FOR_S: Final = 120.0
"""Time for which answers of sensors are awaited after a report: on a busy host they may take longer than stacks may."""


KernelLines = Callable[[], tuple[tuple[str, ...], tuple[str, ...]]]


def no_lines() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return no line and no remark: of a host whose kernel log is read elsewhere."""
    return (), ()


@dataclass(frozen=True, slots=True)
class Stalled:
    """A part that makes no progress, with what was found about it."""

    overdue: Overdue
    report: HostReport


@dataclass(frozen=True, slots=True)
class Moving:
    """A part that was stalled makes progress again. ``still_s``: how long it stood still, as far as it was seen."""

    still_s: float


@dataclass(slots=True)
class PartWatch:
    """Watch over one part. Call ``turn`` about once a second; one call takes some seconds when the part is overdue.

    ``readings``: values of this host's GPUs by name, for the report. ``kernel``: lines of faults in the kernel's log of
    this host, and remarks about it; a control plane has both from the host's agent. ``is_only_host``: the report does
    not name the host, since there is no other.
    """

    part: Part
    policy: WatchPolicy
    durations: Durations = field(default_factory=Durations)
    readings: Callable[[], Mapping[str, float]] = dict
    kernel: KernelLines = no_lines
    is_only_host: bool = False
    _reader: RankReader = field(init=False)
    _tracker: Tracker = field(init=False)
    _stalled_s: float | None = None
    _next_s: float = 0.0
    _report: HostReport | None = None
    _taken_s: float = 0.0

    def __post_init__(self) -> None:
        self._reader = RankReader(self.part, self.policy, knows_gpus=self.is_only_host)
        lacks_gpu_readings = bool(self.part.gpus) and not self.is_only_host
        self._tracker = Tracker(self.policy, self.durations, lacks_gpu_readings)

    def turn(self) -> Stalled | Moving | None:
        """Return a change: the part has stalled, or moves again."""
        if not self.policy.is_on:
            return None
        readings = self.readings()
        reports = self._reader.read(readings)
        overdue = self._tracker.take(reports, time.monotonic())
        if overdue is None:
            before, self._stalled_s, self._report = self._stalled_s, None, None
            return None if before is None else Moving(before)
        self._note_late_answers()
        report = self._report
        if report is not None and not _is_of(report, overdue):
            report = None
        elif self._stalled_s is not None and overdue.still_s < self._next_s:
            self._stalled_s = overdue.still_s
            return None
        if report is None or self._is_outdated(report):
            report, self._taken_s = self._collect(overdue, reports, readings), time.monotonic()
        self._report = report
        again_s = EARLY_EVERY_S if overdue.needs_gpus else AGAIN_EVERY_S
        self._stalled_s, self._next_s = overdue.still_s, overdue.still_s + again_s
        return Stalled(overdue, report)

    def _note_late_answers(self) -> None:
        """Keep answers that came after the report was made: in its file, and in the next repetition of the message."""
        if self._report is None or time.monotonic() - self._taken_s > LATE_FOR_S:
            return
        ranks = with_late_answers(self.part, self._report.ranks)
        if ranks != self._report.ranks:
            self._report = replace(self._report, ranks=ranks)
            self._keep(self._report)

    def _is_outdated(self, report: HostReport) -> bool:
        """Return whether its stacks may be of other work; a part that stands still keeps the same ones."""
        return report.needs_gpus and time.monotonic() - self._taken_s >= self.policy.quiet_s / 2

    def _collect(self, overdue: Overdue, reports: tuple[RankReport, ...], readings: Mapping[str, float]) -> HostReport:
        """Take stacks and dumps, and write the report next to the attempt's other records, if the disk takes it.

        NCCL writes its dumps while the stacks are taken.
        """
        dumps = Dumps(self.part)
        dumps.request(reports)
        taken = Means.of(self.part, self._reader.pid_of).take(reports)
        taken, notes = dumps.joined(taken)
        with_lines = tuple(replace(each, lines=self._last_lines(each.rank)) for each in taken)
        lines, remarks = self.kernel()
        node = "" if self.is_only_host else self.part.node
        notes = (*notes, *remarks)
        flags = overdue.is_busy, overdue.needs_gpus
        report = HostReport(node, files.wall_ms(), with_lines, lines, dict(readings), notes, *flags)
        self._keep(report)
        return report

    def _keep(self, report: HostReport) -> None:
        folder = self.part.folder / files.WATCH
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            files.write_json(folder / f"host-{self.part.node}.json", to_document(report))

    def _last_lines(self, rank: int) -> tuple[str, ...]:
        """Return the last lines of a rank's log, which the supervisor has redacted."""
        text = tail_of_file(self.part.folder / files.LOGS / f"{rank}.log").decode("utf-8", "replace")
        return tuple(line[:LONGEST_LINE] for line in text.splitlines()[-MOST_LINES:])


def _is_of(report: HostReport, overdue: Overdue) -> bool:
    """Return whether the report was made for the same reason."""
    return (report.is_busy, report.needs_gpus) == (overdue.is_busy, overdue.needs_gpus)
