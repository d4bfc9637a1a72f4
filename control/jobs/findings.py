"""Findings about the speed of a job, from the reports of its ranks: ``ledger.findings`` judges them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import or_, select

from control.core.unit_of_work import UnitOfWork
from control.jobs.read import row_of
from control.jobs.training_views import ranks_of, steps_since
from control.policy.policies import active_policy
from ledger.findings import Finding, Report, findings_of
from muster.db.models import Attempt, TrainingRank
from muster.domain.ids import AttemptId, JobId
from muster.domain.times import to_ms

SPAN: Final = timedelta(days=2)
"""A day is compared with the day before."""
POINTS: Final = 400
"""So many steps of an attempt are read in that time."""
ATTEMPTS: Final = 20
"""At most so many attempts are read, the newest."""
NO_PACE: Final = "its program reports no pace: it does not train by `muster.train`, or has done no step yet"
WELL: Final = "the parts of its steps, its MFU and its throughput, as far as they are reported, are within bounds"


@dataclass(frozen=True, slots=True)
class JobFindings:
    """Findings, the largest gain first. ``why``: why there is none; None as well for a job that has never run."""

    findings: Sequence[Finding]
    why: str | None


def findings_of_job(unit: UnitOfWork, job_id: JobId) -> JobFindings:
    """Return what is found about the newest attempt of a visible job of which a rank has reported."""
    job = row_of(unit, job_id)
    ranks = [
        Report(to_ms(rank.updated_at), rank.world_size, rank.pace)
        for rank in ranks_of(unit, job.id)
        if rank.pace is not None
    ]
    if not ranks:
        has_run = unit.session.scalar(select(Attempt.id).where(Attempt.job_id == job.id).limit(1)) is not None
        return JobFindings((), NO_PACE if has_run else None)
    newest_ms = max(rank.at_ms for rank in ranks)
    since = unit.now - SPAN if newest_ms >= to_ms(unit.now - SPAN) else None
    reports = [] if since is None else _reports_of(unit, job.id, since)
    found = findings_of(ranks, reports, active_policy(unit.session).findings)
    return JobFindings(found, None if found else WELL)


def _reports_of(unit: UnitOfWork, job_id: JobId, since: datetime) -> list[Report]:
    """Return the paces of rank 0 in its attempts since then."""
    query = (
        select(Attempt.id, TrainingRank.world_size)
        .join(TrainingRank, (TrainingRank.attempt_id == Attempt.id) & (TrainingRank.rank == 0))
        .where(Attempt.job_id == job_id, or_(Attempt.ended_at.is_(None), Attempt.ended_at >= since))
        .order_by(Attempt.number.desc())
        .limit(ATTEMPTS)
    )
    return [
        Report(to_ms(step.at), world_size, step.pace)
        for attempt_id, world_size in unit.session.execute(query).all()
        for step in steps_since(unit, AttemptId(attempt_id), since, points=POINTS, with_pace=True)
        if step.pace is not None
    ]
