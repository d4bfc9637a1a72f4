"""Lists of a large fleet are read by their indexes: a page is not a scan of a table."""

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, Select, select, text

from control.core import audit, events
from control.core.paging import Part, Sort, Span, TimeOrder
from control.fleet import read as gpus
from control.fleet.place_conditions import HolderFilter, PlaceFilter
from control.fleet.read import GpuOrder
from control.incidents import read as incidents
from control.reclaim import read as reclaims
from control.watch import read as verdicts
from muster.db.models import AllocationGpu, AuditEntry, Event, Gpu, Incident, Node, Reclaim, VerdictRow
from muster.domain.errors import InvalidCursorError
from muster.domain.ids import TenantId

MOMENT = datetime(2026, 11, 1, tzinfo=UTC)
SPAN = Span(MOMENT, MOMENT)


def plan_of(engine: Engine, query: Select[Any]) -> str:
    """Return the plan of a query where a scan of a table is the last resort, as on a table of millions of rows."""
    compiled = query.compile(dialect=engine.dialect, compile_kwargs={"literal_binds": True})
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        connection.execute(text("SET LOCAL enable_sort = off"))
        return "\n".join(connection.exec_driver_sql("EXPLAIN " + str(compiled).replace("%", "%%")).scalars())


@pytest.mark.parametrize(
    ("query", "sort", "behind", "index"),
    [
        (select(Gpu), gpus.GPU_SORTS[GpuOrder.SCORE], ["40", "GPU-a"], "ix_gpus_score"),
        (select(AuditEntry), audit.SORTS[TimeOrder.OLDEST], ["7"], "ix_audit_entries_serial"),
        (select(Event), events.SORTS[TimeOrder.OLDEST], ["7"], "uq_events_position"),
        (select(Incident), incidents.SORTS[TimeOrder.NEWEST], ["inc_a"], "pk_incidents"),
        (select(VerdictRow), verdicts.SORTS[TimeOrder.NEWEST], ["vrd_a"], "pk_verdicts"),
        (select(Reclaim), reclaims.SORTS[TimeOrder.NEWEST], [MOMENT.isoformat(), "rcl_a"], "ix_reclaims_page"),
        (select(Reclaim), reclaims.SORTS[TimeOrder.OLDEST], [MOMENT.isoformat(), "rcl_a"], "ix_reclaims_page"),
    ],
)
def test_a_page_continues_by_an_index(
    engine: Engine, query: Select[Any], sort: Sort, behind: list[str], index: str
) -> None:
    plan = plan_of(engine, Part(50, behind, sort).of(query, sort))
    assert f"using {index}" in plan
    assert "Sort" not in plan
    assert "Index Cond" in plan


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (select(AuditEntry).where(*SPAN.conditions(AuditEntry.at)), "ix_audit_entries_at"),
        (select(Incident).where(*SPAN.conditions(Incident.opened_at)), "ix_incidents_opened_at"),
        (select(VerdictRow).where(*SPAN.conditions(VerdictRow.created_at)), "ix_verdicts_created_at"),
        (select(Event).where(Event.position.is_not(None), *SPAN.conditions(Event.at)), "ix_events_at"),
        (select(Node).where(*PlaceFilter(rack="r1").of_nodes()), "ix_nodes_rack"),
        (select(Gpu).where(*PlaceFilter(rack="r1").on(Gpu.node_id)), "ix_nodes_rack"),
        (
            select(Gpu).where(*HolderFilter(tenant_id=TenantId("ten_a")).conditions(AllocationGpu.gpu_uuid, Gpu.uuid)),
            "pk_gpus",
        ),
    ],
)
def test_a_condition_on_time_place_or_holder_is_read_by_an_index(
    engine: Engine, query: Select[Any], index: str
) -> None:
    assert index in plan_of(engine, query)


@pytest.mark.parametrize("position", [["x"], ["1.5"], ["-1"], [str(1 << 70)], ["1", "2"], ["²"]])
def test_a_position_that_is_none_of_the_order_is_refused(position: list[str]) -> None:
    with pytest.raises(InvalidCursorError):
        audit.SORTS[TimeOrder.NEWEST].values_in(position)
