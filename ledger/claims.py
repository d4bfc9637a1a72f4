"""Claims on a GPU's time, and how they become disjoint spans whose sum is exact."""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
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


_Rank = tuple[int, int, str, str, tuple[str, ...], int]


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
    to_come = [one for one in claims if one.start_ms < end_ms and one.end_ms > start_ms and one.num_ms]
    to_come = sorted([*to_come, Claim(Account.UNEXPLAINED, start_ms, end_ms)], key=_start, reverse=True)
    open_now: list[tuple[_Rank, int, Claim]] = []
    settled: list[Claim] = []
    at_ms = start_ms
    while at_ms < end_ms:
        while to_come and to_come[-1].start_ms <= at_ms:
            begun = to_come.pop()
            heappush(open_now, (_rank(begun), len(to_come), begun))
        while open_now[0][2].end_ms <= at_ms:
            heappop(open_now)
        first = open_now[0][2]
        until_ms = min(first.end_ms, to_come[-1].start_ms if to_come else end_ms, end_ms)
        _append(settled, first, at_ms, until_ms)
        at_ms = until_ms
    return settled


def sums(settled: Iterable[Claim]) -> dict[Key, int]:
    """Return the milliseconds of each key."""
    found: dict[Key, int] = {}
    for one in settled:
        key = _key(one)
        found[key] = found.get(key, 0) + one.num_ms
    return found


def _append(settled: list[Claim], one: Claim, start_ms: int, end_ms: int) -> None:
    """Append a claim's part, or lengthen the last one where they differ in their times alone."""
    last = settled[-1] if settled else None
    if last is not None and _key(last) == _key(one):
        settled[-1] = Claim(last.account, last.start_ms, end_ms, last.attempt_id, last.cause, last.evidence)
    else:
        settled.append(Claim(one.account, start_ms, end_ms, one.attempt_id, one.cause, one.evidence))


def _key(one: Claim) -> Key:
    return Key(one.account, one.attempt_id, one.cause, one.evidence)


def _start(one: Claim) -> int:
    return one.start_ms


def _rank(one: Claim) -> _Rank:
    return PRECEDENCE[one.account], one.start_ms, one.attempt_id, one.cause, one.evidence, one.end_ms
