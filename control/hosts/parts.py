"""The job of a part that a host has: of an attempt, or of a preflight. No row is locked: what asks changes none."""

from datetime import timedelta
from typing import Final, NamedTuple

from sqlalchemy import or_, select

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, AttemptHost, Job, PlacementPreflight
from muster.domain.errors import StaleFenceError
from muster.domain.ids import AttemptId, NodeId
from muster.domain.state_sets import PARTS_THAT_MAY_RUN
from muster.domain.states import JobState

_PREFLIGHT: Final = "look-"


class EndedPart(NamedTuple):
    """A part of an attempt that runs, or ran until lately, with its attempt's number."""

    job: Job
    attempt_id: AttemptId
    number: int
    node_rank: int


def job_of_part(unit: UnitOfWork, part_id: str, fence: int, node_id: NodeId) -> Job:
    """Return the job of a preflight or an attempt that this node has now.

    Raises StaleFenceError: it has no such part, or with another fence.
    """
    job = job_of_preflight(unit, part_id, fence, node_id) or job_of_attempt(unit, part_id, fence, node_id)
    if job is None:
        raise StaleFenceError
    return job


def job_of_attempt(unit: UnitOfWork, attempt_id: str, fence: int, node_id: NodeId) -> Job | None:
    """Return the job of an attempt whose part on this node may run."""
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


def is_open(unit: UnitOfWork, part_id: str, node_id: NodeId) -> bool:
    """Return whether a part of this node may still run, whatever its fence."""
    if part_id.startswith(_PREFLIGHT):
        number = int(part_id.removeprefix(_PREFLIGHT).partition("-")[0])
        return job_of_preflight(unit, part_id, number, node_id) is not None
    query = select(AttemptHost.attempt_id).where(
        AttemptHost.attempt_id == part_id,
        AttemptHost.node_id == node_id,
        AttemptHost.state.in_(PARTS_THAT_MAY_RUN),
    )
    return unit.session.scalar(query) is not None


def job_of_preflight(unit: UnitOfWork, preflight_id: str, number: int, node_id: NodeId) -> Job | None:
    """Return the job of an open preflight on this node."""
    if not preflight_id.startswith(_PREFLIGHT):
        return None
    query = (
        select(Job, PlacementPreflight)
        .join(PlacementPreflight, PlacementPreflight.job_id == Job.id)
        .where(
            PlacementPreflight.job_id == preflight_id.rpartition("-")[2],
            PlacementPreflight.number == number,
            PlacementPreflight.node_id == node_id,
            PlacementPreflight.is_open(unit.now),
            Job.state == JobState.QUEUED,
        )
    )
    found = unit.session.execute(query).one_or_none()
    return None if found is None or found[1].preflight_id != preflight_id else found[0]


def part_of_attempt(
    unit: UnitOfWork, attempt_id: str, fence: int, node_id: NodeId, *, after_end: timedelta
) -> EndedPart | None:
    """Return the node's part of an attempt that it has claimed, until ``after_end`` from the attempt's end on."""
    query = (
        select(Job, Attempt.id, Attempt.number, AttemptHost.node_rank)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(AttemptHost, AttemptHost.attempt_id == Attempt.id)
        .where(
            Attempt.id == attempt_id,
            Attempt.fence == fence,
            AttemptHost.node_id == node_id,
            AttemptHost.claimed_at.is_not(None),
            or_(Attempt.ended_at.is_(None), Attempt.ended_at > unit.now - after_end),
        )
    )
    found = unit.session.execute(query).one_or_none()
    return None if found is None else EndedPart(*found)
