"""Two counts of the same hour are compared by GPU: where they differ, and what of it gaps and lost events explain."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ledger.accounts import OF_ATTEMPTS, Account
from ledger.entries import Entry
from ledger.recount import Key
from ledger.recount_replay import EMPTY, UNKNOWN, USED

_EMPTY: Final = (Account.SPARE, Account.HOLD, Account.DRAINING, Account.PENDING, Account.FREE)
GROUPS: Final[Mapping[Account, str]] = {
    **{account: USED for account in OF_ATTEMPTS if account is not Account.CLEANING},
    **{account: EMPTY for account in _EMPTY},  # noqa: C420  # as the line above it
}
"""Accounts that count together in a comparison; each other one counts by itself."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Time of a GPU that two counts do not agree on. ``group``: an account, or ``USED`` or ``EMPTY``."""

    gpu_uuid: str
    attempt_id: str
    group: str
    stored_ms: int
    recounted_ms: int


@dataclass(slots=True)
class Compared:
    """One hour. ``differences``: of GPUs whose difference neither gaps nor lost events explain.

    ``outside_ms``: what is not explained; ``in_gaps_ms``: at most as much as a GPU's gaps are long, of ``in_gaps``
    GPUs; ``unknown_ms``: of which the events do not say enough, of ``unknown`` GPUs.
    """

    differences: list[Difference] = field(default_factory=list)
    outside_ms: int = 0
    in_gaps: int = 0
    in_gaps_ms: int = 0
    unknown: int = 0
    unknown_ms: int = 0


def group_of(account: Account, attempt_id: str) -> str:
    """Return the group of an account. A used GPU on a host without contact is used."""
    if attempt_id and account is Account.NO_CONTACT:
        return USED
    return GROUPS.get(account, account.value)


def by_group(entries: Iterable[Entry], *, only: str | None = None) -> dict[Key, int]:
    """Return the milliseconds of stored entries, corrections included. ``only``: of one GPU."""
    found: dict[Key, int] = {}
    for entry in entries:
        head = entry.heading
        group = group_of(head.account, head.attempt_id)
        for gpu, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True):
            if only in {None, gpu}:
                key = Key(gpu, head.attempt_id, group)
                found[key] = found.get(key, 0) + num_ms
    return {key: num_ms for key, num_ms in found.items() if num_ms}


def compare(stored: Mapping[Key, int], recounted: Mapping[Key, int], gap_ms: Mapping[str, int]) -> Compared:
    """Return where two counts differ. ``gap_ms``: how long reports about a GPU are lost; it explains no more."""
    made = Compared()
    unknown_ms: Counter[str] = Counter()
    for key, num_ms in recounted.items():
        if key.group == UNKNOWN:
            unknown_ms[key.gpu_uuid] += num_ms
    made.unknown, made.unknown_ms = len(unknown_ms), sum(unknown_ms.values())
    keys = (key for key in stored.keys() | recounted.keys() if key.group != UNKNOWN)
    of_gpu: dict[str, list[Difference]] = {}
    for key in sorted(key for key in keys if stored.get(key, 0) != recounted.get(key, 0)):
        of_gpu.setdefault(key.gpu_uuid, []).append(Difference(*key, stored.get(key, 0), recounted.get(key, 0)))
    for gpu, own in of_gpu.items():
        less_ms = sum(max(0, one.stored_ms - one.recounted_ms) for one in own)
        more_ms = sum(max(0, one.recounted_ms - one.stored_ms) for one in own)
        open_ms = max(less_ms - unknown_ms[gpu], more_ms)
        in_gap_ms = max(0, min(open_ms, gap_ms.get(gpu, 0)))
        made.in_gaps += in_gap_ms > 0
        made.in_gaps_ms += in_gap_ms
        if open_ms > in_gap_ms:
            made.outside_ms += open_ms - in_gap_ms
            made.differences += own
    return made
