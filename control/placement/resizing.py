"""Another size of an elastic job, as its tenant, its program or the policy for idle GPUs requests it."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.attempts.attempts import LoadedAttempt, live_attempt_of, lock_job
from control.attempts.mapping import job_request, submitted_job
from control.attempts.types import SubmittedJob
from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from control.core.visibility import may_see
from control.placement import holds
from control.placement.elastic import change_size, gpus_of, lock_gpus
from control.policy.policies import active_policy
from muster.db.models import Attempt, Job
from muster.domain.errors import ConflictError, NotFoundError, PreconditionFailedError, ValidationFailedError
from muster.domain.ids import JobId
from muster.domain.principals import Permission
from muster.domain.states import TERMINAL_JOB_STATES

RESIZE: Final = declare_action("job.resize")


def resize(
    unit: UnitOfWork, job_id: JobId, nodes: int, *, reason: str | None = None, expected_version: int | None = None
) -> SubmittedJob:
    """Set the number of hosts that the job is to have from now on. A repeated request has no further effect.

    If it has more hosts, it saves and continues with ``nodes`` of them; if it has fewer, it grows as GPUs are idle.

    Raises:
        NotFoundError: no such job, or another tenant's.
        ConflictError: the job has ended.
        ValidationFailedError: it is not elastic, or not in this size.
        PreconditionFailedError: it is not at ``expected_version`` any more.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    job = lock_job(unit, job_id)
    if not may_see(unit.principal, job.tenant_id):
        raise NotFoundError
    if expected_version is not None and job.version != expected_version:
        raise PreconditionFailedError(current_version=job.version)
    if job.state in TERMINAL_JOB_STATES:
        message = f"the job has ended already: {job.state}"
        raise ConflictError(message, suggestion="There is nothing to resize.")
    if fault := _size_fault(job, nodes):
        raise ValidationFailedError.at("/nodes", *fault)
    _request_size(unit, job, nodes, reason, {})
    return submitted_job(unit.session, job)


def resize_by_program(unit: UnitOfWork, loaded: LoadedAttempt, nodes: int) -> None:
    """Resize a job, whose row is locked, as its program requests: within what its tenant may do.

    A refused request is an event of the job: the training continues unchanged.
    """
    unit.principal.require(Permission.HOST_REPORT)
    job, attempt = loaded.job, loaded.attempt
    if why := _why_not_by_program(unit.session, loaded, nodes):
        told = {"nodes": nodes, "attempt_id": attempt.id, "reason": why}
        unit.emit("job.resize_refused", "job", job.id, tenant_id=job.tenant_id, payload=told)
        return
    _request_size(unit, job, nodes, "its program asked for it", {"attempt_id": attempt.id})


def fewest_hosts(loaded: LoadedAttempt) -> int | None:
    """Return the fewest hosts to which an elastic job can shrink; None: it cannot, or is to have no more already."""
    shape = job_request(loaded.job).shape
    fewest = shape.sizes[0]
    can_shrink = shape.is_elastic and fewest < len(loaded.hosts) and loaded.job.wanted_nodes != fewest
    return fewest if can_shrink else None


def shrink_to_fewest(unit: UnitOfWork, loaded: LoadedAttempt, detail: str) -> bool:
    """Have an elastic job, whose row is locked, continue on its fewest hosts until its tenant resizes it.

    ``detail``: why, as text. Return False where nothing was changed: it has no fewer hosts to continue on.
    """
    fewest = fewest_hosts(loaded)
    if fewest is None:
        return False
    _request_size(unit, loaded.job, fewest, detail, {"attempt_id": loaded.attempt.id}, detail=detail)
    return True


def _why_not_by_program(session: Session, loaded: LoadedAttempt, nodes: int) -> str | None:
    job, attempt = loaded.job, loaded.attempt
    if job.state in TERMINAL_JOB_STATES:
        return f"the job has ended already: {job.state}"
    newer = select(Attempt.id).where(Attempt.job_id == job.id, Attempt.fence > attempt.fence)
    if session.scalar(newer.limit(1)) is not None:
        return "the request came late: a newer attempt has the job"
    fault = _size_fault(job, nodes)
    return None if fault is None else fault[1]


def _request_size(
    unit: UnitOfWork,
    job: Job,
    nodes: int,
    reason: str | None,
    requested_by: Mapping[str, str],
    *,
    detail: str = "a smaller size was asked for",
) -> None:
    """Store a number of hosts that the locked job accepts.

    ``reason``: of the request. ``detail``: what its attempt states where it becomes smaller.
    """
    if job.wanted_nodes == nodes:
        return
    before, job.wanted_nodes, job.updated_at = job.wanted_nodes, nodes, unit.now
    told = {"nodes": nodes, "before": before, "reason": reason, **requested_by}
    unit.audit("job.resize", "job", job.id, tenant_id=job.tenant_id, reason=reason, detail=told)
    unit.emit("job.resize_requested", "job", job.id, tenant_id=job.tenant_id, payload=told)
    loaded = live_attempt_of(unit, job)
    if loaded is not None and len(loaded.hosts) > nodes:
        _shrink(unit, loaded, nodes, detail)
    unit.wake(SCHEDULER_CHANNEL)
    unit.session.flush()


def _size_fault(job: Job, nodes: int) -> tuple[str, str] | None:
    """Return code and text of the fault; None for a number that the job accepts."""
    shape = job_request(job).shape
    if not shape.is_elastic:
        return (
            "not_elastic",
            f"the job has {shape.nodes} hosts and no other number: `min_nodes` or `max_nodes` make one elastic",
        )
    if nodes not in shape.sizes:
        return "out_of_range", f"must be from {shape.sizes[0]} to {shape.sizes[-1]}, as the job was submitted"
    return None


def _shrink(unit: UnitOfWork, loaded: LoadedAttempt, nodes: int, detail: str) -> None:
    """Hold the job's first hosts for it, except GPUs held for another job. A stopping attempt is not asked again."""
    if loaded.attempt.stop_reason is not None or loaded.attempt.ending_cause is not None:
        return
    per_node = job_request(loaded.job).shape.gpus_per_node
    kept = sorted(gpus_of(unit, loaded.attempt.id)[: nodes * per_node])
    lock_gpus(unit, kept)
    on_hold = set(holds.hold_gpus_of_others(unit, kept))
    free = [uuid for uuid in kept if uuid not in on_hold]
    change_size(unit, loaded, free, nodes, detail, active_policy(unit.session))
