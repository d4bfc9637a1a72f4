"""Routes of pair probes: results by pair of racks, and the agents' side."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from api.bodies import wire_body
from api.dependencies import dependencies_of
from api.permissions import requires, requires_of_host
from api.reading import reading
from api.wire_answers import answered, taking
from control.core.unit_of_work import UnitOfWork
from control.hosts import pair_probes
from control.hosts.rack_pairs import RackPairRow
from muster import documents
from muster.domain.principals import Permission, Principal
from muster.wire.pair_probes import PairProbeAnswer, PairProbePoll

router = APIRouter()
Node = Annotated[Principal, requires_of_host(Permission.HOST_REPORT)]
Reader = Annotated[Principal, requires(Permission.NODE_READ)]
DAY_H = 24


@router.get("/rack-pairs", tags=["fleet"])
def list_rack_pairs(
    request: Request,
    principal: Reader,
    hours: Annotated[int, Query(ge=1, le=DAY_H)] = 1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> documents.RackPairPage:
    """Return latency and loss by pair of racks, as probing hosts reported them; the greatest loss first."""
    found = reading(
        dependencies_of(request).units,
        principal,
        pair_probes.READ,
        lambda unit: pair_probes.rack_pairs(unit, hours=hours, limit=limit),
    )
    return {"items": [_view(row) for row in found], "next_cursor": None}


@taking(router, "/hosts/self/pair-probes/ask", PairProbePoll, PairProbeAnswer, tags=["hosts"])
async def ask_for_peers(
    request: Request, node: Node, message: Annotated[PairProbePoll, wire_body(PairProbePoll)]
) -> Response:
    """Return the peers that this node probes until it asks again, and the keys of requests for its own answers."""
    secret_key = dependencies_of(request).secret_key

    def poll(unit: UnitOfWork) -> PairProbeAnswer:
        return pair_probes.poll(unit, message, secret_key)

    return await answered(request, node, pair_probes.POLL, poll, quiet=True)


def _view(row: RackPairRow) -> documents.RackPair:
    return {
        "rack": row.rack or None,
        "other_rack": row.other_rack or None,
        "num_pairs": row.num_pairs,
        "num_sent": round(row.sent),
        "num_lost": round(row.lost),
        "lost_share": row.lost / row.sent,
        "round_trip_p50_us": row.p50_us,
        "round_trip_p99_us": row.p99_us,
        "worst_node": row.worst_node,
        "worst_peer": row.worst_peer,
    }
