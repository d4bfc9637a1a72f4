"""Conditions on the place of something: the host's rack and labels, and the job that has GPUs there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, SQLColumnExpression, String, cast, func, select

from muster.db.models import Allocation, AllocationGpu, Job, Node
from muster.db.queries.assignments import IS_ASSIGNED
from muster.domain.ids import JobId, TenantId


@dataclass(frozen=True, slots=True)
class PlaceFilter:
    """Conditions on a host; None and empty set no condition.

    ``labels``: its labels have all of these values, and ``label_names`` all of these names.
    """

    rack: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    label_names: Sequence[str] = ()

    def of_nodes(self) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions on ``Node``."""
        if self.rack is not None:
            yield Node.rack == self.rack
        if self.labels:
            yield Node.labels.contains(dict(self.labels))
        if self.label_names:
            yield func.jsonb_exists_all(Node.labels, cast(list(self.label_names), ARRAY(String)))

    def on(self, node_id: SQLColumnExpression[Any]) -> Iterator[ColumnElement[bool]]:
        """Yield the condition that ``node_id`` is such a host."""
        if conditions := list(self.of_nodes()):
            yield node_id.in_(select(Node.id).where(*conditions))


ANYWHERE: Final = PlaceFilter()


@dataclass(frozen=True, slots=True)
class HolderFilter:
    """Conditions on the job that has GPUs now; None sets no condition."""

    job_id: JobId | None = None
    tenant_id: TenantId | None = None
    tier: str | None = None

    def conditions(
        self, assigned: SQLColumnExpression[Any], column: SQLColumnExpression[Any]
    ) -> Iterator[ColumnElement[bool]]:
        """Yield the condition that ``column`` is among ``assigned``, a column of ``AllocationGpu``, of such a job."""
        wanted = ((Job.id, self.job_id), (Job.tenant_id, self.tenant_id), (Job.tier, self.tier))
        conditions = [of_job == value for of_job, value in wanted if value is not None]
        if conditions:
            jobs = select(assigned).join(Allocation, Allocation.id == AllocationGpu.allocation_id)
            yield column.in_(jobs.join(Job, Job.id == Allocation.job_id).where(IS_ASSIGNED, *conditions))


ANY_HOLDER: Final = HolderFilter()
