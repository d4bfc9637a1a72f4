"""The data that the machines run on, and the numbers of the policy in milliseconds."""

from dataclasses import dataclass
from typing import Self

from muster.domain.ids import AttemptId, Fence, JobId, NodeId
from muster.domain.job.spec import NodeLossRule
from muster.domain.policy.document import Policy
from muster.domain.states import AttemptState, Cause, HostPartState, JobState, StopReason


@dataclass(frozen=True, slots=True)
class Timers:
    """The policy's contact and dispatch numbers, in milliseconds."""

    heartbeat_ms: int
    lost_ms: int
    agent_lease_ms: int
    server_lease_ms: int
    kill_grace_ms: int
    no_expiry_after_start_ms: int
    wake_again_ms: int
    place_again_ms: int
    ready_within_ms: int
    stop_grace_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    launch_failures_before_hold: int

    @classmethod
    def of(cls, policy: Policy) -> Self:
        contact, dispatch = policy.contact, policy.dispatch
        return cls(
            heartbeat_ms=_ms(contact.heartbeat_s),
            lost_ms=_ms(contact.lost_after_s),
            agent_lease_ms=_ms(contact.agent_lease_s),
            server_lease_ms=_ms(contact.server_lease_s),
            kill_grace_ms=_ms(contact.kill_grace_s),
            no_expiry_after_start_ms=_ms(contact.no_expiry_after_start_s),
            wake_again_ms=_ms(dispatch.wake_again_s),
            place_again_ms=_ms(dispatch.place_again_s),
            ready_within_ms=_ms(dispatch.ready_within_s),
            stop_grace_ms=_ms(dispatch.stop_grace_s),
            retry_backoff_ms=_ms(dispatch.retry_backoff_s),
            retry_backoff_max_ms=_ms(dispatch.retry_backoff_max_s),
            launch_failures_before_hold=dispatch.launch_failures_before_hold,
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cause of an end, with the proof as text (exit record, signal, lease).

    ``is_cascade``: the part reports only that another part failed; a report with a cause replaces it. ``node_id``: the
    host at fault, if that is not the reporting one. ``is_reported``: the program alone reports what only a measurement
    proves.
    """

    cause: Cause
    proof: str
    is_cascade: bool = False
    node_id: NodeId | None = None
    is_reported: bool = False


@dataclass(frozen=True, slots=True)
class StopRequest:
    """SIGTERM now, SIGKILL not before ``deadline_ms`` (I8)."""

    reason: StopReason
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class HostPart:
    """One host's part of an attempt.

    ``omitted_ms``: since when its heartbeats no longer list it; ``is_past_lease``: its lease ended, so its launcher or
    supervisor has stopped the program. ``awaits_go``: it prepares, says that it is ready and starts nothing before its
    go; ``is_at_fault``: the attempt ended by this host's fault, so that its job avoids this one and no other.
    """

    node_id: NodeId
    state: HostPartState = HostPartState.UNCLAIMED
    boot_id: str | None = None
    nonce: str | None = None
    woken_ms: int = 0
    claimed_ms: int = 0
    omitted_ms: int | None = None
    is_past_lease: bool = False
    awaits_go: bool = False
    ready_ms: int | None = None
    is_at_fault: bool = False


@dataclass(frozen=True, slots=True)
class AttemptLifecycle:
    """The server's view of one attempt. ``ending`` is its cause once known; the attempt ENDS when no host runs it.

    ``go_ms``: when all its hosts were ready, so that waiting hosts may start. ``awaits_pairwise``: not before they
    have met in pairs.
    """

    attempt_id: AttemptId
    job_id: JobId
    fence: Fence
    hosts: tuple[HostPart, ...]
    placed_ms: int
    state: AttemptState = AttemptState.PLACED
    resume_state: AttemptState | None = None
    on_node_loss: NodeLossRule = NodeLossRule.WAIT
    stop_grace_ms: int = 30_000
    wall_time_ms: int | None = None
    wall_deadline_ms: int | None = None
    stop: StopRequest | None = None
    ending: Verdict | None = None
    go_ms: int | None = None
    awaits_pairwise: bool = False


@dataclass(frozen=True, slots=True)
class JobLifecycle:
    """The job's own state, apart from its attempt.

    ``oom_doublings``: how often its accumulation has doubled for want of GPU memory, of ``max_oom_doublings``.
    """

    job_id: JobId
    state: JobState = JobState.QUEUED
    max_restarts: int = 0
    restarts_used: int = 0
    launch_failures: int = 0
    max_oom_doublings: int = 0
    oom_doublings: int = 0
    next_try_ms: int | None = None
    is_cancel_requested: bool = False
    reason: str = ""
