"""Facts of one GPU become claims on its time outside of attempts; and the parts of its time, which others share."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ledger.accounts import Account
from ledger.claims import Claim
from ledger.facts import Cordon, Gpu, Node, Override, Period, StandingMove, Use, Wait
from ledger.periods import FOREVER, Pair, end_of, joined, without
from muster.domain.states import Standing

OF_STANDING: Final = {
    Standing.RETIRED: Account.RETIRED,
    Standing.REPAIR: Account.REPAIR,
    Standing.QUARANTINED: Account.QUARANTINED,
    Standing.UNPROVEN: Account.UNPROVEN,
    Standing.SUSPECT: Account.SUSPECT,
    Standing.PROBATION: Account.FREE,
    Standing.HEALTHY: Account.FREE,
}
OVERRIDDEN: Final = "override"
"""Cause of a standing that a person set."""


class Within(NamedTuple):
    """A period of a fact, cut to a window."""

    account: Account
    start_ms: int
    end_ms: int
    cause: str
    evidence: tuple[str, ...]


class UsePart(NamedTuple):
    """Time in which a GPU is used by an attempt: while its program may run, or afterwards until it is proved clean."""

    attempt_id: str
    is_cleaning: bool
    start_ms: int
    end_ms: int


def parts_of_uses(uses: Sequence[Use], ended_ms: dict[str, int | None], start_ms: int, end_ms: int) -> list[UsePart]:
    """Return the disjoint parts of the window in order, in which the GPU is used.

    At one moment one attempt has the GPU (I1): of two, which no database has, the one that came first.
    """
    if len(uses) > 1:
        uses = sorted(set(uses), key=_order)
    found: list[UsePart] = []
    at_ms = start_ms
    for use in uses:
        over_ms = end_of(ended_ms.get(use.attempt_id, use.clean_ms))
        free_ms = min(max(end_of(use.clean_ms), over_ms), end_ms)
        at_ms = max(at_ms, use.placed_ms)
        for is_cleaning, until_ms in ((False, min(end_of(use.exited_ms), over_ms, free_ms)), (True, free_ms)):
            if at_ms < until_ms:
                found.append(UsePart(use.attempt_id, is_cleaning, at_ms, until_ms))
                at_ms = until_ms
    return found


def empty_parts(parts: Iterable[UsePart], start_ms: int, end_ms: int) -> Iterator[Pair]:
    """Yield the parts of the window in which no attempt has the GPU."""
    return without(start_ms, end_ms, [(part.start_ms, part.end_ms) for part in parts])


def within(pair: Pair, start_ms: int, end_ms: int) -> Pair:
    return max(pair[0], start_ms), min(pair[1], end_ms)


def cut(account: Account, periods: Iterable[Period], start_ms: int, end_ms: int) -> Iterator[Within]:
    for one in periods:
        from_ms, until_ms = within((one.start_ms, end_of(one.end_ms)), start_ms, end_ms)
        if from_ms < until_ms:
            yield Within(account, from_ms, until_ms, one.cause, one.evidence)


def when_empty(gpu: Gpu, node: Node, waits: Sequence[Wait], start_ms: int, end_ms: int) -> tuple[Within, ...]:
    """Return what claims a part of the window in which no attempt has the GPU. ``waits``: of jobs that could use it."""
    return (
        *_standings(gpu.moves, gpu.overrides, start_ms, end_ms),
        *cut(Account.REPAIR, gpu.repairs, start_ms, end_ms),
        *_cordoned((*gpu.cordons, *node.cordons), start_ms, end_ms),
        *cut(Account.BURN_IN, gpu.burn_ins, start_ms, end_ms),
        *cut(Account.NO_CONTACT, node.silences, start_ms, end_ms),
        *cut(Account.SPARE, gpu.spares, start_ms, end_ms),
        *cut(Account.HOLD, gpu.holds, start_ms, end_ms),
        *cut(Account.PENDING, [Period(one.start_ms, one.end_ms, one.reason) for one in waits], start_ms, end_ms),
    )


def as_claims(cuts: Iterable[Within]) -> list[Claim]:
    return [Claim(one.account, one.start_ms, one.end_ms, "", one.cause, one.evidence) for one in cuts]


def _standings(
    moves: Sequence[StandingMove], overrides: Sequence[Override], start_ms: int, end_ms: int
) -> Iterator[Within]:
    """Yield the standings by time. A person's counts while it stands; of several the one that began last."""
    taken: list[Pair] = []
    for one in sorted(set(overrides), key=_begun, reverse=True):
        evidence = (one.override_id,) if one.override_id else ()
        for part in without(one.start_ms, one.end_ms, taken):
            yield from _standing(one.standing, OVERRIDDEN, evidence, *within(part, start_ms, end_ms))
        taken = joined([*taken, (one.start_ms, one.end_ms)])
    ordered = moves if len(moves) == 1 else sorted(set(moves), key=_moved)
    for number, move in enumerate(ordered):
        until_ms = ordered[number + 1].at_ms if number + 1 < len(ordered) else FOREVER
        for part in without(*within((move.at_ms, until_ms), start_ms, end_ms), taken):
            yield from _standing(move.standing, move.cause, move.evidence, *part)


def _standing(
    standing: Standing, cause: str, evidence: tuple[str, ...], start_ms: int, end_ms: int
) -> Iterator[Within]:
    if start_ms >= end_ms:
        return
    account = OF_STANDING[standing]
    if account is Account.FREE:
        yield Within(account, start_ms, end_ms, "", ())
    else:
        yield Within(account, start_ms, end_ms, cause, evidence)


def _cordoned(cordons: Iterable[Cordon], start_ms: int, end_ms: int) -> Iterator[Within]:
    for one in cordons:
        from_ms, until_ms = within((one.start_ms, end_of(one.end_ms)), start_ms, end_ms)
        if from_ms < until_ms:
            account = Account.DRAINING if one.is_drain else Account.CORDONED
            yield Within(account, from_ms, until_ms, one.cause, (one.cordon_id,) if one.cordon_id else ())


def _order(use: Use) -> tuple[int, str, int, int]:
    return use.placed_ms, use.attempt_id, end_of(use.exited_ms), end_of(use.clean_ms)


def _begun(one: Override) -> tuple[int, int, str, str]:
    return one.start_ms, one.end_ms, one.standing, one.override_id


def _moved(move: StandingMove) -> tuple[int, int, str, str, tuple[str, ...]]:
    return move.at_ms, move.number, move.standing, move.cause, move.evidence
