"""Findings of a host's quick check: into the judge's inbox, in the transaction of the report."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import select

from control.attempts.attempts import LoadedAttempt
from control.core.unit_of_work import UnitOfWork
from control.evidence.inbox import sample_row
from health.quick_check import finding_of
from muster.db.models import Allocation, AllocationGpu
from muster.db.queries.assignments import IS_OR_WAS_ASSIGNED
from muster.db.queries.telemetry import add_signals
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import Policy
from muster.domain.times import to_ms

_Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]


class _Found(BaseModel):
    model_config = ConfigDict(extra="ignore")
    gpu: Annotated[str, Field(max_length=128)]
    wrong: Annotated[
        list[tuple[Annotated[str, Field(max_length=64)], _Whole, _Whole]], Field(min_length=1, max_length=128)
    ]


def take_quick_check(
    unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, record: dict[str, Any], policy: Policy
) -> None:
    """Store the exit record's ``quick_check`` as a finding, where it has one.

    Raises:
        ValidationFailedError: it cannot be read, or names a GPU that the host does not hold for this attempt.
    """
    if (document := record.get("quick_check")) is None:
        return
    try:
        found = _Found.model_validate(document)
    except ValidationError as error:
        message = f"quick_check cannot be read: {error.errors()[0]['msg']}; gpu and wrong sums are accepted"
        raise ValidationFailedError(message) from error
    held = unit.session.scalar(
        select(AllocationGpu.gpu_uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .where(
            Allocation.attempt_id == loaded.attempt.id,
            AllocationGpu.node_id == node_id,
            AllocationGpu.gpu_uuid == found.gpu,
            IS_OR_WAS_ASSIGNED,
        )
    )
    if held is None:
        message = f"quick_check names the GPU {found.gpu}, which this host does not hold for the attempt"
        raise ValidationFailedError(message)
    finding = finding_of(GpuUuid(held), node_id, found.wrong, to_ms(unit.now), policy.health)
    row = sample_row(finding, node_id, f"quick_check/{loaded.attempt.id}/{held}", unit.now)
    add_signals(unit.session.connection(), [row])
