"""The server's end of the host protocol: heartbeat, claim, report, logs. A node reports about itself only (I16)."""

import functools
from collections.abc import Sequence
from typing import Final

from msgspec import structs
from sqlalchemy import Row, Select, Text, Update, bindparam, select, update

from control.attempts import pairwise_checks
from control.attempts.attempts import lock_attempt, step_attempt
from control.attempts.mapping import attempt_lifecycle, job_request, last_contact_of
from control.attempts.orders import order_of, quick_check_s
from control.attempts.own_parts import own_attempt, require_protocol
from control.core.unit_of_work import UnitOfWork, declare_action
from control.hosts import log_intake
from control.placement import preflight
from control.policy.policies import active_policy
from control.reclaim.victims import notify_victims
from muster.db.base import UtcTimestamp
from muster.db.models import Attempt, AttemptHost, Job, Node, NodeContactChange
from muster.domain.errors import NotFoundError
from muster.domain.ids import AttemptId, Fence, NodeId
from muster.domain.lifecycle import attempt as attempts
from muster.domain.lifecycle.contact import accept_heartbeat, next_beat_s
from muster.domain.lifecycle.model import AttemptLifecycle, Timers
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission
from muster.domain.state_sets import PARTS_THAT_MAY_RUN
from muster.domain.states import Contact, HostPartState
from muster.domain.times import to_ms
from muster.wire.host import (
    PAIRWISE_CAPABILITY,
    TAKEN_IN_HEARTBEATS,
    ClaimAnswer,
    ClaimRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    LogAnswer,
    LogBatch,
    StopOrder,
    UnclaimedAttempt,
)

HEARTBEAT: Final = declare_action("host.heartbeat")
CLAIM: Final = declare_action("host.claim")
LOGS: Final = declare_action("host.logs")


def node_of(unit: UnitOfWork, protocol: int) -> NodeId:
    unit.principal.require(Permission.HOST_REPORT)
    require_protocol(protocol)
    if unit.principal.node_id is None:
        raise NotFoundError
    return unit.principal.node_id


def heartbeat(unit: UnitOfWork, request: HeartbeatRequest) -> HeartbeatAnswer:
    """Renew the host's leases and return what it has to claim, to stop and to forget. A stale beat renews nothing."""
    node_id = node_of(unit, request.protocol)
    policy = active_policy(unit.session)
    found = unit.session.execute(_node_and_whether_preflights(), {"node_id": node_id, "now": unit.now}).one_or_none()
    if found is None:
        raise NotFoundError
    node, has_preflights = found
    hearing = accept_heartbeat(last_contact_of(node), request.boot_id, request.seq, to_ms(unit.now))
    if hearing is None:
        heartbeat_s = _next_beat_s(policy, node_id, request.seq)
        return HeartbeatAnswer(lease_s=0.0, heartbeat_s=heartbeat_s, takes=TAKEN_IN_HEARTBEATS)
    _note_contact(unit, node)
    capabilities = list(request.capabilities)
    parameters = {
        "node_id": node_id,
        "now": unit.now,
        "boot": hearing.boot_id,
        "seq": hearing.seq,
        "past_boots": list(hearing.past_boots),
        "stated_capabilities": capabilities,
    }
    unit.session.execute(_renewal(with_capabilities=capabilities != node.capabilities), parameters)
    parts = _open_parts(unit, node_id)
    _note_listed(unit, node_id, request, parts, policy)
    notify_victims(unit, [attempt.id for part, attempt, _ in parts if part.state in PARTS_THAT_MAY_RUN], policy)
    preflight.receive_report(unit, node_id, request.preflights)
    to_check = preflight.open_on(unit, node_id, policy) if has_preflights else ()
    return structs.replace(_answer(unit, node_id, request, parts, policy), preflights=to_check)


@functools.cache
def _node_and_whether_preflights() -> Select[Node, bool]:
    """Return the query of the host's row, which it locks. Built once, as are the others of a heartbeat."""
    node_id, now = bindparam("node_id", type_=Text()), bindparam("now", type_=UtcTimestamp())
    query = select(Node, preflight.any_on(node_id, now)).where(Node.id == node_id)
    return query.with_for_update(key_share=True, of=Node)


@functools.cache
def _renewal(*, with_capabilities: bool) -> Update:
    """Return the statement that stores a heartbeat. No parameter has a column's name: SQLAlchemy reserves these."""
    now = bindparam("now", type_=UtcTimestamp())
    statement = (
        update(Node)
        .where(Node.id == bindparam("node_id"))
        .values(
            boot_id=bindparam("boot"),
            heartbeat_seq=bindparam("seq"),
            past_boot_ids=bindparam("past_boots"),
            last_heartbeat_at=now,
            lease_renewed_at=now,
            contact=Contact.LIVE,
        )
        .execution_options(synchronize_session=False)
    )
    return statement.values(capabilities=bindparam("stated_capabilities")) if with_capabilities else statement


def _note_contact(unit: UnitOfWork, node: Node) -> None:
    if node.contact is not Contact.LIVE:
        unit.session.add(NodeContactChange(node_id=node.id, at=unit.now, contact=Contact.LIVE))
        unit.emit("node.live", "node", node.id, payload={"from": node.contact, "to": Contact.LIVE})


def _open_parts(unit: UnitOfWork, node_id: NodeId) -> Sequence[Row[AttemptHost, Attempt, Job]]:
    return unit.session.execute(_open_parts_of_a_node(), {"node_id": node_id}).all()


@functools.cache
def _open_parts_of_a_node() -> Select[AttemptHost, Attempt, Job]:
    return (
        select(AttemptHost, Attempt, Job)
        .join(Attempt, Attempt.id == AttemptHost.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(AttemptHost.node_id == bindparam("node_id"), AttemptHost.state != HostPartState.CLEAN)
        .order_by(Attempt.fence)
    )


def _note_listed(
    unit: UnitOfWork,
    node_id: NodeId,
    request: HeartbeatRequest,
    parts: Sequence[Row[AttemptHost, Attempt, Job]],
    policy: Policy,
) -> None:
    """Store which parts the host lists. A part that it no longer lists has its lease renewed no more."""
    listed = {item.attempt_id for item in request.attempts}
    for part, attempt, _ in parts:
        is_listed = attempt.id in listed
        is_news = (
            part.state in PARTS_THAT_MAY_RUN
            and part.boot_id == request.boot_id
            and is_listed == (part.omitted_at is not None)
        )
        if is_news:
            loaded = lock_attempt(unit, attempt.id)
            step_attempt(unit, loaded, attempts.Listed(node_id, request.boot_id, is_listed), policy)
            unit.emit(
                "attempt.listed" if is_listed else "attempt.omitted",
                "attempt",
                attempt.id,
                tenant_id=attempt.tenant_id,
                payload={"node_id": node_id, "boot_id": request.boot_id},
            )


def _answer(
    unit: UnitOfWork,
    node_id: NodeId,
    request: HeartbeatRequest,
    parts: Sequence[Row[AttemptHost, Attempt, Job]],
    policy: Policy,
) -> HeartbeatAnswer:
    timers = Timers.of(policy)
    now_ms = to_ms(unit.now)
    lives = {attempt.id: _lifecycle(attempt, part, job, timers) for part, attempt, job in parts}
    unclaimed = tuple(
        UnclaimedAttempt(attempt_id=life.attempt_id, fence=life.fence)
        for life in lives.values()
        if attempts.is_unclaimed_on(life, node_id)
    )
    stops: list[StopOrder] = []
    forget: list[str] = []
    for item in request.attempts:
        life = lives.get(AttemptId(item.attempt_id))
        if life is None or life.fence != item.fence:
            # Clean here as far as the server knows, or unknown to it: the host stops its programs, then forgets it.
            forget += [item.attempt_id] if item.phase == "clean" else []
            order = None if item.phase in {"exited", "clean"} else ("stale", 0)
        else:
            order = attempts.stop_order(life, node_id, now_ms)
        if order is not None and item.phase not in {"exited", "clean"}:
            reason, kill_after_ms = order
            stop = StopOrder(
                attempt_id=item.attempt_id, fence=item.fence, reason=reason, kill_after_s=kill_after_ms / 1000
            )
            stops.append(stop)
    return HeartbeatAnswer(
        lease_s=policy.contact.agent_lease_s,
        heartbeat_s=_next_beat_s(policy, node_id, request.seq),
        unclaimed=unclaimed,
        stops=tuple(stops),
        forget=tuple(forget),
        go=tuple(life.attempt_id for life in lives.values() if attempts.may_go(life, node_id)),
        pairwise_orders=tuple(
            order for _, attempt, _ in parts for order in pairwise_checks.orders_for(attempt, node_id)
        ),
        takes=(*TAKEN_IN_HEARTBEATS, PAIRWISE_CAPABILITY),
    )


def _next_beat_s(policy: Policy, node_id: NodeId, seq: int) -> float:
    contact = policy.contact
    return next_beat_s(contact.heartbeat_s, contact.heartbeat_jitter_fraction, node_id, seq)


def _lifecycle(attempt: Attempt, part: AttemptHost, job: Job, timers: Timers) -> AttemptLifecycle:
    """Return the attempt with this host's part alone: enough for one host's answer."""
    return attempt_lifecycle(attempt, [part], job_request(job), timers)


def claim(unit: UnitOfWork, attempt_id: AttemptId, request: ClaimRequest) -> ClaimAnswer:
    """Grant a claim before the start: only the current fence, in the node's current boot, gets an order."""
    node_id = node_of(unit, request.protocol)
    policy = active_policy(unit.session)
    loaded = own_attempt(unit, attempt_id, node_id)
    if loaded is None:
        return ClaimAnswer(granted=False, refusal="this host holds no part of that attempt")
    boot_id = unit.session.scalar(select(Node.boot_id).where(Node.id == node_id))
    if boot_id != request.boot_id:
        return ClaimAnswer(granted=False, refusal="that boot of the host is not the current one; heartbeat first")
    pairwise_checks.await_meetings(unit, loaded, policy)
    part = loaded.host(node_id)
    was_claimed = part is not None and part.state in PARTS_THAT_MAY_RUN
    event = attempts.ClaimRequested(
        node_id,
        Fence(request.fence),
        request.boot_id,
        request.nonce,
        can_wait="ready" in request.capabilities,
        is_checked=quick_check_s(loaded.job, policy) > 0,
        lacks=tuple(sorted({*job_request(loaded.job).capabilities}.difference(request.capabilities))),
    )
    for command in step_attempt(unit, loaded, event, policy):
        if isinstance(command, attempts.Grant):
            payload = {"job_id": loaded.job.id, "node_id": node_id, "boot_id": request.boot_id}
            tenant_id = loaded.attempt.tenant_id
            # A host whose answer was lost asks again: its lease starts again, but it has claimed once.
            kind = "attempt.host_claim_repeated" if was_claimed else "attempt.host_claimed"
            unit.emit(kind, "attempt", attempt_id, tenant_id=tenant_id, payload=payload)
            order = order_of(unit, loaded, node_id, policy)
            return ClaimAnswer(granted=True, order=order, lease_s=policy.contact.agent_lease_s)
        if isinstance(command, attempts.Refuse):
            return ClaimAnswer(granted=False, refusal=command.why)
    return ClaimAnswer(granted=False, refusal="the attempt cannot be claimed")


def store_logs(unit: UnitOfWork, attempt_id: AttemptId, batch: LogBatch) -> LogAnswer:
    """Store pieces of logs; a piece that came before has no effect. Begin the unit ``quiet``: mostly no event follows.

    Raises:
        StaleFenceError: the fence is not this attempt's, or the host holds no part of it.
    """
    return log_intake.store(unit, node_of(unit, batch.protocol), attempt_id, batch)
