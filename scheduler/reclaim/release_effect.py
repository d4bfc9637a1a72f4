"""The GPUs that a gang would get if others released theirs, and whether they suffice. Pure: the state is unchanged."""

from collections.abc import Mapping

import numpy as np

from scheduler.fleet.topology import Flags, FleetState, Ints
from scheduler.holds.reclaim_holds import ReclaimHolds
from scheduler.reclaim.candidates import ReclaimCandidates
from scheduler.reclaim.victim_sets import VictimCandidates
from scheduler.solve.solver import Chosen, Request, most_nodes, place


class Reach:
    """The reach in one cycle. ``owner``: the attempt, by index, of each GPU, or -1."""

    def __init__(self, state: FleetState, owner: Ints, candidates: ReclaimCandidates, holds: ReclaimHolds) -> None:
        self._state, self._owner, self._candidates, self._holds = state, owner, candidates, holds

    def owners_if(self, is_victim: Flags, request: Request) -> Ints:
        """Return the owner of each GPU that the request would get if these attempts released theirs, else -1."""
        admitted = self._state.tier(request.tier).admitted
        comes = np.append(is_victim, False)[self._owner] & admitted & ~self._state.is_free & ~self._holds.mask
        if not request.may_use_spares:
            comes &= ~self._state.is_spare
        return np.where(comes, self._owner, -1)

    def open_to(self, request: Request, gpus: Ints) -> Ints:
        """Return the GPUs that the request may have once they are free: a lent spare remains a spare."""
        return gpus if request.may_use_spares else gpus[~self._state.is_spare[gpus]]

    def with_freed(self, gpus: Ints, request: Request, state: FleetState | None = None) -> Chosen | None:
        """Return the placement on a hypothetical state in which ``gpus`` are free as well, as far as it may have them.

        ``state``: the fleet at another moment, with the same GPUs free.
        """
        gpus, state = self.open_to(request, gpus), state or self._state
        state.give(gpus)
        chosen = place(state, request)
        state.take(gpus)
        return chosen

    def counts_by(self, is_victim: Flags, request: Request) -> Ints:
        """Return the usable GPUs of each cell if these attempts released theirs."""
        state = self._state.for_tier(request.tier)
        gpus = np.flatnonzero(self.owners_if(is_victim, request) >= 0)
        freed = np.bincount(state.layout.cell_of_gpu[gpus], minlength=state.layout.num_cells)
        counts: Ints = state.tier(request.tier).counts + freed
        return counts

    def most_nodes_by(self, is_victim: Flags, request: Request) -> int:
        """Return the most hosts that one home would give if these attempts released their GPUs."""
        return most_nodes(self._state, request, self.counts_by(is_victim, request))

    def num_given(self, is_victim: Flags, request: Request) -> int:
        """Return how many GPUs the request would get if these attempts released theirs."""
        return int(np.count_nonzero(self.owners_if(is_victim, request) >= 0))

    def num_over_caps(self, is_victim: Flags, request: Request) -> int:
        """Return how many of these GPUs exceed what their tenants may still lose."""
        given = self._given_by_tenant(is_victim, request)
        allowance = self._candidates.allowance_by_code()
        return sum(max(num_gpus - int(max(allowance[code], 0)), 0) for code, num_gpus in enumerate(given) if num_gpus)

    def num_within_caps(self, is_victim: Flags, request: Request) -> float:
        """Return the most of these GPUs that their tenants together may still lose."""
        given = self._given_by_tenant(is_victim, request)
        allowance = self._candidates.allowance_by_code()
        return sum(min(num_gpus, max(allowance[code], 0.0)) for code, num_gpus in enumerate(given) if num_gpus)

    def _given_by_tenant(self, is_victim: Flags, request: Request) -> list[int]:
        owner = self.owners_if(is_victim, request)
        codes = self._candidates.tenant_codes[owner[owner >= 0]]
        given: list[int] = np.bincount(codes).tolist()
        return given

    def candidates(self, owner: Ints, allowance: Mapping[int, float]) -> VictimCandidates:
        return VictimCandidates(
            owner, self._candidates.costs, self._candidates.num_gpus, self._candidates.tenants, allowance
        )
