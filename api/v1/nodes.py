"""Routes of nodes: by the page, and one with its GPUs, cordons and running jobs."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from api.authorized_query import AuthorizedQuery, answer, authorize_query
from api.changes import etag_of
from api.lists import Cursor, Labels, PageRequest, holder_in, order_of, place_in
from api.node_views import node_detail_view, node_view
from api.permissions import requires
from api.reading import PRINTABLE, node_in
from control.hosts import node_lists
from control.hosts import read as nodes
from control.hosts.node_lists import NODE_SORTS, NodeFilter, NodeOrder
from control.hosts.read import NODE
from muster import documents
from muster.domain.principals import Permission, Principal
from muster.domain.states import Contact
from muster.domain.strict import Name

router = APIRouter(tags=["fleet"])
Reader = Annotated[Principal, requires(Permission.NODE_READ)]
Named = Annotated[str | None, Query(min_length=1, max_length=253, pattern=PRINTABLE)]
NODES_A_PAGE = 1000


@dataclass(frozen=True, slots=True)
class NodeConditions:
    """The conditions of a list of nodes."""

    contact: Annotated[list[Contact] | None, Query(max_length=3)] = None
    name: Annotated[Named, Query()] = None
    rack: Annotated[Named, Query()] = None
    cordoned: Annotated[bool | None, Query()] = None
    label: Labels = None
    tenant_id: Annotated[Named, Query()] = None
    tier: Annotated[Name | None, Query()] = None


@router.get("/nodes")
def list_nodes(
    request: Request,
    principal: Reader,
    where: Annotated[NodeConditions, Depends()],
    order: Annotated[NodeOrder, Query()] = NodeOrder.NAME,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=NODES_A_PAGE)] = NODES_A_PAGE,
) -> documents.NodePage:
    """Return nodes with their GPUs counted by standing, by name unless ``order`` says otherwise."""
    contacts = sorted(where.contact or [])
    wanted = NodeFilter(
        contacts,
        where.name,
        where.cordoned,
        place_in(where.rack, where.label),
        holder_in(None, where.tenant_id, where.tier),
    )
    return PageRequest(request, principal, NODE_SORTS[order], cursor, limit).answer(
        nodes.READ,
        {"path": "nodes", "contacts": contacts, "name": where.name, "rack": where.rack, "cordoned": where.cordoned},
        lambda unit, part: node_lists.list_nodes(unit, wanted, part),
        node_view,
        newer={
            "labels": sorted(where.label or []) or None,
            "tenant_id": where.tenant_id,
            "tier": where.tier,
            "order": order_of(order, NodeOrder.NAME),
        },
    )


@router.get("/nodes/{node_id}", response_model=documents.NodeDetail)
def show_node(
    node_id: str, authorized_query: Annotated[AuthorizedQuery, authorize_query(Permission.NODE_READ)]
) -> Response:
    """Return one node, by its id or its name: place, contact, agent, GPUs, cordons, and the jobs on its GPUs."""
    found = nodes.detail_from(authorized_query.ask(NODE, {"node": node_in(node_id)}).found)
    return answer(node_detail_view(found), etag_of(found.node.version))
