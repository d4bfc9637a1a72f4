"""The states of every machine and the one table of edges each: code, database checks and docs come from here."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar


class JobState(StrEnum):
    QUEUED = "QUEUED"
    HELD = "HELD"
    ACTIVE = "ACTIVE"
    RECOVERING = "RECOVERING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class AttemptState(StrEnum):
    PLACED = "PLACED"
    CLAIMING = "CLAIMING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    LOST = "LOST"
    ENDED = "ENDED"


class HostPartState(StrEnum):
    """One host's part of an attempt, from order to proof of cleanliness."""

    UNCLAIMED = "UNCLAIMED"
    CLAIMED = "CLAIMED"
    STARTED = "STARTED"
    EXITED = "EXITED"
    CLEAN = "CLEAN"


class AllocationState(StrEnum):
    ASSIGNED = "ASSIGNED"
    CLEANING = "CLEANING"
    RELEASED = "RELEASED"


class CheckpointStatus(StrEnum):
    WRITING = "WRITING"
    COMMITTED = "COMMITTED"
    VERIFIED = "VERIFIED"
    GOOD = "GOOD"
    REJECTED = "REJECTED"
    TAINTED = "TAINTED"
    EXPIRED = "EXPIRED"


class Standing(StrEnum):
    UNPROVEN = "UNPROVEN"
    PROBATION = "PROBATION"
    HEALTHY = "HEALTHY"
    SUSPECT = "SUSPECT"
    QUARANTINED = "QUARANTINED"
    REPAIR = "REPAIR"
    RETIRED = "RETIRED"


class EvidenceState(StrEnum):
    """The states of an evidence. ACTIVE and CLOSED evidence weighs, and no other does.

    PENDING: it weighs once its fault has lasted. LAPSED: its fault was over before that. CLOSED: its fault was seen to
    be over, so it decays. SUPPRESSED: kept for a stated reason (``Suppression``). SUSPENDED: the program that ran there
    is suspected. DISMISSED: by a person.
    """

    PENDING = "PENDING"
    LAPSED = "LAPSED"
    ACTIVE = "ACTIVE"
    CLOSED = "CLOSED"
    SUPPRESSED = "SUPPRESSED"
    SUSPENDED = "SUSPENDED"
    DISMISSED = "DISMISSED"


NOTHING_RUNS: Final = (Standing.REPAIR, Standing.RETIRED)
"""Standings in which nothing runs on a GPU, a burn-in neither."""


class BurnInState(StrEnum):
    """MEASURED: its figures are in. JUDGED: they have a verdict. ABANDONED: it could not be run."""

    ORDERED = "ORDERED"
    RUNNING = "RUNNING"
    MEASURED = "MEASURED"
    JUDGED = "JUDGED"
    ABANDONED = "ABANDONED"


class BurnInOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


class ReclaimState(StrEnum):
    """RELEASED: the victim left by itself. FORCED: it was killed at the deadline. OVERTAKEN: it ended otherwise."""

    NOTIFIED = "NOTIFIED"
    RELEASED = "RELEASED"
    FORCED = "FORCED"
    WITHDRAWN = "WITHDRAWN"
    OVERTAKEN = "OVERTAKEN"


class ReclaimOutcome(StrEnum):
    """The outcome of the victim's work since the notice."""

    CHECKPOINTED = "checkpointed"
    WORK_LOST = "work_lost"


class ExpectedFrom(StrEnum):
    """The source of a pending job's expected run time."""

    WALL_TIME = "wall_time"
    HISTORY = "history"
    POLICY = "policy"


class JobEffectKind(StrEnum):
    """The effects that a tried change may have on a job."""

    LEAVES = "leaves"
    ENDS = "ends"
    STARTS = "starts"
    WAITS = "waits"


class PlanOutcome(StrEnum):
    """The effect of a plan on a job if it were submitted now."""

    STARTS = "starts"
    RECLAIMS = "reclaims"
    HOLD = "hold"
    WAITS = "waits"


class Contact(StrEnum):
    LIVE = "LIVE"
    SILENT = "SILENT"
    LOST = "LOST"


class StopReason(StrEnum):
    RECLAIM = "reclaim"
    CANCEL = "cancel"
    EVACUATION = "evacuation"
    MAINTENANCE = "maintenance"
    WALLTIME = "walltime"
    BUDGET = "budget"
    HOT_SWAP = "hot_swap"
    RESIZE = "resize"
    HANG = "hang"
    IDLE = "idle"


class Cause(StrEnum):
    """The causes of an attempt's end."""

    SUCCEEDED = "succeeded"
    USER_ERROR = "user_error"
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    HANG = "hang"
    NCCL_TIMEOUT = "nccl_timeout"
    DIVERGED = "diverged"
    CORRUPTION = "corruption"
    GPU_FAULT = "gpu_fault"
    NODE_LOST = "node_lost"
    LAUNCH_FAILED = "launch_failed"
    PREFLIGHT_FAILED = "preflight_failed"
    RECLAIMED = "reclaimed"
    EVACUATED = "evacuated"
    MAINTENANCE = "maintenance"
    WALLTIME = "walltime"
    BUDGET = "budget"
    CANCELLED = "cancelled"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    SAVE_FAILED = "save_failed"
    RESIZE = "resize"
    HOT_SWAP = "hot_swap"
    IDLE = "idle"


_J, _A, _L, _C, _S, _H = JobState, AttemptState, AllocationState, CheckpointStatus, Standing, HostPartState
_B, _E = BurnInState, EvidenceState

JOB_EDGES: Final[Mapping[JobState, frozenset[JobState]]] = {
    _J.QUEUED: frozenset({_J.HELD, _J.ACTIVE, _J.CANCELLED, _J.FAILED}),
    _J.HELD: frozenset({_J.QUEUED, _J.CANCELLED, _J.FAILED}),
    _J.ACTIVE: frozenset({_J.RECOVERING, _J.SUCCEEDED, _J.FAILED, _J.HELD, _J.CANCELLED}),
    _J.RECOVERING: frozenset({_J.ACTIVE, _J.QUEUED, _J.CANCELLED, _J.FAILED, _J.HELD}),
    _J.SUCCEEDED: frozenset(),
    _J.FAILED: frozenset(),
    _J.CANCELLED: frozenset(),
}

ATTEMPT_EDGES: Final[Mapping[AttemptState, frozenset[AttemptState]]] = {
    _A.PLACED: frozenset({_A.CLAIMING, _A.STOPPING, _A.LOST, _A.ENDED}),
    _A.CLAIMING: frozenset({_A.RUNNING, _A.STOPPING, _A.LOST, _A.ENDED}),
    _A.RUNNING: frozenset({_A.STOPPING, _A.LOST, _A.ENDED}),
    _A.STOPPING: frozenset({_A.LOST, _A.ENDED}),
    _A.LOST: frozenset({_A.PLACED, _A.CLAIMING, _A.RUNNING, _A.STOPPING, _A.ENDED}),
    _A.ENDED: frozenset(),
}

HOST_PART_EDGES: Final[Mapping[HostPartState, frozenset[HostPartState]]] = {
    _H.UNCLAIMED: frozenset({_H.CLAIMED, _H.CLEAN}),
    _H.CLAIMED: frozenset({_H.STARTED, _H.EXITED, _H.CLEAN}),
    _H.STARTED: frozenset({_H.EXITED, _H.CLEAN}),
    _H.EXITED: frozenset({_H.CLEAN}),
    _H.CLEAN: frozenset(),
}

ALLOCATION_EDGES: Final[Mapping[AllocationState, frozenset[AllocationState]]] = {
    _L.ASSIGNED: frozenset({_L.CLEANING}),
    _L.CLEANING: frozenset({_L.RELEASED}),
    _L.RELEASED: frozenset(),
}

CHECKPOINT_EDGES: Final[Mapping[CheckpointStatus, frozenset[CheckpointStatus]]] = {
    _C.WRITING: frozenset({_C.COMMITTED, _C.REJECTED, _C.TAINTED, _C.EXPIRED}),
    _C.COMMITTED: frozenset({_C.VERIFIED, _C.REJECTED, _C.TAINTED, _C.EXPIRED}),
    _C.VERIFIED: frozenset({_C.GOOD, _C.REJECTED, _C.TAINTED, _C.EXPIRED}),
    _C.GOOD: frozenset({_C.REJECTED, _C.TAINTED, _C.EXPIRED}),
    _C.REJECTED: frozenset({_C.EXPIRED}),
    _C.TAINTED: frozenset({_C.EXPIRED}),
    _C.EXPIRED: frozenset(),
}

STANDING_EDGES: Final[Mapping[Standing, frozenset[Standing]]] = {
    _S.UNPROVEN: frozenset({_S.PROBATION, _S.QUARANTINED, _S.RETIRED}),
    _S.PROBATION: frozenset({_S.HEALTHY, _S.SUSPECT, _S.QUARANTINED, _S.RETIRED}),
    _S.HEALTHY: frozenset({_S.SUSPECT, _S.QUARANTINED, _S.RETIRED}),
    _S.SUSPECT: frozenset({_S.PROBATION, _S.HEALTHY, _S.QUARANTINED, _S.RETIRED}),
    _S.QUARANTINED: frozenset({_S.REPAIR, _S.PROBATION, _S.HEALTHY, _S.SUSPECT, _S.UNPROVEN, _S.RETIRED}),
    _S.REPAIR: frozenset({_S.UNPROVEN, _S.QUARANTINED, _S.RETIRED}),
    _S.RETIRED: frozenset({_S.UNPROVEN}),
}

BURN_IN_EDGES: Final[Mapping[BurnInState, frozenset[BurnInState]]] = {
    _B.ORDERED: frozenset({_B.RUNNING, _B.ABANDONED}),
    _B.RUNNING: frozenset({_B.ORDERED, _B.MEASURED, _B.ABANDONED}),
    _B.MEASURED: frozenset({_B.JUDGED}),
    _B.JUDGED: frozenset(),
    _B.ABANDONED: frozenset(),
}

EVIDENCE_EDGES: Final[Mapping[EvidenceState, frozenset[EvidenceState]]] = {
    _E.PENDING: frozenset({_E.ACTIVE, _E.LAPSED, _E.SUPPRESSED, _E.SUSPENDED, _E.DISMISSED}),
    _E.LAPSED: frozenset({_E.PENDING, _E.SUPPRESSED, _E.SUSPENDED, _E.DISMISSED}),
    _E.ACTIVE: frozenset({_E.CLOSED, _E.SUPPRESSED, _E.SUSPENDED, _E.DISMISSED}),
    _E.CLOSED: frozenset({_E.ACTIVE, _E.SUPPRESSED, _E.SUSPENDED, _E.DISMISSED}),
    _E.SUPPRESSED: frozenset({_E.PENDING, _E.ACTIVE, _E.SUSPENDED, _E.DISMISSED}),
    _E.SUSPENDED: frozenset({_E.PENDING, _E.LAPSED, _E.ACTIVE, _E.CLOSED, _E.SUPPRESSED, _E.DISMISSED}),
    _E.DISMISSED: frozenset(),
}
"""Next states of evidence. The end of a suspension depends on the fault's course; a dismissal is never undone."""

RECLAIM_EDGES: Final[Mapping[ReclaimState, frozenset[ReclaimState]]] = {
    ReclaimState.NOTIFIED: frozenset(ReclaimState) - {ReclaimState.NOTIFIED},
    ReclaimState.RELEASED: frozenset(),
    ReclaimState.FORCED: frozenset(),
    ReclaimState.WITHDRAWN: frozenset(),
    ReclaimState.OVERTAKEN: frozenset(),
}

TERMINAL_JOB_STATES: Final = frozenset(state for state, onward in JOB_EDGES.items() if not onward)

STOP_URGENCY: Final[Mapping[StopReason, int]] = {
    _reason: urgency
    for urgency, _reason in enumerate(
        (
            StopReason.RESIZE,
            StopReason.HOT_SWAP,
            StopReason.HANG,
            StopReason.IDLE,
            StopReason.BUDGET,
            StopReason.WALLTIME,
            StopReason.RECLAIM,
            StopReason.MAINTENANCE,
            StopReason.EVACUATION,
            StopReason.CANCEL,
        )
    )
}
"""Rank of each reason: the greatest names the end when several stop requests stand on one attempt."""


S = TypeVar("S", bound=StrEnum)


class IllegalTransitionError(AssertionError):
    """I21: only listed edges happen. A violation is a bug of Muster, never a user's fault."""


def require_edge(edges: Mapping[S, frozenset[S]], origin: S, target: S) -> None:
    """Assert I21 for one move.

    Raises:
        IllegalTransitionError: ``origin → target`` is not an edge of the published machine.
    """
    if target not in edges[origin]:
        msg = f"{type(origin).__name__}: {origin} → {target} is not a listed edge"
        raise IllegalTransitionError(msg)
