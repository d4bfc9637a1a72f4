"""False alarms by rule: how often verdicts were dismissed, and which rules therefore only notify of a job.

A dismissal counts for as long as the policy's ``watch.false_alarms_days``, unless an operator resets the job's rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, and_, case, func, select

from control.attempts.attempts import lock_job
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import visible_rows
from control.policy.policies import active_policy
from muster.db.models import VerdictRow
from muster.domain.ids import JobId
from muster.domain.job.verdicts import VerdictKind, VerdictState
from muster.domain.policy.watch import WatchPolicy
from muster.domain.principals import Permission
from watch.false_alarms import MAY_BE_MUTED, NEVER_MUTED, may_be_muted, only_notifies, proposal_of, rule_of

RESET: Final = declare_action("verdict.reset_rules")
MOST_COUNTS: Final = 200
MOST_LEARNT: Final = 100
MOST_READ: Final = 20_000
"""Verdicts of which the counts are made, the newest: any number of jobs may have them."""


@dataclass(frozen=True, slots=True)
class RuleCount:
    """Verdicts of one rule and cause. ``num_dismissed``: the false alarms among them."""

    kind: VerdictKind
    cause: str
    rule: str
    num_verdicts: int
    num_dismissed: int


@dataclass(frozen=True, slots=True)
class LearntRule:
    """A rule that only notifies of a job for a cause. ``proposal``: what an operator may change instead."""

    job_id: JobId
    kind: VerdictKind
    cause: str
    rule: str
    num_dismissed: int
    proposal: str


@dataclass(frozen=True, slots=True)
class RuleCounts:
    """``since``: verdicts from then on are counted, as the window of the policy or ``MOST_READ`` bounds them."""

    counts: Sequence[RuleCount]
    learnt: Sequence[LearntRule]
    since: datetime


_PART: Final = case((VerdictRow.kind == VerdictKind.HANG, VerdictRow.phase), else_="")
"""Part of a rule: each phase has a limit of its own, by which a hang is noticed. Other kinds have one rule each."""


def has_learnt(
    unit: UnitOfWork,
    job_id: JobId,
    kind: VerdictKind,
    cause: str,
    policy: WatchPolicy,
    *,
    phase: str = "",
    is_measured: bool = False,
) -> bool:
    """Return whether a rule only notifies of the job, since its verdicts of the cause were dismissed too often.

    ``phase``: of a hang. ``is_measured``: the verdict rests on a measurement, so nothing mutes it.
    """
    if policy.false_alarms == 0 or not may_be_muted(kind, cause, is_measured=is_measured):
        return False
    query = select(func.count()).where(
        VerdictRow.job_id == job_id, VerdictRow.kind == kind, VerdictRow.cause == cause, counts_since(unit.now, policy)
    )
    if kind is VerdictKind.HANG:
        query = query.where(VerdictRow.phase == phase)
    return only_notifies(unit.session.scalar(query) or 0, policy)


def counts_since(now: datetime, policy: WatchPolicy) -> ColumnElement[bool]:
    """Return the condition of a dismissed verdict that still counts as a false alarm."""
    return and_(
        VerdictRow.state == VerdictState.DISMISSED,
        VerdictRow.dismissed_at > now - timedelta(days=policy.false_alarms_days),
        VerdictRow.forgotten_at.is_(None),
    )


def reset(unit: UnitOfWork, job_id: JobId, *, reason: str) -> RuleCounts:
    """Let the dismissals of a job's verdicts count no more, so that no rule only notifies of it. Return its counts.

    Raises:
        NotFoundError: there is no such job.
    """
    unit.principal.require(Permission.INCIDENT_WRITE)
    job = lock_job(unit, job_id)
    counting = VerdictRow.state == VerdictState.DISMISSED, VerdictRow.forgotten_at.is_(None)
    found = unit.session.scalars(
        select(VerdictRow).where(VerdictRow.job_id == job_id, *counting).order_by(VerdictRow.id).with_for_update()
    ).all()
    for row in found:
        row.forgotten_at = unit.now
    if found:
        unit.session.flush()
        payload = {"verdict_ids": [row.id for row in found[:MOST_COUNTS]], "num_verdicts": len(found), "reason": reason}
        unit.emit("job.verdict_rules_reset", "job", job_id, tenant_id=job.tenant_id, payload=payload)
        unit.audit("verdict.reset_rules", "job", job_id, reason=reason, detail={"num_verdicts": len(found)})
    return rules(unit, job_id=job_id)


def rules(unit: UnitOfWork, *, job_id: JobId | None = None) -> RuleCounts:
    """Return the counts of verdicts that the caller may see, by rule and cause, the most false alarms first.

    Counted is the time for which a dismissal counts, and no more than the newest ``MOST_READ``.
    """
    unit.principal.require(Permission.JOB_READ)
    about = [visible_rows(unit.principal, VerdictRow.tenant_id)]
    if job_id is not None:
        about.append(VerdictRow.job_id == job_id)
    since = unit.now - timedelta(days=active_policy(unit.session).watch.false_alarms_days)
    newest = (
        select(VerdictRow.kind, VerdictRow.cause, _PART.label("part"), VerdictRow.state, VerdictRow.created_at)
        .where(*about, VerdictRow.created_at > since)
        .order_by(VerdictRow.created_at.desc())
        .limit(MOST_READ)
        .subquery()
    )
    num_read, oldest = unit.session.execute(select(func.count(), func.min(newest.c.created_at))).one()
    num_dismissed = func.count().filter(newest.c.state == VerdictState.DISMISSED)
    query = (
        select(newest.c.kind, newest.c.cause, newest.c.part, func.count(), num_dismissed)
        .group_by(newest.c.kind, newest.c.cause, newest.c.part)
        .order_by(num_dismissed.desc(), func.count().desc(), newest.c.kind, newest.c.cause)
        .limit(MOST_COUNTS)
    )
    counts = [
        RuleCount(kind, cause, rule_of(kind, phase), num_verdicts, dismissed)
        for kind, cause, phase, num_verdicts, dismissed in unit.session.execute(query)
    ]
    return RuleCounts(counts, _learnt(unit, about), oldest if num_read == MOST_READ else since)


def _learnt(unit: UnitOfWork, about: Sequence[ColumnElement[bool]]) -> Sequence[LearntRule]:
    policy = active_policy(unit.session).watch
    if policy.false_alarms == 0:
        return ()
    query = (
        select(VerdictRow.job_id, VerdictRow.kind, VerdictRow.cause, _PART, func.count())
        .where(*about, counts_since(unit.now, policy))
        .where(VerdictRow.kind.in_(MAY_BE_MUTED), VerdictRow.cause.not_in(NEVER_MUTED))
        .group_by(VerdictRow.job_id, VerdictRow.kind, VerdictRow.cause, _PART)
        .having(func.count() >= policy.false_alarms)
        .order_by(func.max(VerdictRow.id).desc())
        .limit(MOST_LEARNT)
    )
    return [
        LearntRule(job_id, kind, cause, rule_of(kind, phase), num, proposal_of(kind, phase, cause, num, policy))
        for job_id, kind, cause, phase, num in unit.session.execute(query)
    ]
