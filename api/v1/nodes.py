"""Routes of nodes: by the page, and one with its GPUs, cordons and running jobs."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from api.authorized_query import AuthorizedQuery, answer, authorize_query
from api.changes import etag_of
from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.node_views import node_detail_view, node_view
from api.permissions import requires
from api.reading import PRINTABLE, node_in, page_of, reading
from control.hosts import read as nodes
from control.hosts.read import NODE, NodeFilter
from muster import documents
from muster.domain.principals import Permission, Principal
from muster.domain.states import Contact

router = APIRouter(tags=["fleet"])
Reader = Annotated[Principal, requires(Permission.NODE_READ)]
Named = Annotated[str | None, Query(min_length=1, max_length=253, pattern=PRINTABLE)]
NODES_A_PAGE = 1000


@router.get("/nodes")
def list_nodes(
    request: Request,
    principal: Reader,
    contact: Annotated[list[Contact] | None, Query(max_length=3)] = None,
    name: Annotated[Named, Query(description="a part of its name")] = None,
    rack: Annotated[Named, Query(description="its rack's whole name")] = None,
    cordoned: Annotated[bool | None, Query(description="only nodes with a cordon of their own, or without one")] = None,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Annotated[int, Query(ge=1, le=NODES_A_PAGE, description="how many items a page holds")] = NODES_A_PAGE,
) -> documents.NodePage:
    """Return nodes by name, with their GPUs counted by standing; ``next_cursor`` is null on the last page."""
    dependencies = dependencies_of(request)
    contacts = sorted(contact or [])
    filters = {"path": "nodes", "contacts": contacts, "name": name, "rack": rack, "cordoned": cordoned}
    wanted = NodeFilter(contacts, name, rack, cordoned)
    after = None
    if cursor is not None:
        (after,) = read_cursor(dependencies.secret_key, filters, cursor, length=1)
    found = reading(
        dependencies.units,
        principal,
        nodes.READ,
        lambda unit: nodes.list_nodes(unit, wanted, after=after, limit=limit + 1),
    )
    return page_of(
        found, limit, node_view, lambda last: make_cursor(dependencies.secret_key, filters, [last.node.name])
    )


@router.get("/nodes/{node_id}", response_model=documents.NodeDetail)
def show_node(
    node_id: str, authorized_query: Annotated[AuthorizedQuery, authorize_query(Permission.NODE_READ)]
) -> Response:
    """Return one node, by its id or its name: place, contact, agent, GPUs, cordons, and the jobs on its GPUs."""
    found = nodes.detail_from(authorized_query.ask(NODE, {"node": node_in(node_id)}).found)
    return answer(node_detail_view(found), etag_of(found.node.version))
