"""Nodes and GPUs, to read."""

from typing import Annotated, Any

from fastapi import APIRouter, Request

from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import reading
from api.views import gpu_view, node_view
from muster.domain.principals import Permission, Principal
from muster.services import fleet

router = APIRouter(tags=["fleet"])


@router.get("/nodes")
def list_nodes(request: Request, principal: Annotated[Principal, requires(Permission.NODE_READ)]) -> dict[str, Any]:
    found = reading(dependencies_of(request).units, principal, fleet.READ, fleet.list_nodes)
    return {"items": [node_view(node) for node in found], "next_cursor": None}


@router.get("/gpus")
def list_gpus(request: Request, principal: Annotated[Principal, requires(Permission.GPU_READ)]) -> dict[str, Any]:
    found, overrides = reading(
        dependencies_of(request).units,
        principal,
        fleet.READ,
        lambda unit: (fleet.list_gpus(unit), fleet.overrides_in_force(unit)),
    )
    return {"items": [gpu_view(gpu, overrides.get(gpu.uuid)) for gpu in found], "next_cursor": None}
