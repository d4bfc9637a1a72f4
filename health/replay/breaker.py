"""The circuit breaker of a replay: its memory, and the fleet whose size sets its limits."""

from dataclasses import dataclass, field

from health.replay.stream import Fleet
from health.standing import breaker
from health.standing.breaker import BreakerDecision, BreakerState, FleetCounts, GpuPlace
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
        ruling = breaker.admit([move], self._state, self._counts(move.gpu_uuid, num_known), policy, now_ms)
        self._state = ruling.state
        return ruling

    def close(self, scope: str, now_ms: int) -> bool:
        """Close a scope, and return whether it was open."""
        if scope not in self._state.open_since_ms:
            return False
        self._state = breaker.close(self._state, scope, now_ms)
        return True

    def _counts(self, uuid: GpuUuid, num_known: int) -> FleetCounts:
        """Return the counts of the GPU's scopes. A rack or cohort of unknown size has no scope."""
        if self.fleet is None:
            return FleetCounts(num_known)
        place, racks, cohorts = self.places.get(uuid, GpuPlace()), self.fleet.by_rack, self.fleet.by_cohort
        rack, cohort = (
            (place.rack if place.rack in racks else None),
            (place.cohort if place.cohort in cohorts else None),
        )
        return FleetCounts(self.fleet.num_gpus, racks, cohorts, places={uuid: GpuPlace(rack, cohort)})
