"""Route of a node's history as records, which ``muster health replay`` replays."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request

from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import reading, require_node
from control.health.export import pages
from control.health.export.pages import LONGEST
from control.telemetry.history import read_moment
from muster import documents
from muster.domain.principals import Permission, Principal
from muster.domain.times import to_time

router = APIRouter(tags=["fleet"])
_DAYS: Final = LONGEST.days


@router.get("/nodes/{node_id}/export")
def export_node(
    node_id: str,
    request: Request,
    principal: Annotated[Principal, requires(Permission.GPU_READ)],
    from_: Annotated[str | None, Query(alias="from", max_length=40)] = None,
    until: Annotated[str | None, Query(max_length=40)] = None,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
) -> documents.NodeExportPage:
    """Return records of the node's reports and of actions about it, for `muster health replay`, in order of arrival.

    They are its stored samples, events, burn-ins, dismissals, repairs, overrides and maintenance. A page is an hour at
    most. ``next_cursor`` is null on the last page.
    """
    dependencies, named = dependencies_of(request), require_node(node_id)
    filters = {"path": "node_export", "node": node_id, "from": from_, "until": until}
    at_ms, end = None, read_moment("until", until)
    if cursor is not None:
        at_text, end_text = read_cursor(dependencies.secret_key, filters, cursor, length=2)
        at_ms, end = int(at_text), to_time(int(end_text))
    found = reading(
        dependencies.units,
        principal,
        pages.READ,
        lambda unit: pages.page_of_export(unit, named, since=read_moment("from", from_), until=end, at_ms=at_ms),
    )
    position = [str(found.next_ms), str(found.until_ms)]
    next_cursor = None if found.next_ms is None else make_cursor(dependencies.secret_key, filters, position)
    return {"items": list(found.records), "next_cursor": next_cursor}
