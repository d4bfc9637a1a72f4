"""The keeper of stalled attempts: it joins the hosts' reports to one verdict, and acts on it by the job's ``on_hang``.

    host A: report ──┐
    host B: report ──┼── each host in contact ── judge_hang ── verdict, event ── restart, hold, notify
    host C: LOST   ──┘

A host in contact that reports nothing may do legal work for which the others wait, such as an evaluation on rank 0. So
there is no verdict before it reports too, or has kept silent for as long as any phase may take. Nor is there one while
ranks use the processor alone, as in a dead loop, and their GPUs may have worked (``gpu_use``). Such a host reports
early: if its GPUs are known to wait in a collective it counts as stalled, and until then as one that reports nothing.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from control.attempts.attempts import LoadedAttempt, lock_attempt, stop_attempt
from control.attempts.hangs import num_hangs_in_a_row
from control.attempts.mapping import grace_ms, job_request
from control.attempts.ranks import host_of_rank
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.incidents.incidents import close_incident, open_about, open_incident
from control.policy.policies import active_policy
from control.watch.gpu_use import gpus_may_have_worked, have_gpus_waited
from control.watch.learning import has_learnt
from control.watch.stall_reports import early_reports, needs_gpus, reports_of, unjudged
from control.watch.verdicts import has_twin, record_verdict
from muster.db.models import Attempt, AttemptHost, Incident, Node, StallReport, VerdictRow
from muster.domain.errors import MusterError
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.ids import AttemptId
from muster.domain.job.verdicts import VerdictKind, VerdictReaction, VerdictState
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission, Principal
from muster.domain.state_sets import PARTS_THAT_MAY_RUN
from muster.domain.states import AttemptState, Contact, StopReason
from watch.forensics.judge import judge_hang
from watch.verdicts import Verdict

JUDGE: Final = declare_action("stall.judge")
SETTLE: Final = declare_action("stall.settle")
STOP_GRACE_S: Final = 10.0
"""Longest time from SIGTERM to SIGKILL of a hung attempt: its ranks cannot meet to save a checkpoint."""
WHY_CLOSED: Final = "its attempt has ended or makes progress again, or the verdict was dismissed"
_BATCH: Final = 100
_log = structlog.get_logger(__name__)


def judge_stalls_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Judge the attempts whose reports are complete or have waited long enough. Return how many were judged."""
    with units.read() as session:
        due = _due(session, units.clock())
        over = _settled(session)
    for attempt_id in due:
        try:
            retrying(lambda attempt_id=attempt_id: _judge(units, principal, attempt_id))  # type: ignore[misc]  # bound at once
        except MusterError:
            raise  # the database's; the next turn tries again
        except Exception:  # noqa: BLE001  # whatever a program wrote, the others are judged
            _log.exception("stall_not_judged", attempt_id=attempt_id)
            _pass_over(units, principal, attempt_id)
    for incident_id in over:
        _close(units, principal, incident_id)
    return len(due)


def _pass_over(units: UnitOfWorkFactory, principal: Principal, attempt_id: AttemptId) -> None:
    """Take the reports for judged: a program wrote most of them, and none may stop the judge of the others."""
    with units.begin(principal, JUDGE, quiet=True) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        for row in unjudged(unit, attempt_id):
            row.judged_at = unit.now


def _due(session: Session, now: datetime) -> Sequence[AttemptId]:
    """Return attempts of which each host in contact has sent a report, or one has waited for as long as any may."""
    longest_s = active_policy(session).watch.unknown.longest_s
    hosts = (
        select(func.count())
        .select_from(AttemptHost)
        .join(Node, Node.id == AttemptHost.node_id)
        .where(AttemptHost.attempt_id == StallReport.attempt_id, Node.contact == Contact.LIVE)
        .where(AttemptHost.state.in_(PARTS_THAT_MAY_RUN))
        .scalar_subquery()
    )
    waited = func.min(StallReport.received_at) <= now - timedelta(seconds=longest_s)
    query = (
        select(StallReport.attempt_id)
        .join(Attempt, Attempt.id == StallReport.attempt_id)
        .where(StallReport.judged_at.is_(None), Attempt.state == AttemptState.RUNNING)
        .group_by(StallReport.attempt_id)
        .having(or_(waited, func.count() >= hosts))
        .order_by(func.min(StallReport.received_at))
        .limit(_BATCH)
    )
    return session.scalars(query).all()


def _judge(units: UnitOfWorkFactory, principal: Principal, attempt_id: AttemptId) -> None:
    with units.begin(principal, JUDGE, quiet=True) as unit:  # a report that repeats a verdict leaves no trace
        unit.principal.require(Permission.SYSTEM_RUN)
        loaded = lock_attempt(unit, attempt_id)
        rows = unjudged(unit, attempt_id)
        if not rows:
            return
        policy = active_policy(unit.session)
        early = early_reports(unit, attempt_id)
        do_wait = have_gpus_waited(unit, loaded, early)
        if not do_wait and not _has_waited(unit, rows, policy):
            for row in early:
                row.judged_at = unit.now
            return
        found = judge_hang(reports_of(unit, loaded, do_gpus_wait=do_wait))
        for row in rows:
            row.judged_at = unit.now
        if gpus_may_have_worked(unit, loaded):
            return
        if has_twin(unit, loaded, found):
            return
        reaction = _reaction(unit, loaded, policy, found)
        host = host_of_rank(loaded, found.ranks[0]) if found.ranks else None
        node_id = None if host is None else host.node_id
        verdict = record_verdict(unit, loaded, found, node_id, reaction) or _newest(unit, loaded)
        if verdict is not None:
            _react(unit, loaded, verdict, reaction, policy)


def _has_waited(unit: UnitOfWork, rows: Sequence[StallReport], policy: Policy) -> bool:
    """Return whether a host that certainly stands still has waited for the others for as long as any phase may take."""
    firm = [row.received_at for row in rows if not needs_gpus(row)]
    return bool(firm) and min(firm) <= unit.now - timedelta(seconds=policy.watch.unknown.longest_s)


def _newest(unit: UnitOfWork, loaded: LoadedAttempt) -> VerdictRow | None:
    """Return the attempt's newest verdict of a hang: beyond the limit of such ones the job's incident names it."""
    query = select(VerdictRow).where(VerdictRow.attempt_id == loaded.attempt.id, VerdictRow.kind == VerdictKind.HANG)
    return unit.session.scalar(query.order_by(VerdictRow.id.desc()).limit(1))


def _reaction(unit: UnitOfWork, loaded: LoadedAttempt, policy: Policy, found: Verdict) -> VerdictReaction:
    """Return the job's reaction: a hold once its restarts after hangs are used up, none for an ending attempt.

    A rule whose verdicts of this cause on this job were dismissed too often only notifies.
    """
    if loaded.attempt.state is not AttemptState.RUNNING:
        return VerdictReaction.NONE
    is_muted = has_learnt(
        unit,
        loaded.job.id,
        found.kind,
        found.cause,
        policy.watch,
        phase=found.phase,
        is_measured=found.is_measured,
    )
    if is_muted:
        return VerdictReaction.NOTIFY
    rule = job_request(loaded.job).on_hang or policy.watch.on_hang
    most = policy.watch.hang_restarts
    if rule == "restart" and num_hangs_in_a_row(unit.session, loaded.job, most=most) >= most:
        rule = "hold"
    return VerdictReaction(rule)


def _react(
    unit: UnitOfWork, loaded: LoadedAttempt, verdict: VerdictRow, reaction: VerdictReaction, policy: Policy
) -> None:
    if reaction in {VerdictReaction.RESTART, VerdictReaction.HOLD}:
        own = timedelta(milliseconds=grace_ms(job_request(loaded.job), Timers.of(policy)))
        grace = min(own, timedelta(seconds=STOP_GRACE_S))
        stop_attempt(unit, loaded, StopReason.HANG, policy, grace=grace, detail=verdict.sentence)
    elif reaction is VerdictReaction.NOTIFY and not open_about(unit, IncidentKind.JOB_STALLED, [loaded.job.id]):
        payload = {"attempt_id": loaded.attempt.id, "tenant_id": loaded.job.tenant_id, "verdict_id": verdict.id}
        summary = f"job {loaded.job.id} makes no progress: {verdict.sentence}"[:2_000]
        open_incident(unit, IncidentKind.JOB_STALLED, "job", loaded.job.id, summary, payload)


def _settled(session: Session) -> Sequence[str]:
    """Return open incidents of jobs whose attempt has ended or moves again, or whose verdict was dismissed."""
    attempt_id = Incident.payload["attempt_id"].astext
    still = select(StallReport.node_id).where(StallReport.attempt_id == attempt_id, StallReport.moved_at.is_(None))
    query = (
        select(Incident.id)
        .join(VerdictRow, VerdictRow.id == Incident.payload["verdict_id"].astext)
        .join(Attempt, Attempt.id == attempt_id)
        .where(Incident.kind == IncidentKind.JOB_STALLED, Incident.closed_at.is_(None))
        .where(
            or_(
                Attempt.state == AttemptState.ENDED,
                VerdictRow.state == VerdictState.DISMISSED,
                ~still.exists(),
            )
        )
        .limit(_BATCH)
    )
    return session.scalars(query).all()


def _close(units: UnitOfWorkFactory, principal: Principal, incident_id: str) -> None:
    with units.begin(principal, SETTLE) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        incident = unit.session.get_one(Incident, incident_id, with_for_update=True)
        if incident.closed_at is None:
            close_incident(unit, incident, reason=WHY_CLOSED)
