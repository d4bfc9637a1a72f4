"""Failed saves that stand, and the place or host to blame for them, for their counting and for closing incidents.

A row stands until it is cleared or has no newer failure within ``training.storage.window_s``: an old failure without a
later one is evidence of nothing.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, func, select, tuple_, update

from control.core.unit_of_work import UnitOfWork
from health.storage import Blamed, Failing, blamed_for
from muster.db.models import StorageFault
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.policy.training import StoragePolicy

BLAMED_BY: Final[Mapping[str, Blamed]] = {
    IncidentKind.STORAGE: Blamed.STORAGE,
    IncidentKind.NODE_STORAGE: Blamed.NODE,
}
_LOCK: Final = 0x5AFE_D15C
"""Key of a lock that opening and closing such incidents take in turn.

They are few, and two jobs may fail at one place in one moment.
"""


def take_turn(unit: UnitOfWork) -> None:
    """Take the turn before any incident is locked, so that no holder of the turn waits for a unit without it."""
    unit.session.execute(select(func.pg_advisory_xact_lock(_LOCK)))


def window_begins(now: datetime, policy: StoragePolicy) -> datetime:
    return now - timedelta(seconds=policy.window_s)


def is_standing(now: datetime, policy: StoragePolicy) -> ColumnElement[bool]:
    return StorageFault.cleared_at.is_(None) & (StorageFault.last_at > window_begins(now, policy))


def nodes_that_failed_at(unit: UnitOfWork, places: Collection[str]) -> set[str]:
    """Return nodes that failed at these places, also where cleared: an incident about one may still be open."""
    return set(unit.session.scalars(select(StorageFault.node_id).where(StorageFault.place.in_(places))))


def blamed_at(
    unit: UnitOfWork, places: Collection[str], node_ids: Collection[str], policy: StoragePolicy
) -> dict[Failing, Blamed]:
    """Return whether storage or node is to blame, at these places and wherever else saves of these hosts fail."""
    unit.session.flush()
    stands = is_standing(unit.now, policy)
    theirs = select(StorageFault.place).where(stands, StorageFault.node_id.in_(node_ids))
    # Of each place all standing rows: only with the rows of other hosts is it seen whether a host fails alone.
    query = select(StorageFault).where(stands, StorageFault.place.in_(places) | StorageFault.place.in_(theirs))
    rows = unit.session.scalars(query.execution_options(populate_existing=True)).all()
    return blamed_for([_failing(row) for row in rows], policy)


def subject_of(failing: Failing, blamed: Blamed) -> str:
    return failing.place if blamed is Blamed.STORAGE else failing.node_id


def clear_blame(unit: UnitOfWork, kind: str, subject_id: str, policy: StoragePolicy) -> None:
    """Clear the judged failures: a person has handled them, and one later failure does not open the incident again.

    The caller has its turn.
    """
    who = BLAMED_BY[kind]
    is_place = who is Blamed.STORAGE
    blamed = blamed_at(unit, [subject_id] if is_place else [], [] if is_place else [subject_id], policy)
    judged = [each for each, whose in blamed.items() if whose is who and subject_of(each, who) == subject_id]
    key = tuple_(StorageFault.place, StorageFault.node_id, StorageFault.job_id)
    cleared = update(StorageFault).where(key.in_([(each.place, each.node_id, each.job_id) for each in judged]))
    unit.session.execute(cleared.values(cleared_at=unit.now).execution_options(synchronize_session=False))


def _failing(row: StorageFault) -> Failing:
    return Failing(row.place, row.is_shared, row.node_id, row.job_id, row.kind, row.num_failures)
