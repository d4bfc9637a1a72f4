"""Allocations: the GPUs that one attempt holds, rank by rank, until each is proved clean."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, PrimaryKeyConstraint, text
from sqlalchemy.orm import Mapped, foreign, mapped_column, relationship

from muster.db.base import Base, EnumText, one_of
from muster.db.models.attempts import Attempt
from muster.db.models.gpus import Gpu
from muster.domain.ids import AllocationId, AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.states import AllocationState


class Allocation(Base):
    """The allocation of one attempt. ``num_gpus`` never changes, and is None where an older release placed it."""

    __tablename__ = "allocations"
    __table_args__ = (
        CheckConstraint("(state = 'RELEASED') = (released_at IS NOT NULL)", name="released"),
        CheckConstraint("num_gpus > 0", name="num_gpus"),
        Index("ix_allocations_open", "tenant_id", "tier", postgresql_where=text("state <> 'RELEASED'")),
    )

    id: Mapped[AllocationId] = mapped_column(primary_key=True)
    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), unique=True)
    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), index=True)
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    tier: Mapped[str]
    state: Mapped[AllocationState] = mapped_column(EnumText(AllocationState), one_of("state", AllocationState))
    created_at: Mapped[datetime]
    released_at: Mapped[datetime | None] = mapped_column(default=None, index=True)
    num_gpus: Mapped[int | None] = mapped_column(default=None)

    attempt: Mapped[Attempt] = relationship(lazy="raise", init=False)


class AllocationGpu(Base):
    """One GPU of an allocation. ``uq_allocation_gpus_taken`` is I1: held or being cleaned, at most once.

    RELEASED rows are in an index of their own, so a query by GPU states which rows it needs (``queries.assignments``).

    Its allocation is there, and its GPU on its node: triggers see to that, a statement's rows at once, since foreign
    keys look up one row after another, which would be half of a large placement. GPUs and allocations are never
    deleted, and of these rows only the state changes.
    """

    __tablename__ = "allocation_gpus"
    __table_args__ = (
        PrimaryKeyConstraint("allocation_id", "node_rank", "local_index"),
        Index(
            "uq_allocation_gpus_taken",
            "gpu_uuid",
            unique=True,
            postgresql_where=text("state IN ('HELD', 'CLEANING')"),
        ),
        Index(
            "uq_allocation_gpus_released",
            "gpu_uuid",
            "allocation_id",
            unique=True,
            postgresql_where=text("state = 'RELEASED'"),
        ),
    )

    allocation_id: Mapped[AllocationId]
    gpu_uuid: Mapped[GpuUuid]
    node_id: Mapped[NodeId]
    node_rank: Mapped[int]
    local_index: Mapped[int]
    state: Mapped[AllocationState] = mapped_column(EnumText(AllocationState), one_of("state", AllocationState))

    allocation: Mapped[Allocation] = relationship(
        primaryjoin=lambda: foreign(AllocationGpu.allocation_id) == Allocation.id, lazy="raise", init=False
    )
    gpu: Mapped[Gpu] = relationship(
        primaryjoin=lambda: foreign(AllocationGpu.gpu_uuid) == Gpu.uuid, lazy="raise", init=False
    )
