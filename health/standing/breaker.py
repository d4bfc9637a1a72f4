"""The circuit breaker: rules take out at most the policy's share of fleet, rack, cohort and tenant (I10, I29).

Each share is a scope of one account (``health.standing.account``), for whatever takes a GPU from new work: a move to
SUSPECT or QUARANTINED, a hold or a repair of its node, a burn-in that a rule orders. What would exceed a scope's cap is
proposed only, and opens that scope: from then on everything that would take out more in it is proposed, until a person
closes it. Scopes open independently: one rack's bad power does not keep rules from taking a burning GPU elsewhere. A
repair that finds no place opens nothing: it waits for one.

Every move back to service always passes, and counts nowhere. So does the return to QUARANTINED out of REPAIR, and
whatever takes no more capacity because its GPUs are out already. A quarantine alone waits for an open scope even then,
since it moves running work away.

With a cap of 3 in a rack::

    rule quarantines 1, 2       allowed, 2 of 3
    rule makes 3 SUSPECT        allowed, 3 of 3
    rule quarantines 4          proposed; the scope opens, one incident
    rule makes 5 SUSPECT        proposed
    GPU 1 returns to service    it counts until the window has passed, and the scope stays open
    a person closes the scope   rules may take out 3 more GPUs
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from health.standing.account import (
    FLEET,
    FLEET_WINDOW,
    NODE_WAYS,
    Books,
    BreakerState,
    FleetCounts,
    GpuPlace,
    TakenOut,
    Way,
    cap_of,
    num_counted,
)
from health.standing.gpu_case import RULE, Move
from muster.domain.ids import GpuUuid
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing

__all__ = [
    "FLEET",
    "FLEET_WINDOW",
    "BreakerDecision",
    "BreakerIncident",
    "BreakerState",
    "FleetCounts",
    "GpuPlace",
    "TakenOut",
    "Taking",
    "TakingDecision",
    "Way",
    "admit",
    "admit_takings",
    "cap_of",
    "close",
    "end_ways",
    "full_scopes",
    "num_counted",
    "true_up",
]

OUT_BY_RULE: Final = frozenset({Standing.SUSPECT, Standing.QUARANTINED})
"""Standings to which a rule takes a GPU out."""
_STAYS_OUT: Final = OUT_BY_RULE | {Standing.REPAIR}


@dataclass(frozen=True, slots=True)
class Taking:
    """GPUs that a rule would take out at once, in another way than by their standing. ``gpu_uuids``: one unit.

    ``subject``: the node or GPU that it is about. ``threatens_correctness``: it passes the caps, and counts.
    """

    subject: str
    gpu_uuids: tuple[GpuUuid, ...]
    way: Way
    threatens_correctness: bool = False


@dataclass(frozen=True, slots=True)
class BreakerIncident:
    """The scopes that opened now, each with its cap, and the GPUs that stay in service for it."""

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


@dataclass(frozen=True, slots=True)
class TakingDecision:
    """The same for takings."""

    state: BreakerState
    allowed: tuple[Taking, ...]
    proposed: tuple[Taking, ...]
    incident: BreakerIncident | None


def admit(
    moves: Iterable[Move], state: BreakerState, counts: FleetCounts, policy: HealthPolicy, now_ms: int
) -> BreakerDecision:
    """Return which of ``moves`` may be made now.

    The order is recoveries, then threats to correctness, then quarantines, then by time and GPU. Apply the whole ruling
    in one transaction with the moves, under a lock on the state.
    """
    # Recoveries first, since they may free a place under a cap; then what weighs most, so that milder moves do not use
    # up the cap before it.
    books = Books(state, counts, policy.breaker, now_ms)
    allowed: list[Move] = []
    proposed: list[Move] = []
    opened: dict[str, int] = {}
    for move in sorted(moves, key=_precedence):
        caps = _take(move, books)
        opened |= caps or {}
        (allowed if caps is None else proposed).append(move)
    incident = BreakerIncident(now_ms, opened, tuple(move.gpu_uuid for move in proposed)) if opened else None
    return BreakerDecision(books.state(), tuple(allowed), tuple(proposed), incident)


def admit_takings(
    takings: Iterable[Taking], state: BreakerState, counts: FleetCounts, policy: HealthPolicy, now_ms: int
) -> TakingDecision:
    """Return which of ``takings`` may be made now: threats to correctness first, then by subject.

    A threat to correctness passes a full scope too, which it opens: wrong results are worse than lost capacity.
    """
    books = Books(state, counts, policy.breaker, now_ms)
    allowed: list[Taking] = []
    proposed: list[Taking] = []
    opened: dict[str, int] = {}
    for taking in sorted(takings, key=lambda each: (not each.threatens_correctness, each.subject)):
        caps = _take_unit(taking, books)
        opened |= caps or {}
        if caps is not None and taking.threatens_correctness:
            for uuid in taking.gpu_uuids:
                books.set_ways(uuid, {*books.out_by(uuid), taking.way}, now_ms)
        (allowed if caps is None or taking.threatens_correctness else proposed).append(taking)
    waiting = tuple(dict.fromkeys(uuid for each in proposed for uuid in each.gpu_uuids))
    incident = BreakerIncident(now_ms, opened, waiting) if opened else None
    return TakingDecision(books.state(), tuple(allowed), tuple(proposed), incident)


def full_scopes(
    taking: Taking, state: BreakerState, counts: FleetCounts, policy: HealthPolicy, now_ms: int
) -> Sequence[str] | None:
    """Return the scopes in which ``taking`` has no place, or None where it may be made. No scope opens.

    A repair asks first, and waits for its place: that other GPUs are out is no reason to stop the rules.
    """
    caps = _take_unit(taking, Books(state, counts, policy.breaker, now_ms))
    if caps is None:
        return None
    scopes = {scope for uuid in taking.gpu_uuids for scope in counts.places.get(uuid, GpuPlace()).scopes()}
    return sorted({*caps, *(scopes & state.open_since_ms.keys())})


def end_ways(
    state: BreakerState,
    ended: Mapping[Way, Sequence[GpuUuid]],
    counts: FleetCounts,
    policy: HealthPolicy,
    now_ms: int,
) -> BreakerState:
    """Return the state after ways out have ended. A recovery is always free."""
    books = Books(state, counts, policy.breaker, now_ms)
    for way, uuids in ended.items():
        for uuid in uuids:
            books.end_way(uuid, way)
    return books.state()


def true_up(
    state: BreakerState,
    facts: Mapping[GpuUuid, Mapping[str, int]],
    counts: FleetCounts,
    policy: HealthPolicy,
    now_ms: int,
) -> BreakerState:
    """Return the state with exactly the GPUs of ``facts`` out, each by its ways there.

    ``facts``: GPU → way → since when, wall clock, milliseconds. What was taken out by a release that counted less is
    entered without a cap; what ended otherwise than by a move, such as a hold that a person released, is back.
    """
    books = Books(state, counts, policy.breaker, now_ms)
    known = [each.gpu_uuid for each in state.quarantined if each.is_out]
    for uuid in dict.fromkeys([*known, *sorted(facts)]):
        ways = facts.get(uuid, {})
        books.set_ways(uuid, ways.keys(), min(ways.values(), default=now_ms))
    return books.state()


def close(state: BreakerState, scope: str, now_ms: int) -> BreakerState:
    """Return the state after a person closes a scope: rules act in it again, up to a whole cap beyond the GPUs out now.

    Raises:
        ValueError: the scope is not open.
    """
    if scope not in state.open_since_ms:
        raise ValueError(f"breaker scope {scope!r} is not open; open are: {', '.join(sorted(state.open_since_ms))}")
    still_open = {name: at_ms for name, at_ms in state.open_since_ms.items() if name != scope}
    return replace(state, open_since_ms=still_open, closed_ms={**state.closed_ms, scope: now_ms})


def _take(move: Move, books: Books) -> dict[str, int] | None:
    """Enter the move. Return None where it may be made, else the caps of the scopes that it opened."""
    if not _counts(move):
        if move.to_standing not in _STAYS_OUT:
            books.end_way(move.gpu_uuid, Way.STANDING)
        return None
    out_by = books.out_by(move.gpu_uuid)
    if move.to_standing is Standing.SUSPECT and out_by:
        books.add_way([move.gpu_uuid], Way.STANDING)
        return None
    return books.take([move.gpu_uuid], Way.STANDING, is_node_out=bool(out_by & NODE_WAYS))


def _take_unit(taking: Taking, books: Books) -> dict[str, int] | None:
    if all(books.out_by(uuid) for uuid in taking.gpu_uuids):
        books.add_way(taking.gpu_uuids, taking.way)
        return None
    return books.take(taking.gpu_uuids, taking.way)


def _precedence(move: Move) -> tuple[bool, bool, bool, int, GpuUuid]:
    is_mild = move.to_standing is not Standing.QUARANTINED
    return _counts(move), not move.threatens_correctness, is_mild, move.at_ms, move.gpu_uuid


def _counts(move: Move) -> bool:
    is_taking = move.to_standing in OUT_BY_RULE and move.actor == RULE
    return is_taking and move.from_standing is not Standing.REPAIR
