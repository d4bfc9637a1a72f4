"""The circuit breaker of a replay: its memory, and the fleet whose size sets its limits."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from health.replay.stream import Fleet
from health.standing import breaker
from health.standing.breaker import (
    BreakerDecision,
    BreakerState,
    FleetCounts,
    GpuPlace,
    Taking,
    TakingDecision,
    Way,
)
from health.standing.gpu_case import Move
from muster.domain.ids import GpuUuid
from muster.domain.policy.health import HealthPolicy


@dataclass(slots=True)
class ReplayedBreaker:
    """Breaker with its fleet and the scopes of each GPU.

    ``fleet``: None where no input gave one; then the GPUs of the records are the fleet. ``places``: the scopes in which
    each GPU counts.
    """

    fleet: Fleet | None = None
    places: dict[GpuUuid, GpuPlace] = field(default_factory=dict)
    _state: BreakerState = field(default_factory=BreakerState)

    def rule(self, move: Move, num_known: int, policy: HealthPolicy, now_ms: int) -> BreakerDecision:
        ruling = breaker.admit([move], self._state, self._counts([move.gpu_uuid], num_known), policy, now_ms)
        self._state = ruling.state
        return ruling

    def hold(self, taking: Taking, num_known: int, policy: HealthPolicy, now_ms: int) -> TakingDecision:
        """Return whether the node of the taking may be held."""
        counts = self._counts(taking.gpu_uuids, num_known)
        ruling = breaker.admit_takings([taking], self._state, counts, policy, now_ms)
        self._state = ruling.state
        return ruling

    def end_hold(self, uuids: Sequence[GpuUuid], num_known: int, policy: HealthPolicy, now_ms: int) -> None:
        """Note that a node's hold has ended."""
        counts = self._counts(uuids, num_known)
        self._state = breaker.end_ways(self._state, {Way.NODE_HOLD: uuids}, counts, policy, now_ms)

    def close(self, scope: str, now_ms: int) -> bool:
        """Close a scope, and return whether it was open."""
        if scope not in self._state.open_since_ms:
            return False
        self._state = breaker.close(self._state, scope, now_ms)
        return True

    def _counts(self, uuids: Sequence[GpuUuid], num_known: int) -> FleetCounts:
        """Return the counts of the GPUs' scopes. A rack or cohort of unknown size has no scope."""
        if self.fleet is None:
            return FleetCounts(num_known)
        racks, cohorts = self.fleet.by_rack, self.fleet.by_cohort
        places: dict[GpuUuid, GpuPlace] = {}
        for uuid in uuids:
            place = self.places.get(uuid, GpuPlace())
            rack = place.rack if place.rack in racks else None
            cohort = place.cohort if place.cohort in cohorts else None
            places[uuid] = GpuPlace(rack, cohort)
        return FleetCounts(self.fleet.num_gpus, racks, cohorts, places=places)
