"""Preflight before placement: one host checks that a pending job can start, before any GPU is held for it.

The request is stored in a unit of work. The host's heartbeat lists it until the host has answered (a wake-up hastens
that), and the host answers in its heartbeats until they list it no more. The number of the preflight is the fence: a
late answer of a host that is not asked any more has no effect.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, and_, exists, false, func, or_, select
from sqlalchemy.orm import Session

from control.attempts.attempts import lock_job, step_job, wake
from control.attempts.mapping import job_request, show_bundle_awaited
from control.attempts.orders import preflight_order_of
from control.content.uses import note_awaited
from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.placement.preflight_hosts import AbleHosts, builds, num_builds
from control.placement.queue_head import MAX_QUEUE
from control.placement.wait_records import note_waiting
from control.policy.policies import active_policy
from muster.db.models import Attempt, AttemptHost, GpuHold, Job, Node, PlacementPreflight
from muster.db.pipeline.packed_arrays import within
from muster.db.queries.residency import residencies
from muster.domain.exit.causes import CAUSE_RULES, Avoidance
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.job.preflight import Ask, Decision, GiveUp, MayBePlaced, Preflight, PreflightState, Waits, decide
from muster.domain.job.request import ENVIRONMENT
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.lifecycle import job as jobs
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission, Principal
from muster.domain.residency import ANY, site_words
from muster.domain.states import Cause, JobState
from muster.domain.times import to_ms
from muster.wire.host import PreflightOrder, PreflightReport
from scheduler.model import Verdict, Waiting

REQUEST: Final = declare_action("preflight.request")
NOTE_WAITING: Final = declare_action("preflight.note_waiting")
_NO_BUILDER: Final = "no host that is in contact and open to jobs builds environments"
_HOSTS_FAULT: Final = tuple(cause for cause in Cause if CAUSE_RULES[cause].avoid is Avoidance.NODE)
_DECIDED: Final = (PreflightState.PASSED, PreflightState.ABANDONED)
_MOST_LISTED: Final = 16
"""Maximum listed to one host: one check, builds, and more only where decisions crossed."""


class _Decided(NamedTuple):
    """A job and the decision about it. ``number``: of its preflight, 0 for none. ``verdict``: why it waits for one."""

    job: Job
    number: int
    what: Decision
    verdict: Verdict | None


def request_preflights(units: UnitOfWorkFactory, principal: Principal) -> frozenset[JobId]:
    """Ask hosts about pending jobs without a preflight. Return the jobs that are placed without one."""
    with units.read() as session:
        policy = active_policy(session)
        decided = _decided(session, policy, units.clock())
    waiting = [
        Waiting(job.id, verdict)
        for job, _, _, verdict in decided
        if verdict is not None and job.state_reason != verdict.why
    ]
    for job, number, what, _ in decided:
        if isinstance(what, Ask | GiveUp):
            _commit(units, principal, job.id, what, number, policy)
    if waiting:
        with units.begin(principal, NOTE_WAITING, quiet=True) as unit:
            note_waiting(unit, waiting)
    return _placed_unlooked(decided)


def without_preflight(session: Session, now: datetime) -> frozenset[JobId]:
    """Return what ``request_preflights`` would return now, and ask no host."""
    return _placed_unlooked(_decided(session, active_policy(session), now))


def _placed_unlooked(decided: Sequence[_Decided]) -> frozenset[JobId]:
    return frozenset(one.job.id for one in decided if isinstance(one.what, MayBePlaced))


def _decided(session: Session, policy: Policy, now: datetime) -> list[_Decided]:
    """Decide about each job at the head of the jobs without a preflight."""
    rows = _head_of_unseen(session, policy)
    if not rows:
        return []
    able, found = AbleHosts(session, [job for job, _ in rows], now), []
    for job, look in rows:
        what = _decision(job, look, able, now)
        verdict = _verdict(job, what, able) if isinstance(what, Waits) else None
        found.append(_Decided(job, 0 if look is None else look.number, what, verdict))
    return found


def not_yet(session: Session, policy: Policy, queue: Collection[JobId], without: Collection[JobId]) -> frozenset[JobId]:
    """Return the jobs of the queue that are not to be placed yet, also one that came since hosts were asked.

    ``without``: jobs that are placed without a preflight.
    """
    if not queue:
        return frozenset()
    query = select(Job.id).outerjoin(PlacementPreflight, PlacementPreflight.job_id == Job.id).where(*_unseen(policy))
    return frozenset(session.scalars(query.where(within(Job.id, queue)))).difference(without)


def _commit(
    units: UnitOfWorkFactory, principal: Principal, job_id: JobId, decision: Ask | GiveUp, was: int, policy: Policy
) -> None:
    """Commit the decision. ``was``: the number of the preflight that was decided upon, 0 for none."""

    def commit() -> None:
        with units.begin(principal, REQUEST, quiet=True) as unit:
            _carry_out(unit, job_id, decision, was, policy)

    retrying(commit)


def _verdict(job: Job, waits: Waits, able: AbleHosts) -> Verdict:
    if waits.on is not None:
        return Verdict(f"being checked on {able.name_of(waits.on)}", WaitReason.PREFLIGHT)
    if able.are_all_outside(job):
        where = site_words(able.residency(job).sites or ())
        why = f"held by residency: its tenant's jobs may run at {where} only, and no host that could check it is there"
        return Verdict(why, WaitReason.RESIDENCY)
    if job_request(job).awaits_bundle:
        why = "waits for a host that fits the job, has git and makes nothing else just now, to make its bundle"
        return Verdict(why, WaitReason.PREFLIGHT)
    return Verdict(waits.why or "waits for a host to check that it can start there", WaitReason.PREFLIGHT)


def _unseen(policy: Policy) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on jobs that need a preflight.

    Each job with an environment does, whatever the policy says: it is built while no GPU waits for it. A job with a
    hold or a firm start waits for no preflight: it would lose its place. One whose bundle has still to be made from a
    commit needs it in any case.
    """
    least = policy.dispatch.preflight_from_nodes
    needs_environment = func.jsonb_exists(Job.request["capabilities"], ENVIRONMENT)
    nodes = func.coalesce(Job.wanted_nodes, Job.request["shape"]["nodes"].as_integer())
    is_seen = PlacementPreflight.state.in_(_DECIDED)
    is_wanted = and_(
        needs_environment if least is None else or_(nodes >= least, needs_environment),
        ~exists().where(GpuHold.job_id == Job.id),
        ~func.coalesce(func.jsonb_exists(Job.wait_verdict, "firm_start"), false()),
        or_(PlacementPreflight.job_id.is_(None), ~is_seen, _has_lacked_since()),
    )
    awaits_bundle = func.coalesce(Job.request["awaits_bundle"].as_boolean(), false())
    return Job.state == JobState.QUEUED, or_(awaits_bundle, is_wanted)


def _head_of_unseen(session: Session, policy: Policy) -> list[tuple[Job, PlacementPreflight | None]]:
    """Return the oldest such jobs first, at most as many as the queue's head has."""
    query = (
        select(Job, PlacementPreflight)
        .outerjoin(PlacementPreflight, PlacementPreflight.job_id == Job.id)
        .where(*_unseen(policy))
        .order_by(Job.created_at, Job.id)
        .limit(MAX_QUEUE)
    )
    return [(job, look) for job, look in session.execute(query).all()]


def _has_lacked_since() -> ColumnElement[bool]:
    """Return the condition that an attempt after the preflight ended since a host or the program lacked something."""
    was_refused = exists().where(
        AttemptHost.attempt_id == Attempt.id, AttemptHost.exit_record["spawn_fault"].astext == "program"
    )
    is_for_want = or_(Attempt.cause.in_(_HOSTS_FAULT), and_(Attempt.cause == Cause.USER_ERROR, was_refused))
    return exists().where(Attempt.job_id == Job.id, Attempt.number > PlacementPreflight.after_attempt, is_for_want)


def _decision(job: Job, row: PlacementPreflight | None, able: AbleHosts, now: datetime) -> Decision:
    """Decide about one job. While every host is busy, it waits: the next cycle begins at the head of the queue."""
    if able.are_all_busy(job):
        return Waits(row.node_id if row is not None and row.is_open(now) else None)
    if builds(job) and able.are_all_outside(job):
        return Waits(None)
    look = None
    if row is not None:
        tried = tuple(NodeId(node_id) for node_id in row.tried)
        look = Preflight(row.state, row.node_id, to_ms(row.deadline_at), tried)
    is_out_of_date = row is not None and row.state in _DECIDED  # such a job is read again for no other reason
    decision = decide(look, able.of(job), able.busy(job), to_ms(now), is_out_of_date=is_out_of_date)
    if isinstance(decision, MayBePlaced) and job_request(job).awaits_bundle:
        return Waits(None)  # no host could start it: there is no bundle yet
    if isinstance(decision, MayBePlaced) and builds(job) and not able.knows_how(job):
        return Waits(None, _NO_BUILDER)  # any other host would only refuse it
    if isinstance(decision, Ask):
        able.take(decision.node_id, job)
    return decision


def _carry_out(unit: UnitOfWork, job_id: JobId, decision: Ask | GiveUp, was: int, policy: Policy) -> None:
    unit.principal.require(Permission.SYSTEM_RUN)
    job, row = lock_job(unit, job_id), _row_of(unit, job_id)
    if job.state is not JobState.QUEUED or was != (0 if row is None else row.number):
        return  # the next cycle decides again
    if isinstance(decision, Ask):
        _ask(unit, job, row, decision, policy)
    elif row is not None:
        _give_up(unit, job, row, decision)


def _row_of(unit: UnitOfWork, job_id: JobId) -> PlacementPreflight | None:
    return unit.session.get(PlacementPreflight, job_id, populate_existing=True)


def _ask(unit: UnitOfWork, job: Job, row: PlacementPreflight | None, ask: Ask, policy: Policy) -> None:
    last = unit.session.scalar(select(func.max(Attempt.number)).where(Attempt.job_id == job.id))
    builds_s = policy.environment.build_s * num_builds(job)
    deadline_at = unit.now + timedelta(seconds=policy.dispatch.preflight_within_s + builds_s)
    asked: dict[str, Any] = {
        "state": PreflightState.REQUESTED,
        "node_id": ask.node_id,
        "tried": list(ask.tried),
        "after_attempt": last or 0,
        "requested_at": unit.now,
        "deadline_at": deadline_at,
        "answered_at": None,
        "why": "",
    }
    if row is None:
        row = PlacementPreflight(job_id=job.id, number=1, **asked)
        unit.session.add(row)
    else:
        row.number += 1
        for name, value in asked.items():
            setattr(row, name, value)
    name = unit.session.get_one(Node, ask.node_id).name
    job.state_reason, job.updated_at = f"being checked on {name}", unit.now
    told = {"node_id": ask.node_id, "number": row.number, "deadline_at": deadline_at.isoformat()}
    unit.emit("job.preflight_requested", "job", job.id, tenant_id=job.tenant_id, payload=told)
    wake(unit, ask.node_id, AttemptId(row.preflight_id))
    unit.session.flush()


def _give_up(unit: UnitOfWork, job: Job, row: PlacementPreflight, decision: GiveUp) -> None:
    if builds(job):
        _hold_unbuilt(unit, job, row, decision)
        return
    last = unit.session.scalar(select(func.max(Attempt.number)).where(Attempt.job_id == job.id))
    row.state, row.answered_at, row.after_attempt = PreflightState.ABANDONED, unit.now, last or 0
    why = f"none of {len(decision.tried)} hosts could check that it can start there; it is placed without a preflight"
    told = {"tried": list(decision.tried), "last": row.why, "reason": why}
    unit.emit("job.preflight_abandoned", "job", job.id, tenant_id=job.tenant_id, payload=told)


def _hold_unbuilt(unit: UnitOfWork, job: Job, row: PlacementPreflight, decision: GiveUp) -> None:
    """Hold a job whose bundle or environment no host could get: placed without a preflight, its GPUs would wait."""
    row.state, row.answered_at = PreflightState.FAILED, unit.now
    num = len(decision.tried)
    hosts = "one host" if num == 1 else f"{num} hosts"
    noun = "bundle or environment" if job_request(job).awaits_bundle else "environment"
    why = f"its {noun} could not be made on {hosts}: {row.why or 'it was not there in time'}"
    step_job(unit, job, jobs.HoldRequested(f"{why}; release the job once that is fixed"), active_policy(unit.session))


def receive_report(unit: UnitOfWork, node_id: NodeId, reports: Sequence[PreflightReport]) -> None:
    """Store a host's answers. A repeated answer, or one to a preflight of another host by now, has no effect.

    Such an answer takes no lock: a node may report anything about jobs that are not its own.
    """
    for job_id, report in sorted(((_job_of(report), report) for report in reports), key=itemgetter(0)):
        row = _row_of(unit, job_id)
        if row is None or not _is_awaited(row, node_id, report):
            continue
        job = lock_job(unit, job_id)
        unit.session.refresh(row)  # the row was read before the lock and may be stale
        if job.state is JobState.QUEUED and _is_awaited(row, node_id, report):
            _take(unit, job, row, report)


def _job_of(report: PreflightReport) -> JobId:
    return JobId(report.preflight_id.rpartition("-")[2])


def _is_awaited(row: PlacementPreflight, node_id: NodeId, report: PreflightReport) -> bool:
    return row.state is PreflightState.REQUESTED and (row.preflight_id, row.node_id) == (report.preflight_id, node_id)


def _take(unit: UnitOfWork, job: Job, row: PlacementPreflight, report: PreflightReport) -> None:
    row.answered_at, row.why = unit.now, report.why
    told = {"node_id": row.node_id, "found": report.found, "checked": list(report.checked), "reason": report.why}
    unit.emit("job.preflight_done", "job", job.id, tenant_id=job.tenant_id, payload=told)
    if report.found == "unable":
        row.deadline_at = unit.now  # the next host, at once
    elif report.found == "fit":
        row.state, job.state_reason = PreflightState.PASSED, "waiting for the scheduler"
        job.updated_at = unit.now
    else:
        row.state = PreflightState.FAILED
        name = unit.session.get_one(Node, row.node_id).name
        why = f"{Cause.USER_ERROR}: {name} checked it before any GPU was taken: {report.why}"
        is_awaited = note_awaited(unit, job.id, job_request(job).bundle, row.requested_at)
        why = why if is_awaited else f"{why}; release the job once that is fixed"
        step_job(unit, job, jobs.HoldRequested(why), active_policy(unit.session))
        if is_awaited:
            show_bundle_awaited(job)
    unit.wake(SCHEDULER_CHANNEL)
    unit.session.flush()


def open_on(unit: UnitOfWork, node_id: NodeId, policy: Policy) -> tuple[PreflightOrder, ...]:
    """Return the host's open preflights, without the ones of tenants whose residency rule excludes the host by now."""
    query = (
        select(PlacementPreflight, Job)
        .join(Job, Job.id == PlacementPreflight.job_id)
        .where(
            PlacementPreflight.node_id == node_id,
            PlacementPreflight.is_open(unit.now),
            Job.state == JobState.QUEUED,
        )
        .order_by(PlacementPreflight.requested_at)
        .limit(_MOST_LISTED)
    )
    rules, labels = residencies(unit.session), unit.session.get_one(Node, node_id).labels
    return tuple(
        PreflightOrder(
            order=preflight_order_of(unit, job, look.preflight_id, look.number, policy),
            within_s=(look.deadline_at - unit.now).total_seconds(),
        )
        for look, job in unit.session.execute(query)
        if rules.get(job.tenant_id, ANY).has_site(labels)
    )


def any_on(node_id: ColumnElement[str], now: ColumnElement[datetime]) -> ColumnElement[bool]:
    """Return the condition that the node has an open preflight. Most heartbeats need only this, with the node's row."""
    return exists().where(PlacementPreflight.node_id == node_id, PlacementPreflight.is_open(now))
