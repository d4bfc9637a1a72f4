"""The record that a host keeps of its attempts, the events that its machine takes, and the commands that it gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from muster.domain.ids import AttemptId, Fence, JobId


class Phase(StrEnum):
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    STARTED = "started"
    EXITED = "exited"
    CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class HostRecord:
    """One attempt on this host. ``lease_until_ms`` counts from the *sending* of the claim or heartbeat.

    ``awaits_go``: it prepares, and starts nothing before all hosts of its gang are ready; ``is_ready``: this one is;
    ``has_go``: all are.
    """

    attempt_id: AttemptId
    fence: Fence
    boot_id: str
    phase: Phase = Phase.CLAIMING
    job_id: JobId | None = None
    lease_until_ms: int = 0
    kill_at_ms: int | None = None
    stop_reason: str | None = None
    has_started: bool = False
    awaits_go: bool = False
    is_ready: bool = False
    has_go: bool = False


@dataclass(frozen=True, slots=True)
class HostLedger:
    """All records of this host in this boot, and the highest cluster epoch it has seen (a lower one is refused)."""

    boot_id: str
    highest_epoch: int = 0
    records: Mapping[AttemptId, HostRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The server has answered a heartbeat.

    ``sent_ms``: when the request left; ``stops``: attempt → (reason, milliseconds until SIGKILL); ``go``: attempts all
    of whose hosts are ready.
    """

    sent_ms: int
    lease_ms: int
    unclaimed: tuple[tuple[AttemptId, Fence], ...] = ()
    stops: Mapping[AttemptId, tuple[str, int]] | None = None
    forget: tuple[AttemptId, ...] = ()
    go: tuple[AttemptId, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimGranted:
    attempt_id: AttemptId
    job_id: JobId
    sent_ms: int
    lease_ms: int
    awaits_go: bool = False


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class HostReady:
    """All that the program needs is there. What is not ready ends as a program that never ran."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class GoReceived:
    """The answer to this host's report that it is ready: it was the last one."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class ProgramStarted:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class ProgramExited:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class ProvedClean:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes: leases may have ended, kill times may have come."""


Event = (
    HeartbeatAnswered
    | ClaimGranted
    | ClaimRefused
    | HostReady
    | GoReceived
    | ProgramStarted
    | ProgramExited
    | ProvedClean
    | Tick
)


@dataclass(frozen=True, slots=True)
class SendClaim:
    attempt_id: AttemptId
    fence: Fence


@dataclass(frozen=True, slots=True)
class Prepare:
    """A command to check everything that the program needs, and to start nothing yet."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class StartProgram:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class StopProgram:
    """SIGTERM now, SIGKILL of everything at ``kill_at_ms``."""

    attempt_id: AttemptId
    kill_at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExtendLease:
    """A new time for the supervisor, which fences itself by then even when the launcher is dead."""

    attempt_id: AttemptId
    lease_until_ms: int


@dataclass(frozen=True, slots=True)
class ProveClean:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Report:
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Forget:
    attempt_id: AttemptId


Command = SendClaim | Prepare | StartProgram | StopProgram | ExtendLease | ProveClean | Report | Forget
Outcome = tuple[HostLedger, tuple[Command, ...]]
