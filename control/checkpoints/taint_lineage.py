"""Taint lineage: attempts that continued from a generation that may hold wrong results, and their generations.

An attempt continues from older ones alone, so one pass through a job's attempts in the order of their fences follows a
taint over any number of attempts:

    fence          1    2              3              4
    resumed from   -    step-10/gen-1  step-20/gen-2  -
    step-10/gen-1 is TAINTED: so are attempt 2, then 3, with all their generations; attempt 4 is not
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import select, tuple_, update

from control.checkpoints.checkpoints import RESUMABLE, move_checkpoint
from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, Checkpoint
from muster.domain.ids import AttemptId, JobId
from muster.domain.states import CheckpointStatus

_TEXTS: Final = "its attempt resumed from {generation}, which a fault may have falsified"


def taint_range(generation: str) -> int:
    """Return the fence of the attempt that made it, which its name ends with."""
    return int(generation.rpartition("-")[2])


def taint_lineage(unit: UnitOfWork, job_ids: Sequence[JobId]) -> int:
    """Taint each attempt of these jobs that continued from a tainted generation, and all that it has committed.

    Its taint begins at its placement. Return how many checkpoints. A live attempt is stopped by ``evacuation``, which
    finds it by its taint.
    """
    fresh = {"populate_existing": True}  # another transaction may have tainted it since it was read
    query = select(Attempt).where(Attempt.job_id.in_(job_ids)).order_by(Attempt.fence).execution_options(**fresh)
    unit.session.flush()
    attempts = unit.session.scalars(query).all()
    since = {(each.job_id, int(each.fence)): each.tainted_since for each in attempts}
    committed = _committed(unit, attempts)
    num_tainted = 0
    for each in attempts:
        if each.resumed_from is None:
            continue
        parent = committed.get((each.job_id, each.resumed_from))
        if not _is_tainted(parent, since.get((each.job_id, taint_range(each.resumed_from)))):
            continue
        if each.tainted_since is None or each.tainted_since > each.placed_at:
            since[each.job_id, int(each.fence)] = each.placed_at
            _mark(unit, each)
            num_tainted += _taint_all_of(unit, each.id, each.resumed_from)
    return num_tainted


def _committed(unit: UnitOfWork, attempts: Sequence[Attempt]) -> dict[tuple[JobId, str], Checkpoint]:
    """Return the generations from which attempts continued, as far as their commits were reported."""
    wanted = {(each.job_id, each.resumed_from) for each in attempts if each.resumed_from is not None}
    query = select(Checkpoint).where(tuple_(Checkpoint.job_id, Checkpoint.generation).in_(sorted(wanted)))
    return {(row.job_id, row.generation): row for row in unit.session.scalars(query)} if wanted else {}


def _is_tainted(row: Checkpoint | None, since: datetime | None) -> bool:
    """Return whether the generation is tainted, by its row or by the onset of its attempt's taint.

    A generation that was removed since keeps its status.
    """
    if row is not None and row.status is CheckpointStatus.TAINTED:
        return True
    if since is None:
        return False
    return row is None or row.committed_at is None or row.committed_at >= since


def _mark(unit: UnitOfWork, attempt: Attempt) -> None:
    unit.session.execute(update(Attempt).where(Attempt.id == attempt.id).values(tainted_since=attempt.placed_at))
    unit.session.refresh(attempt)
    payload = {"job_id": attempt.job_id, "generation": attempt.resumed_from, "since": attempt.placed_at.isoformat()}
    unit.emit("attempt.tainted", "attempt", attempt.id, tenant_id=attempt.tenant_id, payload=payload)


def _taint_all_of(unit: UnitOfWork, attempt_id: AttemptId, generation: str) -> int:
    query = (
        select(Checkpoint)
        .where(Checkpoint.attempt_id == attempt_id, Checkpoint.status.in_(RESUMABLE))
        .order_by(Checkpoint.id)
        .with_for_update(key_share=True)
    )
    rows = unit.session.scalars(query).all()
    for row in rows:
        row.reason = _TEXTS.format(generation=generation)
        move_checkpoint(unit, row, CheckpointStatus.TAINTED)
    return len(rows)
