"""The GPUs that a gang would get if others released theirs, and whether they suffice. Pure: the state is unchanged."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scheduler.fleet.kept_values import KeptValues
from scheduler.fleet.topology import Flags, FleetState, Ints
from scheduler.holds.reclaim_holds import ReclaimHolds
from scheduler.reclaim.candidates import ReclaimCandidates
from scheduler.reclaim.shares import Shares, shares_of
from scheduler.reclaim.victim_sets import VictimCandidates
from scheduler.solve.solver import Chosen, Request, most_nodes, place


@dataclass(frozen=True, slots=True)
class Due:
    """The victims that a request may have now, each within its tenant's cap.

    ``free_from``: the time from which each attempt may be a victim, caps apart. ``owner``: the victim, by index, of
    each GPU that the request would get, else -1. ``shares``: of the same GPUs.
    """

    free_from: Ints
    owner: Ints
    shares: Shares


class Reach:
    """The reach in one cycle. ``owner``: the attempt, by index, of each GPU, or -1."""

    def __init__(self, state: FleetState, owner: Ints, candidates: ReclaimCandidates, holds: ReclaimHolds) -> None:
        self._state, self._owner, self._candidates, self._holds = state, owner, candidates, holds
        self.newest_due: KeptValues[Due] = KeptValues()
        """The victims of one family: they take memory by GPU, and a queue may have a family for each job."""

    def owners_if(self, is_victim: Flags, request: Request) -> Ints:
        """Return the owner of each GPU that the request would get if these attempts released theirs, else -1."""
        admitted = self._state.tier(request.tier).admitted
        comes = np.append(is_victim, False)[self._owner] & admitted & ~self._state.is_free & ~self._holds.mask
        if not request.may_use_spares:
            comes &= ~self._state.is_spare
        return np.where(comes, self._owner, -1)

    def due(self, free_from: Ints, request: Request, now_ms: int) -> Due:
        """Return the victims of now, in a state in which the GPUs that become free by themselves are free."""
        may_give = (free_from <= now_ms) & self._candidates.is_within_cap()
        owner = self.owners_if(may_give, request)
        return Due(free_from, owner, shares_of(self._state.for_tier(request.tier), owner, len(may_give)))

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
        owner, allowance = self.owners_if(is_victim, request), self._candidates.allowance_by_code()
        given = np.bincount(self._candidates.tenant_codes[owner[owner >= 0]]).tolist()
        return sum(max(num_gpus - int(max(allowance[code], 0)), 0) for code, num_gpus in enumerate(given) if num_gpus)

    def most_within_caps(self, due: Due, request: Request) -> tuple[int, float]:
        """Return the most hosts and GPUs that victims within the caps of their tenants free, with the free ones."""
        state, shares = self._state.for_tier(request.tier), due.shares
        counts, allowance = state.tier(request.tier).counts, self._candidates.allowance_by_code()
        given = np.bincount(self._candidates.tenant_codes[shares.attempts], shares.counts).tolist()
        num_given = sum(min(num, max(allowance[code], 0.0)) for code, num in enumerate(given) if num)
        return most_nodes(state, request, counts + shares.by_cells()), int(counts.sum()) + num_given

    def candidates(self, owner: Ints, allowance: Mapping[int, float], shares: Shares | None = None) -> VictimCandidates:
        givers = self._candidates
        return VictimCandidates(owner, givers.costs, givers.num_gpus, givers.tenants, allowance, shares=shares)
