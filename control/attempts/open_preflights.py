"""The open preflight of a locked job: the host that runs it, and its end when what it checks is no longer so."""

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Job, PlacementPreflight
from muster.domain.job.preflight import PreflightState


def open_preflight(unit: UnitOfWork, job: Job) -> PlacementPreflight | None:
    """Return the preflight that a host still has to answer, whether or not its job waits any more."""
    look = unit.session.get(PlacementPreflight, job.id)
    return look if look is not None and look.is_open(unit.now) else None


def end_open_preflight(unit: UnitOfWork, job: Job) -> None:
    """Have a job that waits checked again, by a preflight of another number: the open one is out of date.

    Its host was asked to end it, or it fetches a bundle that the job has no more. What it reports has no effect.
    """
    look = open_preflight(unit, job)
    if look is not None:
        look.state, look.answered_at = PreflightState.FAILED, unit.now
