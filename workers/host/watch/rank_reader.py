"""Progress of the ranks of one part: what their sensors have reported, joined with what /proc shows of them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from muster.domain.policy.watch import WatchPolicy
from watch.phases import Phase
from watch.progress.gpu_work import GpuWork
from watch.progress.tracker import MOVING_BYTES_PER_S
from watch.reports import ProcessState, RankReport
from workers.host.supervisor import files
from workers.host.supervisor.proof.processes import Process, carriers, descendants, living_processes
from workers.host.watch.part import Part
from workers.host.watch.processes import Usage, state_of, usage_of

SAMPLES_AFTER_S: Final = 5.0
"""A rank that has moved since needs no sample of its processes."""
LONGEST_PAUSE_S: Final = 30.0
SAMPLES_IN_QUIET: Final = 20
"""Samples of a program without a sensor within its limit, at least."""
_MOST: Final = (1 << 53) - 1


@dataclass(slots=True)
class _Sample:
    """Usage of a rank's processes at a moment, the rates since the one before, and the last moment with activity.

    ``pids``: its processes. ``other_ns``: the last moment with activity other than processor time, ``None`` before it
    is known.
    """

    at_ns: int
    own: Usage
    below: Usage
    printed: int
    active_ns: int
    pids: frozenset[int]
    other_ns: int | None
    cpu_share: float | None = None
    children_cpu_share: float | None = None
    io_bytes_per_s: float | None = None


@dataclass(slots=True)
class RankReader:
    """Reader of one part's ranks. ``read`` may be called at any pace; rates are since the call before.

    ``now_ns``: the clock of the supervisor's files, which does not count the time of a suspended host. ``knows_gpus``:
    no other reads the GPUs; under a control plane the host's agent does, and the judge there asks for its readings.
    """

    part: Part
    policy: WatchPolicy
    now_ns: Callable[[], int] = time.monotonic_ns
    knows_gpus: bool = False
    _gpu_work: GpuWork = field(init=False)
    _readings: Mapping[str, float] = field(default_factory=dict)
    _samples: dict[int, _Sample] = field(default_factory=dict)
    _began_ns: int = 0
    _pids: dict[int, int] = field(default_factory=dict)
    """The newest process of each rank that was seen alive: one that is seen no more has ended."""

    def __post_init__(self) -> None:
        self._began_ns = self.now_ns()
        self._gpu_work = GpuWork(self.policy.gpu_wait)

    def read(self, readings: Mapping[str, float] | None = None) -> tuple[RankReport, ...]:
        """Return the ranks as they are now. ``readings``: of their GPUs (``watch.progress.gpu_work``)."""
        self._readings = readings or {}
        self._gpu_work.take(self._readings)
        document = files.read_json(self.part.folder / files.SENSORS / "progress.json") or {}
        stated = document.get("ranks")
        reported = {rank: _mapping(_mapping(stated).get(str(rank))) for rank in self.part.ranks}
        now_ns = self.now_ns()
        is_due = any(self._needs_sample(rank, reported[rank], now_ns) for rank in reported)
        processes = living_processes() if is_due else {}
        return tuple(self._report(rank, reported[rank], processes, now_ns) for rank in self.part.ranks)

    def pid_of(self, rank: int) -> int | None:
        """Return the number of the rank's process on this host, if it is known."""
        document = files.read_json(self.part.folder / files.SENSORS / "progress.json") or {}
        return self._pid(rank, _mapping(_mapping(document.get("ranks")).get(str(rank))), living_processes())

    def _needs_sample(self, rank: int, reported: Mapping[str, Any], now_ns: int) -> bool:
        """Return whether to sample processes: of a rank that stands still, now and then of one without a sensor."""
        if _has_sensor(reported):
            return now_ns - _integer(reported, "changed_ns", 0) >= SAMPLES_AFTER_S * files.NS_PER_S
        last = self._samples.get(rank)
        every_s = min(LONGEST_PAUSE_S, min(self.policy.quiet_s, self.policy.busy_quiet_s) / SAMPLES_IN_QUIET)
        return last is None or now_ns - last.at_ns >= every_s * files.NS_PER_S

    def _pid(self, rank: int, reported: Mapping[str, Any], processes: dict[int, Process]) -> int | None:
        """Return the rank's process, if it is of this attempt: the program itself may have written the number.

        The kernel states the number of the process that the sensor's connection comes from.
        """
        started = _mapping(files.read_json(self.part.folder / files.RANKS / f"{rank}.json"))
        pid, supervisor_pid = _integer(reported, "pid", 0) or _integer(started, "pid", 0), self._supervisor_pid()
        if pid not in processes or pid == supervisor_pid:
            return None
        is_below = supervisor_pid is not None and pid in descendants({supervisor_pid}, processes)
        return pid if is_below or carriers(self.part.marks, {pid: processes[pid]}) else None

    def _report(self, rank: int, reported: Mapping[str, Any], processes: dict[int, Process], now_ns: int) -> RankReport:
        pid = self._pid(rank, reported, processes) if processes else None
        if pid is not None:
            self._pids[rank] = pid
        sample = self._sample(rank, pid, processes, now_ns) if processes else None
        stated = reported.get("phase")
        has_sensor = _has_sensor(reported)
        newest = None if has_sensor else sample or self._samples[rank]
        since_ns = _integer(reported, "changed_ns", now_ns) if newest is None else newest.active_ns
        other_ns = None if newest is None else newest.other_ns
        moved_ns = _integer(reported, "moved_ns", 0)
        return RankReport(
            rank,
            _phase(stated) if has_sensor else Phase.IMPORT,
            step=_integer(reported, "step", 0),
            ticks=_integer(reported, "ticks", 0),
            still_s=max(0, now_ns - since_ns) / files.NS_PER_S,
            is_declared=reported.get("is_declared") is True,
            process=self._state(rank, pid, processes),
            cpu_share=None if sample is None else sample.cpu_share,
            gpu=self.part.gpu_of(rank),
            has_sensor=has_sensor,
            moved_s=max(0, now_ns - moved_ns) / files.NS_PER_S if moved_ns else None,
            io_bytes_per_s=None if sample is None else sample.io_bytes_per_s,
            children_cpu_share=None if sample is None else sample.children_cpu_share,
            busy_quiet_s=None if other_ns is None else max(0, now_ns - other_ns) / files.NS_PER_S,
        )

    def _state(self, rank: int, pid: int | None, processes: Mapping[int, Process]) -> ProcessState:
        """Return the state of the rank's process; ZOMBIE or GONE of one that lived before and no longer does."""
        known = pid if pid is not None else self._pids.get(rank)
        if not processes or known is None or (pid is None and known in processes):
            return ProcessState.UNKNOWN
        return state_of(known)

    def _sample(self, rank: int, pid: int | None, processes: dict[int, Process], now_ns: int) -> _Sample:
        is_own, below = pid in processes, self._below(pid, processes)
        own_usage, usage = usage_of({pid} if pid is not None and is_own else ()), usage_of(below or ())
        printed, before = _printed(self.part.folder, rank), self._samples.get(rank)
        pids = frozenset((below or set()) | ({pid} if pid is not None and is_own else set()))
        if before is None:
            sample = _Sample(now_ns, own_usage, usage, printed, now_ns, pids, other_ns=None)
        else:
            elapsed_s = max((now_ns - before.at_ns) / files.NS_PER_S, 1e-3)
            own_share = max(0.0, own_usage.cpu_s - before.own.cpu_s) / elapsed_s
            share = max(0.0, usage.cpu_s - before.below.cpu_s) / elapsed_s
            num_bytes = own_usage.io_bytes + usage.io_bytes - before.own.io_bytes - before.below.io_bytes
            works = self._gpu_work.is_working(self.part.gpus_of(rank), self._readings)
            computes = own_share + share >= self.policy.busy_share if works is None else works
            is_active = below is None or printed != before.printed or computes
            active_ns = now_ns if is_active else before.active_ns
            rates = (own_share, share, max(0, num_bytes) / elapsed_s)
            sample = _Sample(now_ns, own_usage, usage, printed, active_ns, pids, before.other_ns, *rates)
            is_other_known = below is not None and own_usage.is_io_known and usage.is_io_known
            self._note_other(rank, sample, before, is_known=is_other_known)
        self._samples[rank] = sample
        return sample

    def _note_other(self, rank: int, sample: _Sample, before: _Sample, *, is_known: bool) -> None:
        """Note what the rank did since the sample before other than to compute; that of a full log is not known."""
        gpus = self.part.gpus_of(rank)
        is_on_gpu = self._gpu_work.is_used(gpus, self._readings)
        is_full = 0 < self.part.log_bytes <= sample.printed
        if not is_known or is_full or (gpus and is_on_gpu is None and self.knows_gpus):
            sample.other_ns = None
            return
        moves = sample.io_bytes_per_s is not None and sample.io_bytes_per_s >= MOVING_BYTES_PER_S
        is_changed = sample.printed != before.printed or sample.pids != before.pids
        if moves or is_changed or is_on_gpu or sample.other_ns is None:
            sample.other_ns = sample.at_ns

    def _below(self, pid: int | None, processes: dict[int, Process]) -> set[int] | None:
        """Return the processes below the rank's own, or all of this part where that one is unknown.

        None: the program is in a container, and this user sees none of it. Its engine's client is not the program.
        """
        if pid is not None and pid in processes and not self.part.is_hidden:
            return descendants({pid}, processes)
        supervisor_pid = self._supervisor_pid()
        clients = set() if supervisor_pid is None else descendants({supervisor_pid}, processes)
        marked = carriers(self.part.marks, processes) - {supervisor_pid}
        found = clients | marked | descendants(marked, processes)
        if self.part.is_hidden and not found - clients:
            return None
        return found - {pid}

    def _supervisor_pid(self) -> int | None:
        identity = _mapping(files.read_json(self.part.folder / files.IDENTITY))
        return _integer(identity, "pid", 0) or None


def _has_sensor(reported: Mapping[str, Any]) -> bool:
    return isinstance(reported.get("phase"), str)


def _phase(stated: object) -> Phase:
    """Return the phase; a step in place of one that this release does not know, as of a newer ``muster.train``."""
    return Phase(str(stated)) if stated in set(Phase) else Phase.STEP


def _printed(folder: Path, rank: int) -> int:
    """Return a number that changes when the rank prints; past the limit of its log it no longer does."""
    try:
        return (folder / files.LOGS / f"{rank}.log").stat().st_size
    except OSError:
        return 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(document: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number of a tenant's or of a supervisor's document, or the default in place of anything else."""
    value = document.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else default
