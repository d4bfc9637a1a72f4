"""Overrides: a person's standing over a GPU's own, set with a reason and an end. It moves no standing.

A QUARANTINED override takes the GPU out as long as it is in force: admission takes nothing more, and
``control.health.evacuation`` stops the attempt that runs there. The GPU's own standing continues to follow the rules.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Exists, exists, select

from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from control.fleet.inventory import OVERRIDE, end_overrides, in_force, override_standing
from health.standing.interventions import RefusedMoveError
from health.standing.overrides import OVERRIDES, require_overridable
from muster.db.models import Allocation, AllocationGpu, Gpu, GpuOverride
from muster.domain.errors import ConflictError, NotFoundError, PreconditionFailedError, ValidationFailedError
from muster.domain.ids import GpuUuid, JobId
from muster.domain.principals import Permission
from muster.domain.states import AllocationState, Standing

__all__ = ["OVERRIDE", "RELEASE", "end", "is_taken_out", "override", "release", "taken_out"]

RELEASE: Final = declare_action("gpu.override.release")
LONGEST: Final = timedelta(days=366)


def override(
    unit: UnitOfWork,
    uuid: GpuUuid,
    standing: Standing,
    *,
    until: datetime,
    reason: str,
    expected_version: int | None = None,
) -> None:
    """Set ``standing`` over the GPU's own until then, instead of one that is in force.

    The event names the job to leave.

    Raises:
        NotFoundError: there is no such GPU.
        PreconditionFailedError: the GPU is not at ``expected_version`` any more.
        ValidationFailedError: a standing that no person sets, an end in the past or too far in the future.
        ConflictError: it would bring back a GPU that is out (I11), or the GPU is RETIRED.
    """
    gpu = _locked(unit, uuid, expected_version)
    if standing not in OVERRIDES:
        raise ValidationFailedError.at("/standing", "not_an_override", f"must be one of {', '.join(OVERRIDES)}")
    if until <= unit.now:
        raise ValidationFailedError.at("/until", "past", "must lie in the future")
    if until > unit.now + LONGEST:
        raise ValidationFailedError.at("/until", "too_far", f"must lie within {LONGEST.days} days")
    try:
        require_overridable(gpu.standing, standing)
    except RefusedMoveError as error:
        raise ConflictError(str(error)) from error
    evacuates = _holder(unit, uuid) if standing is Standing.QUARANTINED else None
    override_standing(unit, [uuid], standing, until=until, reason=reason, evacuates=evacuates)


def release(unit: UnitOfWork, uuid: GpuUuid, *, reason: str, expected_version: int | None = None) -> None:
    """End the override now, so that the GPU's own standing counts. Twice is the same as once.

    Raises:
        NotFoundError, PreconditionFailedError: as for ``override``.
    """
    _locked(unit, uuid, expected_version)
    end(unit, uuid, reason=reason)


def end(unit: UnitOfWork, uuid: GpuUuid, *, reason: str) -> Sequence[GpuOverride]:
    """End overrides as ``release`` does, of a GPU that the caller holds. Return those overrides."""
    ended = end_overrides(unit, uuid)
    for each in ended:
        detail = {"override_id": each.id, "standing": each.standing, "reason": reason}
        unit.emit("gpu.override_released", "gpu", uuid, payload=detail)
        unit.audit("gpu.override.release", "gpu", uuid, reason=reason, detail=detail)
    unit.wake(SCHEDULER_CHANNEL)
    return ended


def is_taken_out(unit: UnitOfWork, uuid: GpuUuid) -> bool:
    return unit.session.scalar(select(Gpu.uuid).where(Gpu.uuid == uuid, taken_out(unit.now))) is not None


def taken_out(now: datetime) -> Exists:
    """Return the condition on a GPU that a person has taken out."""
    is_quarantine: ColumnElement[bool] = GpuOverride.standing == Standing.QUARANTINED
    return exists().where(GpuOverride.gpu_uuid == Gpu.uuid, is_quarantine, in_force(now))


def _locked(unit: UnitOfWork, uuid: GpuUuid, expected_version: int | None) -> Gpu:
    unit.principal.require(Permission.GPU_WRITE)
    query = select(Gpu).where(Gpu.uuid == uuid).with_for_update(key_share=True)
    gpu = unit.session.scalar(query.execution_options(populate_existing=True))
    if gpu is None:
        raise NotFoundError("there is no such GPU")
    if expected_version is not None and gpu.version != expected_version:
        raise PreconditionFailedError(current_version=gpu.version)
    return gpu


def _holder(unit: UnitOfWork, uuid: GpuUuid) -> JobId | None:
    query = (
        select(Allocation.job_id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(AllocationGpu.gpu_uuid == uuid, AllocationGpu.state == AllocationState.ASSIGNED)
    )
    return unit.session.scalar(query)
