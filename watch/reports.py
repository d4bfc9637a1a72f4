"""Reports of the sensors about the ranks of one attempt: progress, stacks, collectives, readings of the host.

All of them are *reported* facts: a tenant's program may write them. Times are milliseconds since 1970 by the clock of
the host that reports; clocks of hosts may differ, so the judge compares times of one host only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from watch.phases import Phase


class ProcessState(StrEnum):
    """State of a rank's process as the kernel of its host reports it (``/proc/PID/stat``)."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    BLOCKED = "blocked"
    STOPPED = "stopped"
    ZOMBIE = "zombie"
    GONE = "gone"
    UNKNOWN = "unknown"


class StackSource(StrEnum):
    """The means by which a stack was taken, best first. ``flight_recorder``: of the call of the newest collective."""

    SENSOR_THREAD = "sensor_thread"
    FAULTHANDLER = "faulthandler"
    PY_SPY = "py_spy"
    KERNEL = "kernel"
    FLIGHT_RECORDER = "flight_recorder"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack. ``line`` 0: unknown, as in a frame of the kernel."""

    function: str
    file: str = ""
    line: int = 0


FLIGHT_RECORDER: Final = "flight_recorder"
NCCL: Final = "nccl"
WATCHDOG: Final = "watchdog"
SCHEDULED: Final = "scheduled"
STARTED: Final = "started"
COMPLETED: Final = "completed"


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective that a rank has entered in one process group.

    ``sequence``: its number in the group, from 1. ``operation``: such as ``all_reduce``. ``sizes``, ``dtype``: of its
    first input. ``state``: ``scheduled``, ``started`` or ``completed``; empty if unknown. ``ranks``: members of the
    group; empty if unknown. ``source``: ``flight_recorder``; ``nccl``, for the recorder of NCCL, which counts apart
    from the one of other backends in the same group; ``muster``, for the runtime's own sequence; or ``watchdog``, for a
    line of PyTorch's watchdog, which states neither size nor type.
    ``is_p2p``: a send or a receive, which only its peer takes part in. ``description``: of the group, such as
    ``mesh_tp``.
    """

    group: str
    sequence: int
    operation: str
    sizes: tuple[int, ...] = ()
    dtype: str = ""
    state: str = ""
    ranks: tuple[int, ...] = ()
    source: str = FLIGHT_RECORDER
    is_p2p: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank at one moment.

    ``ticks``: a count that grows with each part of a step (forward, backward, optimizer, batch); it stands still in a
    hang. ``still_s``: seconds since step, phase or ticks last changed. ``cpu_share``: CPU seconds of the process per
    second, over the last seconds. ``stack``: of the main thread, innermost frame first. ``is_declared``: the program
    declared the phase itself. ``collectives``: the newest ones of each group, in the order in which the rank entered
    them; older ones of a group are its history. ``lines``: of the rank's own output, newest last.

    ``has_sensor`` False: the program does not use ``muster.train``, or has not started it yet; then ``still_s`` counts
    since its last output, processor time or work on a GPU. ``moved_s``: seconds since the functions on the main
    thread's stack last changed. ``io_bytes_per_s``: the rate at which its processes read and write.
    ``children_cpu_share``: as ``cpu_share``, of the processes below the rank's own, such as workers of a loader.
    ``busy_quiet_s``: of a rank without a sensor, as ``still_s``, but processor time does not count: since it last
    printed, moved bytes, began or lost a process, or worked on a GPU. None: unknown, as in a report of 0.1.0.
    """

    rank: int
    phase: Phase
    step: int = 0
    ticks: int = 0
    still_s: float = 0.0
    is_declared: bool = False
    process: ProcessState = ProcessState.UNKNOWN
    cpu_share: float | None = None
    gpu: str = ""
    stack: tuple[Frame, ...] = ()
    stack_source: StackSource = StackSource.NONE
    collectives: tuple[Collective, ...] = ()
    lines: tuple[str, ...] = ()
    has_sensor: bool = True
    moved_s: float | None = None
    io_bytes_per_s: float | None = None
    children_cpu_share: float | None = None
    busy_quiet_s: float | None = None


@dataclass(frozen=True, slots=True)
class HostReport:
    """All ranks of one host at one moment. ``lines``: lines of their output and of the kernel's log, newest last.

    ``readings``: values of the last minutes by name, such as ``gpu.0.utilisation``. ``notes``: what could not be read
    for this report, such as a dump that was cut off. ``is_busy``: ranks are overdue although they use the processor.
    ``needs_gpus``: these are so only if their GPUs wait in a collective, which the host does not see.
    """

    node: str
    at_ms: int
    ranks: tuple[RankReport, ...]
    lines: tuple[str, ...] = ()
    readings: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_busy: bool = False
    needs_gpus: bool = False
