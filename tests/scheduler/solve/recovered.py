"""A recovery as tests ask for it: the last attempt still has its GPUs, which count as free for its successor."""

from collections.abc import Collection
from dataclasses import dataclass

from muster.domain.ids import GpuUuid
from scheduler.fleet.topology import FleetState
from scheduler.model import Parts
from scheduler.solve.recovery import replan
from scheduler.solve.solver import Request, parts_of


@dataclass(frozen=True, slots=True)
class Recovery:
    """``kept``: the GPUs of the last attempt that are in ``parts`` again, on their ranks."""

    parts: Parts
    kept: frozenset[GpuUuid]


def recover(state: FleetState, request: Request, last: Parts, bad: Collection[GpuUuid] = ()) -> Recovery | None:
    """Return the next parts, or None if the gang has to be placed again; the state is unchanged."""
    state = state.for_tier(request.tier)
    own = state.layout.gpu_indices(uuid for _, uuids in last for uuid in uuids)
    given = own[~state.is_free[own]]
    state.give(given)
    chosen = replan(state, request, last, bad)
    state.take(given)
    if chosen is None:
        return None
    parts = parts_of(state, request.tier, chosen)
    before = {uuid for _, uuids in last for uuid in uuids}
    return Recovery(parts, frozenset(uuid for _, uuids in parts for uuid in uuids if uuid in before))
