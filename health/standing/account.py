"""The account of capacity that rules keep from new work, by GPU and scope (I29).

A rule takes capacity by one of several ways. A GPU counts once, from its first way out until its last one ends, and for
the breaker's window after that. A node hold takes all GPUs of the node as one unit, and so does a repair that the whole
host feels. Where nothing else counts in a scope, one unit fits whatever its size, so that a small fleet can keep work
off a faulty node.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from muster.domain.ids import GpuUuid, TenantId
from muster.domain.policy.health import BreakerPolicy

FLEET: Final = "fleet"
FLEET_WINDOW: Final = "fleet_window"


class Way(StrEnum):
    """The ways by which rules keep a GPU from new work."""

    STANDING = "standing"
    """It is SUSPECT or QUARANTINED by rule, or in REPAIR after that."""
    NODE_HOLD = "node_hold"
    """A fault of its node holds the node."""
    BURN_IN = "burn_in"
    """A rule ordered a burn-in of it while it was in service."""
    NODE_REPAIR = "node_repair"
    """A repair that a rule started, and that the whole host feels, keeps work off its node."""


NODE_WAYS: Final = frozenset({Way.NODE_HOLD, Way.NODE_REPAIR})
"""The ways that take all GPUs of a node at once."""


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """The scopes in which a GPU counts; None where it counts in none (no rack known, no tenant on it)."""

    rack: str | None = None
    cohort: str | None = None
    tenant: TenantId | None = None

    def scopes(self) -> tuple[str, ...]:
        named = (("rack", self.rack), ("cohort", self.cohort), ("tenant", self.tenant))
        return (FLEET_WINDOW, FLEET, *(f"{kind}:{name}" for kind, name in named if name is not None))


@dataclass(frozen=True, slots=True)
class FleetCounts:
    """Numbers of GPUs that are not retired: in total, by rack and cohort; by tenant the GPUs that it holds.

    ``places``: where each GPU of the moves counts.
    """

    num_gpus: int
    by_rack: Mapping[str, int] = field(default_factory=dict)
    by_cohort: Mapping[str, int] = field(default_factory=dict)
    by_tenant: Mapping[TenantId, int] = field(default_factory=dict)
    places: Mapping[GpuUuid, GpuPlace] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TakenOut:
    """One GPU that a rule took out. It is listed once, however often it falls. ``is_out``: it is not back yet.

    ``ways``: the values of ``Way`` by which it is out. The release before stores none: its entries are out by their
    standing. A value that only a later release knows stays.
    """

    gpu_uuid: GpuUuid
    at_ms: int
    scopes: tuple[str, ...]
    is_out: bool = True
    ways: tuple[str, ...] = ()

    def out_by(self) -> frozenset[str]:
        """Return the ways by which it is out now."""
        if not self.is_out:
            return frozenset()
        return frozenset(self.ways or (Way.STANDING,))

    def is_out_by_node_alone(self) -> bool:
        """Return whether only its node keeps it from work."""
        return bool(self.out_by()) and self.out_by() <= NODE_WAYS

    def with_ways(self, ways: Collection[str]) -> "TakenOut":
        return replace(self, ways=tuple(sorted(ways)), is_out=bool(ways))


@dataclass(frozen=True, slots=True)
class BreakerState:
    """Memory of the breaker; to be stored, since it outlives every restart (I25).

    ``quarantined``: the GPUs taken out, by whatever way, under the name that the release before reads.
    ``open_since_ms``: scope → when it opened. ``closed_ms``: scope → when a person closed it last; GPUs taken out until
    then were accepted by that person, and count no longer.
    """

    quarantined: tuple[TakenOut, ...] = ()
    open_since_ms: Mapping[str, int] = field(default_factory=dict)
    closed_ms: Mapping[str, int] = field(default_factory=dict)


def cap_of(scope: str, counts: FleetCounts, policy: BreakerPolicy) -> int:
    """Return how many GPUs rules may have taken out in ``scope``."""
    kind, _, name = scope.partition(":")
    match kind:
        case "fleet_window":
            size, share, floor = counts.num_gpus, policy.fleet_window_share, policy.fleet_window_floor
        case "rack":
            size, share, floor = counts.by_rack.get(name, 0), policy.rack_share, policy.rack_floor
        case "cohort":
            size, share, floor = counts.by_cohort.get(name, 0), policy.cohort_share, policy.cohort_floor
        case "tenant":
            size, share, floor = counts.by_tenant.get(TenantId(name), 0), policy.tenant_share, policy.tenant_floor
        case _:
            size, share, floor = counts.num_gpus, policy.fleet_share, policy.fleet_floor
    return max(floor, int(share * size + 1e-9))


def num_counted(state: BreakerState, scope: str, policy: BreakerPolicy, now_ms: int) -> int:
    """Return how many GPUs count against ``scope`` now: those taken out within the window, and all that are still out.

    The scope of the window itself counts only the former.
    """
    since_ms = _since_ms(policy, now_ms)
    return sum(
        scope in each.scopes and _counts_in(scope, each, state.closed_ms, since_ms) for each in state.quarantined
    )


class Books:
    """The account while takings are decided, with a count for each scope: a storm has thousands of them."""

    def __init__(self, state: BreakerState, counts: FleetCounts, policy: BreakerPolicy, now_ms: int) -> None:
        self._counts = counts
        self._policy = policy
        self._now_ms = now_ms
        self._closed_ms = state.closed_ms
        self._open_since_ms = dict(state.open_since_ms)
        self._taken: dict[GpuUuid, TakenOut] = {}
        self._num_counted = Counter[str]()
        self._num_standing = Counter[str]()
        since_ms = _since_ms(policy, now_ms)
        for each in state.quarantined:
            if each.is_out or each.at_ms > since_ms:
                self._put(each)

    def state(self) -> BreakerState:
        return BreakerState(tuple(self._taken.values()), self._open_since_ms, self._closed_ms)

    def out_by(self, gpu_uuid: GpuUuid) -> frozenset[str]:
        """Return the ways by which a GPU is out now."""
        taken = self._taken.get(gpu_uuid)
        return frozenset() if taken is None else taken.out_by()

    def add_way(self, gpu_uuids: Sequence[GpuUuid], way: Way) -> None:
        """Note a further way of GPUs that are out already: it takes no more capacity."""
        for uuid in gpu_uuids:
            self._put(self._taken[uuid].with_ways({*self.out_by(uuid), way}))

    def take(self, gpu_uuids: Sequence[GpuUuid], way: Way, *, is_node_out: bool = False) -> dict[str, int] | None:
        """Take the GPUs out as one unit and return None, or return the caps of the scopes that the taking opened.

        ``is_node_out``: their node takes no work, so that they take no more capacity: only standings count. GPUs of a
        unit that are out already keep their time, so they count nowhere where a person has accepted them.
        """
        scopes = {uuid: self._counts.places.get(uuid, GpuPlace()).scopes() for uuid in gpu_uuids}
        before = [self._taken[uuid] for uuid in gpu_uuids if uuid in self._taken]
        for each in before:
            self._tally(each, -1)
        kept = {each.gpu_uuid: each for each in before if each.is_out and way is not Way.STANDING}
        wanted = Counter(scope for uuid, own in scopes.items() if uuid not in kept for scope in own)
        wanted.update(scope for each in kept.values() for scope in each.scopes if self._is_counted(each, scope))
        closed = [scope for scope in wanted if scope not in self._open_since_ms]
        caps = {scope: cap_of(scope, self._counts, self._policy) for scope in closed}
        counted = self._num_standing if is_node_out else self._num_counted
        full = {scope: cap for scope, cap in caps.items() if not _fits(wanted[scope], counted[scope], cap)}
        if full or len(closed) < len(wanted):
            self._open_since_ms |= dict.fromkeys(full, self._now_ms)
            for each in before:
                self._tally(each, 1)
            return full
        for uuid, own in scopes.items():
            ways = {*self.out_by(uuid), way}
            if uuid not in kept:
                self._taken.pop(uuid, None)  # removed first, so that it is put last, in the order of the falls
                # Later than any closing of its scopes: what a person accepted is what was out before, not what follows.
                at_ms = max([self._now_ms, *(self._closed_ms.get(scope, -1) + 1 for scope in own)])
                self._taken[uuid] = TakenOut(uuid, at_ms, own)
            self._taken[uuid] = self._taken[uuid].with_ways(ways)
            self._tally(self._taken[uuid], 1)
        return None

    def end_way(self, gpu_uuid: GpuUuid, way: Way) -> None:
        """Note that a way has ended. A GPU without a way is back; it still counts within the window."""
        if way in self.out_by(gpu_uuid):
            self._put(self._taken[gpu_uuid].with_ways(self.out_by(gpu_uuid) - {way}))

    def set_ways(self, gpu_uuid: GpuUuid, ways: Collection[str], at_ms: int) -> None:
        """Note the ways by which a GPU is out in fact; ``at_ms``: since when, if the account has it as in service."""
        if frozenset(ways) == self.out_by(gpu_uuid):
            return
        known = self._taken.get(gpu_uuid)
        if known is None or not known.is_out:
            known = TakenOut(gpu_uuid, at_ms, self._counts.places.get(gpu_uuid, GpuPlace()).scopes())
        self._put(known.with_ways(ways))

    def _put(self, taken: TakenOut) -> None:
        before = self._taken.get(taken.gpu_uuid)
        if before is not None:
            self._tally(before, -1)
        self._taken[taken.gpu_uuid] = taken
        self._tally(taken, 1)

    def _is_counted(self, taken: TakenOut, scope: str) -> bool:
        return _counts_in(scope, taken, self._closed_ms, _since_ms(self._policy, self._now_ms))

    def _tally(self, taken: TakenOut, times: int) -> None:
        for scope in taken.scopes:
            if self._is_counted(taken, scope):
                self._num_counted[scope] += times
                self._num_standing[scope] += 0 if taken.is_out_by_node_alone() else times


def _fits(num_gpus: int, num_others: int, cap: int) -> bool:
    """Return whether a unit fits under a cap. Where nothing else counts, one unit does, whatever its size."""
    return num_others + num_gpus <= cap or num_others == 0


def _since_ms(policy: BreakerPolicy, now_ms: int) -> int:
    return now_ms - int(policy.window_s * 1000)


def _counts_in(scope: str, taken: TakenOut, closed_ms: Mapping[str, int], since_ms: int) -> bool:
    """Return whether the GPU counts in one of its scopes."""
    is_recent = taken.at_ms > since_ms or _lasts(taken, scope)
    return is_recent and taken.at_ms > closed_ms.get(scope, -1)


def _lasts(taken: TakenOut, scope: str) -> bool:
    return taken.is_out and scope != FLEET_WINDOW
