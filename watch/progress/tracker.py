"""The judge of progress: an attempt is overdue when none of its ranks on this host has moved for longer than any may.

An example. Rank 1 of two sleeps without end in step 12. Rank 0 waits for it in a collective. Steps took 0.2 s,
so the limit of both is ``known.step_s``, 30 s. After that time without any tick of either rank the attempt is overdue,
and rank 1 is behind. Had rank 1 declared an evaluation instead, its limit, and so the attempt's, would be two hours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from muster.domain.policy.watch import WatchPolicy
from watch.phases import Phase
from watch.progress.durations import Durations, RankTimes
from watch.reports import ProcessState, RankReport

STALE_S: Final = 10.0
"""A longer pause between two reports: this host was suspended or too busy, so its ranks may have been as well."""
MOVING_BYTES_PER_S: Final = 65_536.0
_LIMITS: Final = {
    Phase.START: "start_s",
    Phase.IMPORT: "start_s",
    Phase.RESTORE: "restore_s",
    Phase.FIRST_STEP: "first_step_s",
    Phase.STEP: "step_s",
    Phase.DATA: "data_s",
    Phase.COMPILE: "compile_s",
    Phase.EVALUATION: "eval_s",
    Phase.SAVE: "save_s",
    Phase.END: "end_s",
}
_EARLY: Final = frozenset({Phase.START, Phase.IMPORT, Phase.RESTORE, Phase.FIRST_STEP})


@dataclass(frozen=True, slots=True)
class Overdue:
    """An attempt that makes no progress on this host.

    ``phase``, ``limit_s``: of the rank with the longest limit. ``still_s``: since the last progress of any rank.
    ``ranks``: the ranks that are behind the others; empty if all are at one place. ``is_busy``: processor time is the
    only thing that some ranks have shown for ``still_s``. ``needs_gpus``: it is so only if their GPUs wait, which
    another judge sees.
    """

    phase: Phase
    step: int
    limit_s: float
    still_s: float
    ranks: tuple[int, ...]
    is_busy: bool = False
    needs_gpus: bool = False


@dataclass(frozen=True, slots=True)
class _Allowed:
    """How long a rank may stay as it is: without any sign of work, and without progress while it shows work."""

    known_s: float
    unknown_s: float

    def or_longer(self, other: "_Allowed") -> "_Allowed":
        return _Allowed(max(self.known_s, other.known_s), max(self.unknown_s, other.unknown_s))


@dataclass(slots=True)
class Tracker:
    """Tracker of the ranks of one attempt on one host. ``durations``: of the job's earlier attempts, if there were.

    ``lacks_gpu_readings``: the ranks use GPUs whose readings another judge has. Ranks without a sensor that only use
    the processor are then overdue for that judge after ``quiet_s`` already.

    ``_worked_s``: when each rank last showed work. ``_is_late``: the attempt had begun to train before this tracker
    saw it, so its steps may take longer than any limit that is not learnt.
    """

    policy: WatchPolicy
    durations: Durations = field(default_factory=Durations)
    lacks_gpu_readings: bool = False
    _ranks: dict[int, RankTimes] = field(default_factory=dict)
    _worked_s: dict[int, float] = field(default_factory=dict)
    _taken_s: float | None = None
    _not_before_s: float = 0.0
    _is_late: bool = False

    def take(self, reports: Sequence[RankReport], at_s: float) -> Overdue | None:
        """Take the reports of all ranks at one moment. Returns what is overdue, again at each call while it is.

        ``at_s``: by any clock that only grows.
        """
        if self._taken_s is None:
            self._is_late = any(report.has_sensor and report.phase not in _EARLY for report in reports)
        if self._taken_s is None or at_s - self._taken_s > STALE_S:
            self._not_before_s = at_s + self.policy.known.step_s
        self._taken_s = at_s
        for report in reports:
            self._note(report, at_s)
        running = [report for report in reports if report.phase is not Phase.END] or list(reports)
        last = behind(running) or tuple(report.rank for report in running)
        for report in running:
            self._note_work(report, at_s, is_last=report.rank in last)
        if not self.policy.is_on or not running or at_s < self._not_before_s:
            return None
        return self._judge(running, at_s, has_any_sensor=any(report.has_sensor for report in reports))

    def _judge(self, running: Sequence[RankReport], at_s: float, *, has_any_sensor: bool) -> Overdue | None:
        allowed = [self._allowed(report, has_any_sensor=has_any_sensor) for report in running]
        idle = [min(report.still_s, at_s - self._worked_s.get(report.rank, -math.inf)) for report in running]
        idle_limits = [each.known_s for each in allowed]
        limits = [
            each.known_s if idle_s == report.still_s else each.unknown_s
            for report, each, idle_s in zip(running, allowed, idle, strict=True)
        ]
        still_s = min(report.still_s for report in running)
        if min(idle) > max(idle_limits):
            limits = idle_limits
        elif still_s <= max(limits):
            return self._judge_busy(running, max(each.unknown_s for each in allowed))
        slowest = running[limits.index(max(limits))]
        step = max(report.step for report in running)
        return Overdue(slowest.phase, step, max(limits), still_s, behind(running))

    def _judge_busy(self, running: Sequence[RankReport], patient_s: float) -> Overdue | None:
        """Return what is overdue although ranks without a sensor use the processor, as in a dead loop.

        A rank of which this is unknown may work. ``patient_s``: the longest time for which any of them may stand still.
        """
        bare = [report for report in running if not report.has_sensor]
        quiet = [report.still_s if report.has_sensor else report.busy_quiet_s for report in running]
        known = [each_s for each_s in quiet if each_s is not None]
        limit_s = max(self.policy.busy_quiet_s, patient_s)
        if not bare or len(known) < len(quiet):
            return None
        needs_gpus = self.lacks_gpu_readings and min(known) <= limit_s
        if needs_gpus:
            limit_s = max(float(self.policy.quiet_s), patient_s)
        if min(known) <= limit_s:
            return None
        step = max(report.step for report in running)
        return Overdue(bare[0].phase, step, limit_s, min(known), behind(running), is_busy=True, needs_gpus=needs_gpus)

    def limit_s(self, report: RankReport, *, has_any_sensor: bool = True) -> float:
        """Return how long the rank may stand still where it is, without any sign of work.

        ``has_any_sensor``: the program uses our runtime.
        """
        return self._allowed(report, has_any_sensor=has_any_sensor).known_s

    def _allowed(self, report: RankReport, *, has_any_sensor: bool) -> _Allowed:
        if not report.has_sensor:
            limit_s = float(self.policy.known.start_s if has_any_sensor else self.policy.quiet_s)
            return _Allowed(limit_s, limit_s)
        own = self._allowed_in(report.phase)
        times = self._ranks.get(report.rank)
        if report.is_declared:
            own = _Allowed(own.unknown_s, own.unknown_s)
        if times is not None and not times.has_stepped and report.phase is not Phase.END:
            own = own.or_longer(self._allowed_in(Phase.FIRST_STEP))
        if self._is_late and len(self.durations.known(Phase.STEP)) < self.policy.num_known:
            limit_s = max(own.unknown_s, float(self.policy.unknown.first_step_s))
            own = _Allowed(limit_s, limit_s)
        return own

    def _allowed_in(self, phase: Phase) -> _Allowed:
        policy, name = self.policy, _LIMITS[phase]
        past_s = self.durations.longest_s(phase, factor=policy.factor, margin=policy.margin)
        if phase is Phase.STEP and not self._is_known(phase):  # the first step takes longer than any later one
            first_s = self.durations.longest_s(Phase.FIRST_STEP, factor=policy.factor, margin=policy.margin)
            past_s = max(past_s, first_s)
        known_s: float = max(getattr(policy.known, name), past_s)
        return _Allowed(known_s, max(known_s, float(getattr(policy.unknown, name))))

    def _is_known(self, phase: Phase) -> bool:
        return len(self.durations.known(phase)) >= self.policy.num_known

    def _note_work(self, report: RankReport, at_s: float, *, is_last: bool) -> None:
        since_s = self._since_work_s(report, is_last=is_last) if report.has_sensor else None
        if since_s is not None:
            self._worked_s[report.rank] = max(self._worked_s.get(report.rank, -math.inf), at_s - since_s)

    def _since_work_s(self, report: RankReport, *, is_last: bool) -> float | None:
        """Return how long ago the rank showed work, as this report has it; None if it shows none.

        In a step the ranks that wait for another one may spin, so there processor time shows nothing, and only the
        last ranks work. Processor time of the rank's own process counts while its functions change.
        """
        is_in_step = report.phase is Phase.STEP
        if is_in_step and not is_last:
            return None
        if report.io_bytes_per_s is not None and report.io_bytes_per_s >= MOVING_BYTES_PER_S:
            return 0.0
        if is_in_step:
            return report.moved_s
        if self._is_busy(report.children_cpu_share):
            return 0.0
        if report.process is ProcessState.BLOCKED and not self._is_known(report.phase):
            return 0.0
        return (report.moved_s or 0.0) if self._is_busy(report.cpu_share) else None

    def _is_busy(self, share: float | None) -> bool:
        return share is not None and share >= self.policy.busy_share

    def _note(self, report: RankReport, at_s: float) -> None:
        if not report.has_sensor:
            return
        times = self._ranks.get(report.rank)
        if times is None:
            self._ranks[report.rank] = RankTimes.of(report, at_s)
        else:
            times.take(report, at_s, self.durations)


def behind(reports: Sequence[RankReport]) -> tuple[int, ...]:
    """Return the ranks that have done less than the others: fewer steps, or in the same step fewer parts of it."""
    places = {report.rank: (report.step, report.ticks) for report in reports if report.has_sensor}
    if len(set(places.values())) < 2:
        return ()
    least = min(places.values())
    return tuple(sorted(rank for rank, place in places.items() if place == least))
