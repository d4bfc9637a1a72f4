"""The keeper of incidents about jobs that are HELD, nodes that stay LOST, and messages that were given up.

The incidents of GPUs are kept where their states are decided: the breaker's in its transaction, incidents of due
remedies by ``control.health.rule_repairs``. Doctor, API and pages read all of them from one table.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, exists, func, or_, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet.cordons import BY_PERSON, those_that_stand
from control.fleet.maintenance import REASON_CODE as MAINTENANCE
from control.hosts.drains import REASON_CODE as DRAIN
from control.incidents.keeping import Need, keep_once
from control.policy.policies import active_policy
from muster.db.models import Cluster, Cordon, Event, Incident, Job, Node, OutboxMessage, Tenant
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.principals import Principal
from muster.domain.states import Contact, JobState

KINDS: Final = (IncidentKind.JOB_ON_HOLD, IncidentKind.NODE_LOST, IncidentKind.MESSAGES_GIVEN_UP)
OVER: Final = "the state has ended, or a person acts"
GIVEN_UP_FOR: Final = timedelta(hours=1)
"""Time after the last message that was given up, in which the broker counts as one to check."""


def keep_attention_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Open and close the incidents of these states. Return how many changed."""
    return keep_once(units, principal, KINDS, _needs, OVER)


def _needs(session: Session, now: datetime) -> Sequence[Need]:
    policy = active_policy(session).attention
    on_hold_until = now - timedelta(seconds=policy.job_on_hold_after_s)
    lost_until = now - timedelta(seconds=policy.node_lost_after_s)
    return [*_jobs_on_hold(session, on_hold_until), *_lost_nodes(session, now, lost_until), *_given_up(session, now)]


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


def _lost_nodes(session: Session, now: datetime, since: datetime) -> list[Need]:
    """Return the nodes LOST since before that, unless a person acts on the node.

    Time counts only while some API accepts heartbeats: an outage of the control plane is no fault of a host. It decides
    on the opening alone: an open incident is over when the host is in contact again, however often an API restarts.
    """
    accepting = select(Cluster.accepts_heartbeats_since).limit(1).scalar_subquery()
    last_at: ColumnElement[datetime] = func.greatest(func.coalesce(Node.last_heartbeat_at, Node.created_at), accepting)
    person_acts = exists().where(
        Cordon.node_id == Node.id, Cordon.reason_code.in_((BY_PERSON, MAINTENANCE, DRAIN)), those_that_stand(now)
    )
    is_open = exists().where(
        Incident.kind == IncidentKind.NODE_LOST, Incident.subject_id == Node.id, Incident.closed_at.is_(None)
    )
    query = select(Node.id, Node.name, Node.rack, Node.num_gpus, Node.last_heartbeat_at).where(
        Node.contact == Contact.LOST, or_(last_at <= since, is_open), ~person_acts
    )
    return [
        Need(
            IncidentKind.NODE_LOST,
            "node",
            node_id,
            f"node {name} is LOST, with its {num_gpus} GPUs: its host has sent no heartbeat since "
            f"{'its enrolment' if heard_at is None else f'{heard_at:%Y-%m-%d %H:%M:%S} UTC'}",
            {
                "node_id": node_id,
                "node_name": name,
                "rack": rack,
                "last_heartbeat_at": None if heard_at is None else heard_at.isoformat(),
                "to_do": f"Check power, network and host worker of {name}. If it stays away, state it: "
                f"`muster cordon create --node {name} --reason …`.",
            },
        )
        for node_id, name, rack, num_gpus, heard_at in session.execute(query)
    ]


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
