"""The most that reclaim could free to a family of requests: most gangs of a long queue are refused by one comparison.

A gang that would not fit even if all candidates released their GPUs has no victims, whatever set is searched. So the
search is left out, and the refusal is the one that it would end with (``Refusals.of``).
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np

from scheduler.fleet.topology import NEVER_MS, Flags, FleetState, Ints
from scheduler.holds.outcomes import Obstacle, Refused
from scheduler.reclaim.candidates import ReclaimCandidates
from scheduler.reclaim.lending import Claim
from scheduler.reclaim.release_effect import Due, Reach
from scheduler.solve.solver import Request, most_nodes, most_unrounded


class ReclaimRoom:
    """The room of one family. ``coming``: GPUs that become free by themselves before any notice ends."""

    def __init__(
        self,
        state: FleetState,
        reach: Reach,
        candidates: ReclaimCandidates,
        request: Request,
        claim: Claim | None,
        coming: Ints,
        now_ms: int,
    ) -> None:
        self._state, self._reach, self._candidates, self._request = state, reach, candidates, request
        self._coming, self._now_ms, self._has_claim = coming, now_ms, claim is not None
        self._free_from: Ints = candidates.free_from_ms(request, claim)
        self._is_due: Flags = self._free_from <= now_ms
        self._most_at: dict[int, int] = {}
        self._stamp: Hashable = object()  # equal to that of no other room, and no reference to this one

    @contextmanager
    def _with_coming(self) -> Iterator[None]:
        self._state.give(self._coming)
        try:
            yield
        finally:
            self._state.take(self._coming)

    def refusal(self, nodes: int) -> Refused | None:
        """Return why reclaim does not help a gang of so many hosts now; None: it may, or the gang needs none."""
        # Caps bound the least: mostly these victims suffice, and nothing else is counted.
        is_over_caps = self._is_over_caps(nodes)
        if not is_over_caps or self._by_itself >= nodes:
            return None
        if self._by_all < nodes:
            is_by_closing = self._too_little.most_nodes >= nodes
            return Refused(Obstacle.CLOSING) if is_by_closing else self._too_little
        if self._most_by(self._now_ms) < nodes:
            return self._too_young(nodes)
        return None if self._has_claim or self._candidates.elastic else self._over_caps

    @property
    def due(self) -> Due:
        """The victims of now, for every request of the family; ``Reach`` keeps them for the newest room alone."""
        return self._reach.newest_due.get(self._stamp, None, self._due)

    def _due(self) -> Due:
        with self._with_coming():
            return self._reach.due(self._free_from, self._request, self._now_ms)

    @cached_property
    def _by_itself(self) -> int:
        """The most hosts without any victim."""
        with self._with_coming():
            return most_nodes(self._state, self._request)

    @property
    def _by_all(self) -> int:
        """The most hosts with all candidates as victims, whatever time and caps forbid now."""
        return self._most_by(NEVER_MS - 1)

    @cached_property
    def _too_little(self) -> Refused:
        with self._with_coming():
            return self._refused_by_all()

    def _refused_by_all(self) -> Refused:
        """Return the refusal of a gang for which all candidates are too little."""
        may_give = self._free_from < NEVER_MS
        if not may_give.any():
            return Refused()
        state, counts = self._state, self._reach.counts_by(may_give, self._request)
        anytime = replace(self._request, maintenance_start_ms=None)
        most = most_nodes(state, anytime, counts)
        unrounded = most_unrounded(state, anytime, counts, most)
        num_gpus = self._reach.num_given(may_give, self._request)
        return Refused(Obstacle.TOO_LITTLE, num_gpus=num_gpus, most_nodes=most, most_unrounded=unrounded)

    def _too_young(self, nodes: int) -> Refused:
        until_ms = self._moments[bisect_left(self._moments, True, key=lambda at_ms: self._most_by(at_ms) >= nodes)]
        return Refused(Obstacle.MIN_RUN, until_ms, self._num_young, free_from_ms=self._free_from)

    @cached_property
    def _moments(self) -> list[int]:
        """The times at which candidates have had their minimum run time, from now on."""
        moments: list[int] = np.unique(self._free_from[self._is_young]).tolist()
        return moments

    @cached_property
    def _is_young(self) -> Flags:
        is_young: Flags = (self._free_from < NEVER_MS) & ~self._is_due
        return is_young

    @cached_property
    def _num_young(self) -> int:
        with self._with_coming():
            return self._reach.num_given(self._is_young, self._request)

    @cached_property
    def _over_caps(self) -> Refused:
        with self._with_coming():
            num_gpus = self._reach.num_over_caps(self._is_due, self._request)
        return Refused(Obstacle.CAP, num_gpus=num_gpus)

    @cached_property
    def _most_within_caps(self) -> tuple[int, float]:
        """The most hosts and GPUs that candidates within the caps of their tenants free, with the free ones."""
        due = self.due
        with self._with_coming():
            return self._reach.most_within_caps(due, self._request)

    def _is_over_caps(self, nodes: int) -> bool:
        """Return whether no attempts within the caps of their tenants could be enough, whichever they are."""
        most, num_gpus = self._most_within_caps
        return most < nodes or num_gpus < nodes * self._request.gpus_per_node

    def _most_by(self, at_ms: int) -> int:
        """Return the most hosts that one home has once all candidates of that time have released their GPUs."""
        if at_ms not in self._most_at:
            with self._with_coming():
                self._most_at[at_ms] = self._reach.most_nodes_by(self._free_from <= at_ms, self._request)
        return self._most_at[at_ms]
