"""Pages of nodes: a table, and one in full: contact, place, its GPUs, running jobs, and what keeps work away."""

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.actions import act, reason_in
from console.forms import Form
from console.pages.node_maintenance import MAX_HOURS
from console.paging import page_of, place_in
from console.rendering import is_fragment, pages_of
from console.session import Viewer, changes, sees
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.fleet import cordons, maintenance
from control.fleet.node_names import node_named
from control.fleet.types import CordonRecord
from control.hosts import drains
from control.hosts import read as nodes
from control.hosts.node_lists import ListedNode, NodeFilter, list_nodes
from control.hosts.read import NodeDetail
from muster.domain.errors import NotFoundError
from muster.domain.ids import NodeId
from muster.domain.principals import Permission
from muster.domain.states import Contact

router = APIRouter()
A_PAGE: Final = 100
NodeReader = Annotated[Viewer, sees(Permission.NODE_READ)]
Keeper = Annotated[Viewer, changes(Permission.NODE_WRITE)]
Named = Annotated[str, Path(pattern=r"^[!-~]{1,253}$")]


@router.get("/nodes")
def list_page(
    request: Request,
    viewer: NodeReader,
    contact: Annotated[list[str] | None, Query(max_length=len(Contact))] = None,
    name: Annotated[str, Query(max_length=253)] = "",
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """Show nodes by name, a page at a time."""
    dependencies = dependencies_of(request)
    contacts = [Contact(each) for each in contact or () if each in set(Contact)]
    filters = {"contact": sorted(contacts), "name": name.strip()}
    place = place_in(dependencies.secret_key, filters, cursor, length=1)
    wanted = NodeFilter(contacts=contacts, name=name.strip() or None)

    def read(unit: UnitOfWork) -> Sequence[ListedNode]:
        return list_nodes(unit, wanted, Part(A_PAGE + 1, place))

    found = reading(dependencies.units, viewer.principal, nodes.READ, read)
    page = page_of(
        dependencies.secret_key,
        filters,
        found,
        size=A_PAGE,
        path="/console/nodes",
        place=lambda last: [last.node.name],
    )
    return pages_of(request).page(
        request, "nodes.html", viewer, place="fleet", page=page, contacts=list(Contact), chosen=contacts, name=name
    )


@router.get("/nodes/{node}")
def node_page(request: Request, viewer: NodeReader, node: Named) -> Response:
    units = dependencies_of(request).units

    def read(unit: UnitOfWork) -> tuple[NodeDetail, Sequence[CordonRecord]]:
        detail = nodes.detail_of(unit, node)
        return detail, maintenance.declared(unit, detail.node.id)

    found, windows = reading(units, viewer.principal, nodes.READ, read)
    template = "parts/node_live.html" if is_fragment(request) else "node.html"
    return pages_of(request).page(
        request,
        template,
        viewer,
        place="fleet",
        found=found,
        node=found.node,
        windows=windows,
        longest_h=MAX_HOURS,
        back=f"/console/nodes/{found.node.id}",
    )


@router.post("/nodes/{node_id}/drain")
def drain(request: Request, viewer: Keeper, fields: Form, node_id: Named) -> Response:
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        drains.DRAIN,
        lambda unit: drains.drain(unit, node_id, reason=reason),
        back_to=f"/console/nodes/{node_id}",
        done="Draining: its running jobs save and leave.",
    )


@router.post("/nodes/{node_id}/cordon")
def cordon(request: Request, viewer: Keeper, fields: Form, node_id: Named) -> Response:
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        cordons.CREATE,
        lambda unit: cordons.create(unit, node_id=_known(unit, node_id), reason=reason),
        back_to=f"/console/nodes/{node_id}",
        done="Cordoned: nothing new is placed on the node.",
    )


@router.post("/nodes/{node_id}/cordons/{cordon_id}/release")
def release_cordon(request: Request, viewer: Keeper, fields: Form, node_id: Named, cordon_id: str) -> Response:
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        cordons.RELEASE,
        lambda unit: cordons.release(unit, cordon_id, reason=reason),
        back_to=f"/console/nodes/{node_id}",
        done="That cordon is released.",
    )


def _known(unit: UnitOfWork, node_id: str) -> NodeId:
    """Return the node's id. Raises ``NotFoundError``: the address names no node."""
    found = node_named(unit, node_id)
    if found.id != node_id:
        raise NotFoundError
    return found.id
