"""The circuit breaker: rules quarantine at most the policy's share of fleet, rack, cohort and tenant (I10).

Each share is a scope. A move that would exceed a scope's cap is proposed only, and opens that scope: from then on every
quarantine by rule in it is proposed, until a person closes it. Scopes open independently: one rack's bad power does not
keep rules from taking a burning GPU elsewhere. Every move that is no quarantine by a rule always passes; so does the
return to QUARANTINED out of REPAIR, since that GPU was out already.

With a cap of 3 in a rack::

    rule quarantines 1, 2, 3    allowed, 3 of 3
    rule quarantines 4          proposed; the scope opens, one incident
    rule quarantines 5          proposed
    GPU 1 returns to service    it counts until the window has passed, and the scope stays open
    a person closes the scope   rules may take out 3 more GPUs
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from health.standing.gpu_case import RULE, Move
from muster.domain.ids import GpuUuid, TenantId
from muster.domain.policy.health import BreakerPolicy, HealthPolicy
from muster.domain.states import Standing

FLEET: Final = "fleet"
FLEET_WINDOW: Final = "fleet_window"


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
class Quarantined:
    """One GPU that a rule took out. A GPU is listed once, however often it falls. ``is_out``: it is not back yet."""

    gpu_uuid: GpuUuid
    at_ms: int
    scopes: tuple[str, ...]
    is_out: bool = True


@dataclass(frozen=True, slots=True)
class BreakerState:
    """Memory of the breaker; to be stored, since it outlives every restart (I25).

    ``open_since_ms``: scope → when it opened. ``closed_ms``: scope → when a person closed it last; GPUs taken out until
    then were accepted by that person, and count no longer.
    """

    quarantined: tuple[Quarantined, ...] = ()
    open_since_ms: Mapping[str, int] = field(default_factory=dict)
    closed_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BreakerIncident:
    """The scopes that opened now, each with its cap, and the GPUs whose moves are proposed for it."""

    at_ms: int
    caps: Mapping[str, int]
    gpu_uuids: tuple[GpuUuid, ...]


@dataclass(frozen=True, slots=True)
class BreakerDecision:
    """The breaker's decision: ``allowed`` moves may be made; ``proposed`` ones wait for a person.

    ``incident``: None unless a scope opened.
    """

    state: BreakerState
    allowed: tuple[Move, ...]
    proposed: tuple[Move, ...]
    incident: BreakerIncident | None


def admit(
    moves: Iterable[Move], state: BreakerState, counts: FleetCounts, policy: HealthPolicy, now_ms: int
) -> BreakerDecision:
    """Return which of ``moves`` may be made now: recoveries first, then threats to correctness, then by time and GPU.

    Apply the whole ruling in one transaction with the moves, under a lock on the state.
    """
    # Recoveries first, since they may free a place under a cap; then threats to correctness, so that milder moves do
    # not use up the cap before them.
    ordered = sorted(moves, key=lambda move: (_counts(move), not move.threatens_correctness, move.at_ms, move.gpu_uuid))
    books = _Books(_pruned(state, policy.breaker, now_ms), counts, policy.breaker, now_ms)
    allowed: list[Move] = []
    proposed: list[Move] = []
    opened: dict[str, int] = {}
    for move in ordered:
        if not _counts(move):
            books.give_back(move)
            allowed.append(move)
            continue
        caps = books.take(move)
        opened |= caps or {}
        (allowed if caps is None else proposed).append(move)
    incident = BreakerIncident(now_ms, opened, tuple(move.gpu_uuid for move in proposed)) if opened else None
    return BreakerDecision(books.state(), tuple(allowed), tuple(proposed), incident)


def close(state: BreakerState, scope: str, now_ms: int) -> BreakerState:
    """Return the state after a person closes a scope: rules act in it again, up to a whole cap beyond the GPUs out now.

    Raises:
        ValueError: the scope is not open.
    """
    if scope not in state.open_since_ms:
        raise ValueError(f"breaker scope {scope!r} is not open; open are: {', '.join(sorted(state.open_since_ms))}")
    still_open = {name: at_ms for name, at_ms in state.open_since_ms.items() if name != scope}
    return replace(state, open_since_ms=still_open, closed_ms={**state.closed_ms, scope: now_ms})


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


class _Books:
    """The state while moves are decided, with a count for each scope: a storm has thousands of moves."""

    def __init__(self, state: BreakerState, counts: FleetCounts, policy: BreakerPolicy, now_ms: int) -> None:
        self._counts = counts
        self._policy = policy
        self._now_ms = now_ms
        self._closed_ms = state.closed_ms
        self._open_since_ms = dict(state.open_since_ms)
        self._quarantined: dict[GpuUuid, Quarantined] = {}
        self._num_counted = Counter[str]()
        for each in state.quarantined:
            self._put(each)

    def state(self) -> BreakerState:
        return BreakerState(tuple(self._quarantined.values()), self._open_since_ms, self._closed_ms)

    def take(self, move: Move) -> dict[str, int] | None:
        """Take the GPU out and return None, or return the caps of the scopes that the move opened."""
        scopes = self._counts.places.get(move.gpu_uuid, GpuPlace()).scopes()
        before = self._quarantined.get(move.gpu_uuid)
        if before is not None:
            self._tally(before, -1)
        caps = {
            scope: cap_of(scope, self._counts, self._policy) for scope in scopes if scope not in self._open_since_ms
        }
        full = {scope: cap for scope, cap in caps.items() if self._num_counted[scope] >= cap}
        if full or len(caps) < len(scopes):
            self._open_since_ms |= dict.fromkeys(full, self._now_ms)
            if before is not None:
                self._tally(before, 1)
            return full
        self._quarantined.pop(move.gpu_uuid, None)  # removed first, so that it is put last, in the order of the falls
        self._put(Quarantined(move.gpu_uuid, self._now_ms, scopes))
        return None

    def give_back(self, move: Move) -> None:
        """Count a GPU that left QUARANTINED or REPAIR as no longer out; it still counts within the window."""
        before = self._quarantined.get(move.gpu_uuid)
        if before is None or move.to_standing in {Standing.QUARANTINED, Standing.REPAIR}:
            return
        self._tally(before, -1)
        self._put(replace(before, is_out=False))

    def _put(self, quarantined: Quarantined) -> None:
        self._quarantined[quarantined.gpu_uuid] = quarantined
        self._tally(quarantined, 1)

    def _tally(self, quarantined: Quarantined, times: int) -> None:
        since_ms = _since_ms(self._policy, self._now_ms)
        for scope in quarantined.scopes:
            if _counts_in(scope, quarantined, self._closed_ms, since_ms):
                self._num_counted[scope] += times


def _since_ms(policy: BreakerPolicy, now_ms: int) -> int:
    return now_ms - int(policy.window_s * 1000)


def _counts_in(scope: str, quarantined: Quarantined, closed_ms: Mapping[str, int], since_ms: int) -> bool:
    """Return whether the GPU counts in one of its scopes."""
    is_recent = quarantined.at_ms > since_ms or _lasts(quarantined, scope)
    return is_recent and quarantined.at_ms > closed_ms.get(scope, -1)


def _lasts(quarantined: Quarantined, scope: str) -> bool:
    return quarantined.is_out and scope != FLEET_WINDOW


def _counts(move: Move) -> bool:
    is_quarantine = move.to_standing is Standing.QUARANTINED
    return is_quarantine and move.actor == RULE and move.from_standing is not Standing.REPAIR


def _pruned(state: BreakerState, policy: BreakerPolicy, now_ms: int) -> BreakerState:
    since_ms = _since_ms(policy, now_ms)
    kept = tuple(each for each in state.quarantined if each.is_out or each.at_ms > since_ms)
    return replace(state, quarantined=kept)
