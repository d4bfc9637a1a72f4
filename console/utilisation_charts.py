"""GPU time by account on the page of utilisation: what each account means, its sums next to those before, the chart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from console.ranges import Stretch
from control.ledger.read import LedgerGroup, LedgerSum
from ledger.accounts import UNAVAILABLE, Account
from muster.domain.amounts import MS_PER_HOUR
from muster.domain.times import to_ms

REFRESH_S: Final = 60


@dataclass(frozen=True, slots=True)
class AccountTime:
    """Time of one account or group. ``before``: of the period before; None: that period is not shown.

    ``share``: of the time of all; None: there was none.
    """

    name: str
    num_ms: int
    share: float | None
    before_ms: int | None
    before_share: float | None


class Kind(NamedTuple):
    """Accounts that the chart draws as one. ``tone``: the colour."""

    name: str
    tone: str
    accounts: tuple[Account, ...]


_OVERHEAD_ACCOUNTS: Final = (Account.STARTING, Account.SAVING, Account.RESTORING, Account.CLEANING)
_WAITING: Final = (Account.PENDING, Account.HOLD, Account.DRAINING, Account.SPARE)
TIME_KINDS: Final = (
    Kind("productive", "good", (Account.PRODUCTIVE,)),
    Kind("overhead of jobs", "calm", _OVERHEAD_ACCOUNTS),
    Kind("lost or slowed", "bad", (Account.LOST, Account.RECLAIM_LOST, Account.REPLAYED, Account.SLOWED)),
    Kind("idle in jobs", "warn", (Account.IDLE,)),
    Kind("kept for jobs", "accent", _WAITING),
    Kind("out of service", "ink-2", (*sorted(UNAVAILABLE), Account.RETIRED, Account.SUSPECT)),
    Kind("free", "ink-3", (Account.FREE,)),
    Kind("unexplained", "bad", (Account.UNEXPLAINED,)),
)
_TIME_KIND: Final = {account: kind.name for kind in TIME_KINDS for account in kind.accounts}


def by_name(sums: Iterable[LedgerSum], field: str) -> dict[str, int]:
    """Return the milliseconds of each value of ``field``."""
    found: dict[str, int] = {}
    for each in sums:
        name = str(each.values[field] or "")
        found[name] = found.get(name, 0) + each.num_ms
    return found


def times_next_to(now: Mapping[str, int], before: Mapping[str, int] | None) -> list[AccountTime]:
    """Return the time of each name next to the time before, the most first."""
    every, earlier = sum(now.values()), sum((before or {}).values())
    found = [
        AccountTime(
            name,
            now.get(name, 0),
            now.get(name, 0) / every if every else None,
            None if before is None else before.get(name, 0),
            before.get(name, 0) / earlier if before and earlier else None,
        )
        for name in {**now, **(before or {})}
    ]
    return sorted(found, key=lambda one: (-one.num_ms, one.name))


def step_of(shown: Stretch) -> LedgerGroup:
    return LedgerGroup.HOUR if shown.is_hourly else LedgerGroup.DAY


def chart_of(
    sums: Iterable[LedgerSum],
    shown: Stretch,
    marks: Sequence[dict[str, Any]] = (),
    earlier: Iterable[LedgerSum] | None = None,
) -> dict[str, Any]:
    """Return what static/charts.js draws: the kinds of time on each other. ``earlier``: productive time before."""
    found = _over_time(sums)
    moments = sorted({at for own in found.values() for at in own})
    lines: list[dict[str, Any]] = [
        {"name": kind.name, "tone": kind.tone, "points": _points(found[kind.name], moments)}
        for kind in TIME_KINDS
        if kind.name in found
    ]
    if earlier is not None:
        before, later_ms = _over_time(earlier).get(TIME_KINDS[0].name, {}), shown.length // timedelta(milliseconds=1)
        points = [[at + later_ms, num_ms / MS_PER_HOUR] for at, num_ms in sorted(before.items())]
        lines.append({"name": f"{TIME_KINDS[0].name}, before", "tone": "ink", "points": points, "is_over": True})
    span = [min([to_ms(shown.since), *moments]), to_ms(shown.until)]
    unit = "GPU-hours" if shown.is_hourly else "GPU-hours a day"
    chart = {"title": "GPU time by kind of account", "unit": unit, "x": "time", "range": span, "is_stacked": True}
    return {"charts": [{**chart, "marks": list(marks), "lines": lines}], "refresh_s": REFRESH_S}


def _over_time(sums: Iterable[LedgerSum]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for each in sums:
        begins_at: datetime = each.values["begins_at"]
        own, at = found.setdefault(_TIME_KIND[Account(each.values["account"])], {}), to_ms(begins_at)
        own[at] = own.get(at, 0) + each.num_ms
    return found


def _points(own: Mapping[int, int], moments: Iterable[int]) -> list[list[float]]:
    return [[at, own.get(at, 0) / MS_PER_HOUR] for at in moments]


MEANINGS: Final = {
    Account.RETIRED: "GPUs that left the fleet",
    Account.LOST: "no progress by a hang, or steps that a divergence or a corruption made worthless",
    Account.RECLAIM_LOST: "steps trained again after a reclaim",
    Account.REPLAYED: "steps trained again after any other end or fault",
    Account.STARTING: "from the placement to the first step",
    Account.SAVING: "checkpoints being saved",
    Account.RESTORING: "checkpoints being restored",
    Account.SLOWED: "the part of steps beyond the usual, by a slow peer",
    Account.PRODUCTIVE: "first executions of steps",
    Account.IDLE: "assigned, and none of the others",
    Account.CLEANING: "until the GPU is proved clean",
    Account.REPAIR: "in repair",
    Account.QUARANTINED: "quarantined, by its cause",
    Account.CORDONED: "cordoned or closed",
    Account.BURN_IN: "under burn-in",
    Account.NO_CONTACT: "the control plane did not know",
    Account.UNPROVEN: "not proved good yet",
    Account.SUSPECT: "suspect and empty",
    Account.SPARE: "kept as a spare",
    Account.HOLD: "kept free for a job",
    Account.DRAINING: "free on a host that is emptied",
    Account.PENDING: "free while a job waits, by its binding reason",
    Account.FREE: "no job waited",
    Account.UNEXPLAINED: "a fault of this ledger: report it",
}
