"""Taint of checkpoints that a GPU which computed wrong may have falsified: of every job on it since its fault began.

Attempts that have ended by the time of the judgement are tainted in the transaction of the move that takes the GPU out.
Attempts that still run there are tainted as they are stopped (``evacuation``), with anything that they may yet commit.
Attempts that continued from such a checkpoint are tainted with it, wherever they run (``taint_lineage``).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, or_, select, update

from control.checkpoints.checkpoints import taint
from control.checkpoints.taint_lineage import taint_lineage
from control.core.unit_of_work import UnitOfWork
from muster.db.models import Allocation, AllocationGpu, Attempt
from muster.db.queries.assignments import IS_OR_WAS_ASSIGNED
from muster.domain.ids import AttemptId, GpuUuid, JobId
from muster.domain.policy.document import Policy
from muster.domain.states import AttemptState


def tainted_from(onset: datetime, policy: Policy) -> datetime:
    """Return the time from which results of a GPU are doubted whose fault began at ``onset``."""
    return onset - timedelta(seconds=policy.training.taint_margin_s)


def taint_users(
    unit: UnitOfWork, gpus: Sequence[GpuUuid], onset: datetime, policy: Policy, *, alongside: Sequence[AttemptId] = ()
) -> int:
    """Taint all that jobs on these GPUs since then have committed, reported or not. Return how many rows.

    ``alongside``: attempts that are included, whatever the allocations state.
    """
    return _taint(unit, gpus, tainted_from(onset, policy), alongside, are_ended=False)


def taint_those_that_ended(unit: UnitOfWork, onsets: Mapping[GpuUuid, datetime], policy: Policy) -> int:
    """Taint as ``taint_users`` does, for attempts that end or have ended: no evacuation would taint them.

    ``onsets``: GPU → since when it has its fault.
    """
    if not onsets:
        return 0
    since = {gpu: tainted_from(onset, policy) for gpu, onset in onsets.items()}
    used = (  # a storm takes out hundreds at once, and most ran nothing: one statement finds the ones that did
        select(AllocationGpu.gpu_uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .where(AllocationGpu.gpu_uuid.in_(since), IS_OR_WAS_ASSIGNED, _assigned_since(min(since.values())))
        .distinct()
    )
    gpus = sorted(GpuUuid(uuid) for uuid in unit.session.scalars(used))
    return sum(_taint(unit, [gpu], since[gpu], (), are_ended=True) for gpu in gpus)


def _assigned_since(since: datetime) -> ColumnElement[bool]:
    """Return the condition on an allocation that had its GPUs at ``since``, or later."""
    return or_(Allocation.released_at.is_(None), Allocation.released_at > since)


def _taint(
    unit: UnitOfWork, gpus: Sequence[GpuUuid], since: datetime, alongside: Sequence[AttemptId], *, are_ended: bool
) -> int:
    query = (
        select(Allocation.job_id, Allocation.attempt_id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(AllocationGpu.gpu_uuid.in_(gpus), IS_OR_WAS_ASSIGNED, _assigned_since(since))
        .distinct()
    )
    if are_ended:
        query = query.join(Attempt, Attempt.id == Allocation.attempt_id).where(
            or_(Attempt.state == AttemptState.ENDED, Attempt.ending_cause.is_not(None))
        )
    were_there = unit.session.execute(query).all()
    attempt_ids = sorted({AttemptId(row.attempt_id) for row in were_there} | set(alongside))
    if not attempt_ids:
        return 0
    unit.session.execute(
        update(Attempt)
        .where(Attempt.id.in_(attempt_ids), or_(Attempt.tainted_since.is_(None), Attempt.tainted_since > since))
        .values(tainted_since=since)
    )
    job_ids = sorted({JobId(row.job_id) for row in were_there})
    return taint(unit, job_ids, since=since) + taint_lineage(unit, job_ids)
