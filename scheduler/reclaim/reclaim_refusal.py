"""Reasons why reclaim cannot help a gang now, though it may later. Pure."""

import math
from bisect import bisect_left
from dataclasses import replace

import numpy as np

from scheduler.fleet.topology import NEVER_MS, Flags, FleetState, Ints
from scheduler.holds.outcomes import Obstacle, Refused
from scheduler.reclaim.candidates import ReclaimCandidates
from scheduler.reclaim.lending import Claim
from scheduler.reclaim.release_effect import Reach
from scheduler.reclaim.victims import cheapest_covers
from scheduler.solve.solver import Request, most_unrounded


class Refusals:
    """Reasons of one cycle, on a state in which the GPUs that become free by themselves are free."""

    def __init__(self, state: FleetState, reach: Reach, candidates: ReclaimCandidates, now_ms: int) -> None:
        self._state, self._reach, self._candidates, self._now_ms = state, reach, candidates, now_ms

    def of(self, free_from: Ints, request: Request, claim: Claim | None) -> Refused:
        """Return the reason why reclaim does not help now, though it may later."""
        may_give = free_from < NEVER_MS
        if not may_give.any():
            return Refused()
        if self._reach.most_nodes_by(may_give, request) < request.nodes:
            return self._too_little(may_give, request)
        may_give_now = free_from <= self._now_ms
        if self._reach.most_nodes_by(may_give_now, request) >= request.nodes:
            if claim is None or self._is_lent(free_from, request, claim):
                return Refused(Obstacle.CAP, num_gpus=self._reach.num_over_caps(may_give_now, request))
            return Refused(Obstacle.GUARANTEES, num_gpus=self._reach.num_given(may_give_now, request))
        moments = np.unique(free_from[may_give & (free_from > self._now_ms)]).tolist()

        def is_enough(at_ms: int) -> bool:
            return self._reach.most_nodes_by(free_from <= at_ms, request) >= request.nodes

        until_ms = moments[bisect_left(moments, True, key=is_enough)]
        num_young = self._reach.num_given(may_give & ~may_give_now, request)
        return Refused(Obstacle.MIN_RUN, until_ms, num_young, free_from_ms=free_from)

    def _is_lent(self, free_from: Ints, request: Request, claim: Claim) -> bool:
        """Return whether lenders' GPUs would suffice if no cap bound them; else the end of the cap does not help."""
        owner = self._reach.owners_if(free_from <= self._now_ms, request)
        candidates = self._reach.candidates(owner, dict.fromkeys(self._candidates.allowance_by_code(), math.inf))
        return bool(cheapest_covers(self._state, request, replace(candidates, may_lose=claim.may_lose)))

    def _too_little(self, may_give: Flags, request: Request) -> Refused:
        anytime = replace(request, maintenance_start_ms=None)
        most = self._reach.most_nodes_by(may_give, anytime)
        if most >= request.nodes:
            return Refused(Obstacle.CLOSING)
        unrounded = most_unrounded(self._state, anytime, self._reach.counts_by(may_give, request), most)
        num_gpus = self._reach.num_given(may_give, request)
        return Refused(Obstacle.TOO_LITTLE, num_gpus=num_gpus, most_nodes=most, most_unrounded=unrounded)
