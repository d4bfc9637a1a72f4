"""The job whose attempt or preflight a host has at this moment, by the part's id and fence."""

from typing import Final

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, AttemptHost, Job, PlacementPreflight
from muster.domain.errors import StaleFenceError
from muster.domain.ids import NodeId
from muster.domain.job.preflight import PreflightState
from muster.domain.state_sets import PARTS_THAT_MAY_RUN
from muster.domain.states import JobState

_PREFLIGHT: Final = "look-"


def job_of_part(unit: UnitOfWork, part_id: str, fence: int, node_id: NodeId) -> Job:
    """Return the job of a preflight that is open on the node, or of an attempt whose part there may run.

    It takes no lock. Raises StaleFenceError: the node has no such part now, or with another fence.
    """
    job = _job_of_preflight(unit, part_id, fence, node_id) or _job_of(unit, part_id, fence, node_id)
    if job is None:
        raise StaleFenceError
    return job


def _job_of(unit: UnitOfWork, attempt_id: str, fence: int, node_id: NodeId) -> Job | None:
    query = (
        select(Job)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(AttemptHost, AttemptHost.attempt_id == Attempt.id)
        .where(
            Attempt.id == attempt_id,
            Attempt.fence == fence,
            AttemptHost.node_id == node_id,
            AttemptHost.state.in_(PARTS_THAT_MAY_RUN),
        )
    )
    return unit.session.scalars(query).one_or_none()


def _job_of_preflight(unit: UnitOfWork, preflight_id: str, number: int, node_id: NodeId) -> Job | None:
    if not preflight_id.startswith(_PREFLIGHT):
        return None
    query = (
        select(Job, PlacementPreflight)
        .join(PlacementPreflight, PlacementPreflight.job_id == Job.id)
        .where(
            PlacementPreflight.job_id == preflight_id.rpartition("-")[2],
            PlacementPreflight.number == number,
            PlacementPreflight.node_id == node_id,
            PlacementPreflight.state == PreflightState.REQUESTED,
            PlacementPreflight.deadline_at > unit.now,
            Job.state == JobState.QUEUED,
        )
    )
    found = unit.session.execute(query).one_or_none()
    return None if found is None or found[1].preflight_id != preflight_id else found[0]
