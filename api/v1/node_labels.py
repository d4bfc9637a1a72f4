"""Routes of node labels: jobs select hosts by them, and they place a host at levels wider than its rack."""

from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing, etag_of
from api.node_views import node_detail_view
from api.permissions import requires
from api.reading import require_node
from control.hosts import node_labels
from muster.documents.nodes import ChangedNode
from muster.domain.principals import Permission, Principal
from muster.domain.strict import Name, StrictModel, Text

router = APIRouter(tags=["fleet"])


class LabelChange(StrictModel):
    """A change of labels, of which a node has 64 at most."""

    labels: dict[Name, Annotated[Text, Field(min_length=1, max_length=256)]] = Field(
        default_factory=dict, max_length=64
    )
    remove: tuple[Name, ...] = Field(default=(), max_length=64, strict=False)
    reason: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]


@router.post("/nodes/{node_id}/labels", response_model=ChangedNode, openapi_extra=described_by(LabelChange))
def label_node(
    node_id: str,
    principal: Annotated[Principal, requires(Permission.NODE_WRITE)],
    wanted: Annotated[LabelChange, json_body(LabelChange)],
    change: Changing,
) -> JSONResponse:
    """Set labels of a node, by its id or its name, and remove others.

    Running jobs stay; new placements use the labels.
    """
    named = require_node(node_id)
    return change.run(
        principal,
        node_labels.LABEL,
        lambda unit: node_labels.set_labels(unit, named, wanted.labels, remove=wanted.remove, reason=wanted.reason),
        lambda found: Answer(node_detail_view(found), etag=etag_of(found.node.version)),
    )
