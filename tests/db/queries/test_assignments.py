"""A GPU's present and past attempts are found by the GPU, however long the past is."""

from sqlalchemy import ColumnElement, select, text
from sqlalchemy.dialects.postgresql import dialect
from sqlalchemy.orm import Session

from muster.db.models import AllocationGpu
from muster.db.queries.assignments import IS_ASSIGNED, IS_OR_WAS_ASSIGNED
from muster.domain.ids import GpuUuid


def plan_of(session: Session, *conditions: ColumnElement[bool]) -> str:
    """As on a table that is too large to be read whole."""
    session.execute(text("SET LOCAL enable_seqscan = off"))
    query = select(AllocationGpu).where(AllocationGpu.gpu_uuid == GpuUuid("GPU-1"), *conditions)
    words = query.compile(dialect=dialect(), compile_kwargs={"literal_binds": True})  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it untyped
    return "\n".join(session.scalars(text(f"EXPLAIN {words}")))


def test_what_holds_a_gpu_is_found_in_the_index_that_allows_one(session: Session) -> None:
    plan = plan_of(session, IS_ASSIGNED)
    assert "uq_allocation_gpus_taken" in plan
    assert "uq_allocation_gpus_released" not in plan


def test_what_ever_kept_a_gpu_is_found_in_two_indexes(session: Session) -> None:
    plan = plan_of(session, IS_OR_WAS_ASSIGNED)
    assert "uq_allocation_gpus_taken" in plan
    assert "uq_allocation_gpus_released" in plan
    assert "Seq Scan" not in plan
