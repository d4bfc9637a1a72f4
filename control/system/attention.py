"""The keeper of incidents about HELD jobs, LOST nodes, messages that were given up, and jobs outside residency rules.

The incidents of GPUs are kept where their states are decided: the breaker's in its transaction, incidents of due
remedies by ``control.health.rule_repairs``. Doctor, API and pages read all of them from one table.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from sqlalchemy import ColumnElement, exists, func, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet.cordons import BY_PERSON, those_that_stand
from control.fleet.maintenance import REASON_CODE as MAINTENANCE
from control.fleet.node_places import path_of
from control.hosts.drains import REASON_CODE as DRAIN
from control.incidents.keeping import Need, keep_once
from control.policy.policies import active_policy
from control.system.lost_nodes import need_of_domain, need_of_node
from control.tenants.residency import running_outside
from muster.db.models import Cluster, Cordon, Event, Incident, Job, Node, OutboxMessage, Tenant
from muster.db.queries.residency import residencies
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.evidence.lost_together import Domain, LostNode, Span, domain_of, gather
from muster.domain.ids import NodeId
from muster.domain.policy.document import Policy
from muster.domain.principals import Principal
from muster.domain.states import Contact, JobState
from muster.domain.times import to_ms

KINDS: Final = (
    IncidentKind.JOB_ON_HOLD,
    IncidentKind.NODE_LOST,
    IncidentKind.MESSAGES_GIVEN_UP,
    IncidentKind.OUTSIDE_RESIDENCY,
)
OVER: Final = "the state has ended, or a person acts"
GIVEN_UP_FOR: Final = timedelta(hours=1)
"""Time after the last message that was given up, in which the broker counts as one to check."""


def keep_attention_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Open and close the incidents of these states. Return how many changed."""
    return keep_once(units, principal, KINDS, _needs, OVER)


def _needs(session: Session, now: datetime) -> Sequence[Need]:
    policy = active_policy(session)
    on_hold_until = now - timedelta(seconds=policy.attention.job_on_hold_after_s)
    return [
        *_jobs_on_hold(session, on_hold_until),
        *_lost_nodes(session, now, policy),
        *_given_up(session, now),
        *_outside_residency(session),
    ]


def _jobs_on_hold(session: Session, since: datetime) -> list[Need]:
    """Return the jobs HELD since before that; a suspect program has an incident of its own, which says more."""
    is_suspect = exists().where(
        Incident.kind == IncidentKind.SUSPECT_PROGRAM, Incident.subject_id == Job.id, Incident.closed_at.is_(None)
    )
    # A job's ``updated_at`` is later than its move where something else of it was written since.
    moved_at = select(func.max(Event.at)).where(Event.subject_id == Job.id, Event.kind == "job.held").scalar_subquery()
    held_since = func.coalesce(moved_at, Job.updated_at)
    query = (
        select(Job.id, Job.name, Job.tenant_id, Tenant.name, Job.state_reason, held_since)
        .join(Tenant, Tenant.id == Job.tenant_id)
        .where(Job.state == JobState.HELD, held_since <= since, ~is_suspect)
    )
    return [
        Need(
            IncidentKind.JOB_ON_HOLD,
            "job",
            job_id,
            f"job {job_id} ({name}) of {tenant} is HELD: {why}"[:2000],
            {
                "job_id": job_id,
                "tenant_id": tenant_id,
                "held_since": held_at.isoformat(),
                "to_do": f"`muster job show {job_id}` has the cause. Remove it, then `muster job release {job_id}`; or "
                f"`muster job cancel {job_id}`.",
            },
        )
        for job_id, name, tenant_id, tenant, why, held_at in session.execute(query)
    ]


def _lost_nodes(session: Session, now: datetime, policy: Policy) -> list[Need]:
    """Return the nodes LOST for long enough on which no person acts, and domains whose nodes were lost together.

    Time counts only while some API accepts heartbeats: an outage of the control plane is no fault of a host. It decides
    on the opening alone: an open incident is over when the host is in contact again, however often an API restarts.
    """
    known, alone = _open_of_lost(session)
    lost = _lost(session, now, policy)
    domains, singles = gather(
        lost,
        partial(_num_hosts, session, policy.placement.levels),
        known=known,
        alone=alone,
        within_ms=round(policy.attention.lost_together_s * 1000),
    )
    return [
        *(need_of_domain(found, policy.placement.levels) for found in domains),
        *(need_of_node(node) for node in singles),
    ]


def _open_of_lost(session: Session) -> tuple[dict[Domain, Span], set[NodeId]]:
    """Return the domains with an open incident of lost nodes, and the nodes with one of their own."""
    query = select(
        Incident.subject_type,
        Incident.subject_id,
        Incident.payload["domain"],
        Incident.payload["beat_from_ms"],
        Incident.payload["beat_until_ms"],
    ).where(Incident.kind == IncidentKind.NODE_LOST, Incident.closed_at.is_(None))
    known: dict[Domain, Span] = {}
    alone: set[NodeId] = set()
    for subject_type, subject_id, domain, first_ms, last_ms in session.execute(query):
        if subject_type == "node":
            alone.add(NodeId(subject_id))
        else:
            known[tuple(domain)] = Span(first_ms, last_ms)
    return known, alone


def _lost(session: Session, now: datetime, policy: Policy) -> list[LostNode]:
    accepting = select(Cluster.accepts_heartbeats_since).limit(1).scalar_subquery()
    beat_at: ColumnElement[datetime] = func.coalesce(Node.last_heartbeat_at, Node.created_at)
    since = now - timedelta(seconds=policy.attention.node_lost_after_s)
    person_acts = exists().where(
        Cordon.node_id == Node.id, Cordon.reason_code.in_((BY_PERSON, MAINTENANCE, DRAIN)), those_that_stand(now)
    )
    columns = Node.id, Node.name, Node.rack, Node.labels, Node.num_gpus, beat_at, Node.last_heartbeat_at.is_(None)
    query = select(*columns, func.greatest(beat_at, accepting) <= since).where(
        Node.contact == Contact.LOST, ~person_acts
    )
    levels = policy.placement.levels
    return [
        LostNode(
            node_id,
            name,
            domain_of(path_of(levels, rack, labels)),
            num_gpus,
            to_ms(at),
            is_due=is_due,
            is_new=is_new,
            rack=rack,
        )
        for node_id, name, rack, labels, num_gpus, at, is_new, is_due in session.execute(query)
    ]


def _num_hosts(session: Session, levels: Sequence[str]) -> Counter[Domain]:
    rows = session.execute(select(Node.rack, Node.labels))
    return Counter(domain_of(path_of(levels, rack, labels)) for rack, labels in rows)


def _given_up(session: Session, now: datetime) -> list[Need]:
    recent = OutboxMessage.dead_at > now - GIVEN_UP_FOR
    count, last_at = session.execute(select(func.count(), func.max(OutboxMessage.dead_at)).where(recent)).one()
    if last_at is None:
        return []
    newest = select(OutboxMessage.last_error).where(OutboxMessage.dead_at == last_at).limit(1)
    why = session.scalar(newest) or "no error was recorded"
    messages = "1 message to hosts was" if count == 1 else f"{count} messages to hosts were"
    return [
        Need(
            IncidentKind.MESSAGES_GIVEN_UP,
            "outbox",
            "outbox",
            f"{messages} given up in the last hour: {why}"[:2000],
            {"num_messages": count, "last_at": last_at.isoformat()},
        )
    ]


def _outside_residency(session: Session) -> list[Need]:
    """Return the jobs that run outside of their tenants' residency rules: set, or a host labelled, while they ran."""
    rules = residencies(session)
    return [
        Need(
            IncidentKind.OUTSIDE_RESIDENCY,
            "job",
            one.subject_id,
            f"job {one.subject_id} ({one.name}) runs outside its tenant's residency rule, on {', '.join(one.places)}: "
            f"the rule permits {rules[one.tenant_id].words()}"[:2000],
            {"job_id": one.subject_id, "tenant_id": one.tenant_id, "hosts": list(one.places)},
            is_current=True,
            lists=("hosts",),
        )
        for one in (running_outside(session, rules) if rules else ())
    ]
