"""Lives and ledgers for the tests of the pure machines: small worlds of two hosts."""

from collections.abc import Sequence

from muster.domain.ids import AttemptId, Fence, JobId, NodeId
from muster.domain.lifecycle import attempt, host
from muster.domain.lifecycle.contact import LastContact
from muster.domain.lifecycle.model import AttemptLifecycle, HostPart, Timers, Verdict
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Cause

TIMERS = Timers.of(DEFAULT_POLICY)
ATTEMPT, JOB, FENCE = AttemptId("att_1"), JobId("job_1"), Fence((1 << 32) + 1)
A, B = NodeId("node_a"), NodeId("node_b")
SUCCEEDED, FAILED = Verdict(Cause.SUCCEEDED, "code 0"), Verdict(Cause.USER_ERROR, "code 1")
LONG_UP_MS = -10_000_000


def placed(nodes: Sequence[NodeId] = (A, B), **changes: object) -> AttemptLifecycle:
    parts = tuple(HostPart(node) for node in nodes)
    return AttemptLifecycle(ATTEMPT, JOB, FENCE, parts, placed_ms=0, **changes)  # type: ignore[arg-type]


def claim(node: NodeId, boot: str = "boot1", nonce: str = "n") -> attempt.ClaimRequested:
    return attempt.ClaimRequested(node, FENCE, boot, nonce)


def started(node: NodeId, boot: str = "boot1") -> attempt.Started:
    return attempt.Started(node, FENCE, boot)


def exited(node: NodeId, verdict: Verdict = SUCCEEDED, boot: str = "boot1") -> attempt.Exited:
    return attempt.Exited(node, FENCE, boot, verdict)


def cleaned(node: NodeId, boot: str = "boot1") -> attempt.Cleaned:
    return attempt.Cleaned(node, FENCE, boot)


def tick(*, server_started_ms: int = LONG_UP_MS, boot: str = "boot1", **received_ms: int) -> attempt.Tick:
    """``a=…``, ``b=…``: when each host was last in contact."""
    hearings = {NodeId(f"node_{name}"): LastContact(boot, heard) for name, heard in received_ms.items()}
    return attempt.Tick(hearings, server_started_ms)


def after(life: AttemptLifecycle, *events: attempt.Event, now_ms: int = 0) -> AttemptLifecycle:
    for event in events:
        life, _ = attempt.step(life, event, now_ms, TIMERS)
    return life


def running(**changes: object) -> AttemptLifecycle:
    return after(placed(**changes), claim(A), claim(B), started(A), started(B))  # type: ignore[arg-type]


def ledger_after(*events: host.Event, now_ms: int = 0, ledger: host.HostLedger | None = None) -> host.HostLedger:
    ledger = ledger or host.HostLedger("boot1")
    for event in events:
        ledger, _ = host.step(ledger, event, now_ms)
    return ledger


def reported_to_claim(
    attempt_id: AttemptId = ATTEMPT, fence: Fence = FENCE, lease_ms: int = 1000
) -> host.HeartbeatAnswered:
    return host.HeartbeatAnswered(0, lease_ms, unclaimed=((attempt_id, fence),))


def granted(attempt_id: AttemptId = ATTEMPT, lease_ms: int = 1000) -> host.ClaimGranted:
    return host.ClaimGranted(attempt_id, JOB, 0, lease_ms)
