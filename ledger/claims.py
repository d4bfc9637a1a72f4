"""Claims on a GPU's time, and how they become disjoint spans whose sum is exact."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ledger.accounts import PRECEDENCE, Account


@dataclass(frozen=True, slots=True)
class Claim:
    """An account claims ``start_ms`` ≤ time < ``end_ms``, in milliseconds since 1970 by the server's clock.

    ``attempt_id``: whose use it is; empty: none's. ``cause``: a token of why, such as the reason of a quarantine, the
    cause of an attempt's end or a job's binding wait reason. ``evidence``: ids of evidence, verdicts or reclaims.
    """

    account: Account
    start_ms: int
    end_ms: int
    attempt_id: str = ""
    cause: str = ""
    evidence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.start_ms > self.end_ms:
            raise ValueError(f"{self.account} claims time that ends before it starts")

    @property
    def num_ms(self) -> int:
        return self.end_ms - self.start_ms


class Key(NamedTuple):
    """What the milliseconds of an entry have in common."""

    account: Account
    attempt_id: str
    cause: str
    evidence: tuple[str, ...]


def settle(claims: Iterable[Claim], start_ms: int, end_ms: int) -> list[Claim]:
    """Return disjoint claims in order of time that fill ``start_ms`` to ``end_ms``: I27.

    At each moment the claim of the first account by ``PRECEDENCE`` counts; of equal ones the one that began first, then
    by attempt, cause and evidence. So the order of ``claims`` does not matter. Time that nothing claims is UNEXPLAINED.
    Neighbours that differ in their times alone are one.
    """
    within = sorted(
        (one for one in claims if one.start_ms < end_ms and one.end_ms > start_ms and one.num_ms), key=_rank
    )
    settled: list[Claim] = []
    for one in [*within, Claim(Account.UNEXPLAINED, start_ms, end_ms)]:
        settled = sorted(_with_rest_of(settled, one, start_ms, end_ms), key=_start)
    return list(_joined(settled))


def sums(settled: Iterable[Claim]) -> dict[Key, int]:
    """Return the milliseconds of each key."""
    found: dict[Key, int] = {}
    for one in settled:
        key = Key(one.account, one.attempt_id, one.cause, one.evidence)
        found[key] = found.get(key, 0) + one.num_ms
    return found


def _with_rest_of(settled: list[Claim], one: Claim, start_ms: int, end_ms: int) -> Iterator[Claim]:
    """Yield the disjoint claims in order, and the parts of one more that none of them has."""
    at, until = max(one.start_ms, start_ms), min(one.end_ms, end_ms)
    for taken in settled:
        yield taken
        if at < until and taken.end_ms > at:
            if taken.start_ms > at:
                yield replace(one, start_ms=at, end_ms=min(taken.start_ms, until))
            at = max(at, taken.end_ms)
    if at < until:
        yield replace(one, start_ms=at, end_ms=until)


def _joined(settled: list[Claim]) -> Iterator[Claim]:
    last: Claim | None = None
    for one in settled:
        if last is not None and last == replace(one, start_ms=last.start_ms, end_ms=last.end_ms):
            last = replace(last, end_ms=one.end_ms)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _start(one: Claim) -> int:
    return one.start_ms


def _rank(one: Claim) -> tuple[int, int, str, str, tuple[str, ...], int]:
    return PRECEDENCE[one.account], one.start_ms, one.attempt_id, one.cause, one.evidence, one.end_ms
