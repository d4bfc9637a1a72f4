"""The reconciler: applies elapsed time to all rows that wait on it. Nothing depends on a message having survived.

It reads only jobs and attempts on which time can have an effect, each in a unit of its own, so that one poisoned row
never stops the others.
"""

import functools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import CompoundSelect, Select, and_, bindparam, or_, select, union, update
from sqlalchemy.orm import Session

from control.attempts import budgets, fault_attribution, pairwise_checks
from control.attempts.attempts import LoadedAttempt, lock_attempt, lock_job, step_attempt, step_job
from control.attempts.mapping import last_contact_of
from control.core.lease_grace import API_SILENCE, lease_grace_since_ms
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.policy.policies import active_policy
from muster.db.models import Attempt, AttemptHost, Cluster, Job, Node, NodeContactChange
from muster.domain.errors import MusterError
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.lifecycle import attempt as attempts
from muster.domain.lifecycle import job as jobs
from muster.domain.lifecycle.contact import LastContact, contact_after
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission, Principal
from muster.domain.state_sets import PARTS_THAT_MAY_RUN
from muster.domain.states import AttemptState, Contact, HostPartState, JobState
from muster.domain.times import to_ms

TICK_ATTEMPT: Final = declare_action("reconcile.attempt")
TICK_JOB: Final = declare_action("reconcile.job")
TICK_CONTACT: Final = declare_action("reconcile.contact")
HEARTBEAT: Final = declare_action("api.heartbeat")

_log = structlog.get_logger(__name__)


def beat(unit: UnitOfWork) -> None:
    """Store that the API takes heartbeats, and after a gap since when it does again (R15). Begin the unit ``quiet``."""
    unit.principal.require(Permission.SYSTEM_RUN)
    cluster = unit.session.scalars(select(Cluster).with_for_update()).one()
    if cluster.api_alive_at is None or unit.now - cluster.api_alive_at > API_SILENCE:
        cluster.accepts_heartbeats_since = unit.now
    cluster.api_alive_at = unit.now


def reconcile(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Run one round. Return how many rows time had an effect on, or may have had."""
    with units.read() as session:
        policy = active_policy(session)
        now = units.clock()
        job_ids = _due_jobs(session, now)
        attempt_ids = _due_attempts(session, now, policy)
    with units.begin(principal, TICK_CONTACT) as unit:
        _note_contacts(unit, policy)
    for job_id in job_ids:
        _tick_job(units, principal, job_id)
    for attempt_id in attempt_ids:
        _tick_attempt(units, principal, attempt_id)
    return len(job_ids) + len(attempt_ids) + budgets.stop_what_is_spent(units, principal)


def _due_jobs(session: Session, now: datetime) -> Sequence[JobId]:
    return session.scalars(_jobs_due(), {"now": now}).all()


@functools.cache
def _jobs_due() -> Select[JobId]:
    """Return the query, built once: each round asks it."""
    is_due = or_(Job.next_try_at.is_(None), Job.next_try_at <= bindparam("now"))
    return select(Job.id).where(Job.state == JobState.RECOVERING, is_due)


def _due_attempts(session: Session, now: datetime, policy: Policy) -> Sequence[AttemptId]:
    silent_since = now - timedelta(seconds=policy.contact.lost_after_s)
    return session.scalars(_attempts_due(), {"now": now, "silent_since": silent_since}).all()


@functools.cache
def _attempts_due() -> CompoundSelect[AttemptId]:
    """Return the query, built once: each round asks it.

    Two queries, each with an index of its own: by one with both conditions every attempt of the past would be read.
    """
    has_rebooted = and_(AttemptHost.boot_id.is_not(None), Node.boot_id != AttemptHost.boot_id)
    is_unheard = and_(
        AttemptHost.state.in_(PARTS_THAT_MAY_RUN),
        or_(Node.last_heartbeat_at <= bindparam("silent_since"), AttemptHost.omitted_at.is_not(None), has_rebooted),
    )
    is_live = and_(
        Attempt.state != AttemptState.ENDED,
        or_(
            Attempt.state.in_([AttemptState.PLACED, AttemptState.CLAIMING, AttemptState.LOST]),
            Attempt.wall_deadline_at <= bindparam("now"),
            is_unheard,
        ),
    )
    was_rebooted = and_(Attempt.state == AttemptState.ENDED, AttemptHost.state != HostPartState.CLEAN, has_rebooted)
    hosts = (
        select(Attempt.id)
        .join(AttemptHost, AttemptHost.attempt_id == Attempt.id)
        .join(Node, Node.id == AttemptHost.node_id)
    )
    return union(hosts.where(is_live), hosts.where(was_rebooted))


def _tick_job(units: UnitOfWorkFactory, principal: Principal, job_id: JobId) -> None:
    try:
        with units.begin(principal, TICK_JOB) as unit:
            job = lock_job(unit, job_id)
            policy = active_policy(unit.session)
            if job.restarts_used and (why := fault_attribution.excuse_for(unit, job, policy)) is not None:
                step_job(unit, job, jobs.Excused(why), policy)
                payload = {"reason": why, "restarts_used": job.restarts_used}
                unit.emit("job.restart_given_back", "job", job.id, tenant_id=job.tenant_id, payload=payload)
            step_job(unit, job, jobs.Tick(), policy)
    except MusterError as error:
        _log.warning("job_not_reconciled", job_id=job_id, fault=error.detail)


def _tick_attempt(units: UnitOfWorkFactory, principal: Principal, attempt_id: AttemptId) -> None:
    try:
        # Quiet: a repeated wake-up changes only its own time; every state edge emits its event all the same.
        with units.begin(principal, TICK_ATTEMPT, quiet=True) as unit:
            loaded = lock_attempt(unit, attempt_id)
            policy = active_policy(unit.session)
            step_attempt(unit, loaded, _tick_of(unit, loaded), policy)
            pairwise_checks.move_on(unit, loaded, policy)
    except MusterError as error:
        _log.warning("attempt_not_reconciled", attempt_id=attempt_id, fault=error.detail)


def _tick_of(unit: UnitOfWork, loaded: LoadedAttempt) -> attempts.Tick:
    nodes = unit.session.scalars(select(Node).where(Node.id.in_([host.node_id for host in loaded.hosts]))).all()
    hearings: dict[NodeId, LastContact] = {}
    for node in nodes:
        hearing = last_contact_of(node)
        if hearing is not None:
            hearings[node.id] = hearing
    return attempts.Tick(hearings, server_started_ms=lease_grace_since_ms(unit))


def _note_contacts(unit: UnitOfWork, policy: Policy) -> None:
    """Move contacts LIVE → SILENT → LOST by the time since the last heartbeat.

    A heartbeat itself returns one to LIVE.
    """
    silent_ms = round(policy.contact.silent_after_s * 1000)
    lost_ms = round(policy.contact.lost_after_s * 1000)
    horizon = unit.now - timedelta(milliseconds=silent_ms)
    quiet = unit.session.execute(
        select(Node.id, Node.contact, Node.last_heartbeat_at).where(
            Node.contact != Contact.LOST, Node.last_heartbeat_at < horizon
        )
    ).all()
    for node_id, contact, heard_at in quiet:
        now_is = contact_after(to_ms(unit.now) - to_ms(heard_at), silent_ms=silent_ms, lost_ms=lost_ms)
        if now_is is contact:
            continue
        moved = unit.session.execute(
            update(Node)
            .where(Node.id == node_id, Node.last_heartbeat_at == heard_at)
            .values(contact=now_is)
            .execution_options(synchronize_session=False)
            .returning(Node.id)
        ).all()
        if moved:
            unit.session.add(NodeContactChange(node_id=node_id, at=unit.now, contact=now_is))
            unit.emit(f"node.{now_is.lower()}", "node", node_id, payload={"from": contact, "to": now_is})
