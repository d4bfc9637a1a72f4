"""A recount of hours of the ledger from events, and where it differs from what is stored.

until the oldest event    records (recount_events) ─┐
since then                events ───────────────────┴─ Recounter ─ GPU time of each hour ─┐
                          ledger_entries, with corrections ───────────────────────────────┴─ compare
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import select

from control.core.paging import ALWAYS, NEVER, Span
from control.core.unit_of_work import UnitOfWork
from control.ledger import recount_events
from control.ledger.read import LONGEST, hours_in
from control.ledger.reading import Window
from control.ledger.storing import has_entries, stored_entries
from ledger.entries import Entry
from ledger.periods import joined
from ledger.recount import Enrolled, Event, Key, Recounter
from ledger.recount_comparison import Compared, Difference, by_group, compare, group_of
from ledger.recount_replay import EMPTY, UNKNOWN, USED
from muster.db.models import LedgerHour
from muster.db.queries.ledger_facts import HOUR
from muster.domain.errors import ValidationFailedError
from muster.domain.principals import Permission
from muster.domain.times import to_ms

MOST_GPU_HOURS: Final = 250_000
"""GPUs times hours of one recount: a day of 10,000 GPUs. It runs in the API's process.

Measured: 16 to 30 µs of CPU for each, so up to 8 s; 5 kB of memory a GPU and its events, 0.5 GB for 100,000 GPUs.
"""


class NotRecounted(StrEnum):
    """Why events say nothing, or not enough, of time of the ledger.

    NOT_COMPUTED: the ledger has no such hour yet, or had no GPU in it. DROPPED: retention has dropped the hour's
    entries. LOST_END: no event says when a host's part was clean. WITHIN_USE: which account a used GPU's time was, as
    programs report it. WITHIN_EMPTY: for what a free GPU was free, as no event names it by GPU.
    """

    NOT_COMPUTED = "not_computed"
    DROPPED = "dropped"
    LOST_END = "lost_end"
    WITHIN_USE = "within_use"
    WITHIN_EMPTY = "within_empty"


@dataclass(frozen=True, slots=True)
class GroupSums:
    """Time of a group by both counts. ``accounts``: the stored time of each account in it."""

    group: str
    accounts: Mapping[str, int]
    stored_ms: int
    recounted_ms: int


@dataclass(frozen=True, slots=True)
class GpuDifference:
    """A difference of one GPU in one hour, and the events that say what it was."""

    hour: datetime
    difference: Difference
    events: Sequence[Event]


@dataclass(slots=True)
class Recount:
    """``events_since``: what stood before is taken from records, ``num_records`` of them.

    ``num_hours``: that were compared, ``num_open_hours`` of them provisional. ``num_differences``, ``difference_ms``:
    outside of gaps; ``differences``: the first of them. ``in_gaps``: GPU-hours. ``not_recounted``: hours or GPU-hours
    (None: it is no number of hours) and milliseconds (None: not known), by cause.
    """

    since: datetime
    until: datetime
    events_since: datetime
    num_events: int = 0
    num_records: int = 0
    num_gpus: int = 0
    num_hours: int = 0
    num_open_hours: int = 0
    groups: list[GroupSums] = field(default_factory=list)
    num_differences: int = 0
    difference_ms: int = 0
    differences: list[GpuDifference] = field(default_factory=list)
    in_gaps: int = 0
    in_gaps_ms: int = 0
    not_recounted: dict[NotRecounted, tuple[int | None, int | None]] = field(default_factory=dict)


def recount(unit: UnitOfWork, span: Span = ALWAYS, *, gpu: str | None = None, limit: int = 20) -> Recount:
    """Recount the hours that begin in ``span`` (by default the last 24), of all GPUs or one; in one snapshot.

    Raises:
        ValidationFailedError: more time than a recount takes, or events of it are dropped, or there is no such GPU.
    """
    unit.principal.require(Permission.METRICS_READ)
    since, until = hours_in(span, unit.now)
    if until - since > LONGEST:
        raise ValidationFailedError.at("since", "too_long", f"a recount is of {LONGEST.days} days at most")
    kept_since, first = _kept_since(unit)
    if since < first and span.since is not None:
        words = f"events are kept since {kept_since.isoformat()}: {first.isoformat()} or later is accepted"
        raise ValidationFailedError.at("since", "not_kept", words)
    since = min(until, max(since, first))
    window = Window(unit.session, to_ms(since), to_ms(until))
    inventory = recount_events.inventory_of(window, gpu)
    _require_bounds(inventory, since, until, gpu)
    records, events = recount_events.records_and_events(window, kept_since, inventory, gpu)
    recounter = Recounter(inventory)
    for event in (*records, *events):
        recounter.take(event)
    found = Recount(since, until, kept_since, len(events), len(records), len(inventory))
    _Comparison(unit, found, recounter, inventory, gpu, limit).run()
    return found


def _kept_since(unit: UnitOfWork) -> tuple[datetime, datetime]:
    """Return since when events are kept, and the first hour of which all are: any, if there was no host before them."""
    kept_since = recount_events.events_kept_since(unit.session) or unit.now
    if not recount_events.is_anything_older(unit.session, kept_since):
        return kept_since, NEVER
    return kept_since, kept_since.replace(minute=0, second=0, microsecond=0) + HOUR


def _require_bounds(inventory: Sequence[Enrolled], since: datetime, until: datetime, gpu: str | None) -> None:
    if gpu is not None and not inventory:
        raise ValidationFailedError.at("gpu", "unknown_gpu", "there was no such GPU in this time")
    num = len(inventory) * ((until - since) // HOUR)
    if num > MOST_GPU_HOURS:
        words = f"{num:,} GPU hours; {MOST_GPU_HOURS:,} at most are accepted: name fewer hours, or one GPU"
        raise ValidationFailedError.at("since", "too_many", words)


class _Comparison:
    """Compares hour by hour, so that only one hour's entries are in memory."""

    def __init__(
        self,
        unit: UnitOfWork,
        found: Recount,
        recounter: Recounter,
        inventory: Sequence[Enrolled],
        gpu: str | None,
        limit: int,
    ) -> None:
        self._unit, self._found, self._recounter = unit, found, recounter
        self._gpu, self._limit = gpu, limit
        self._node_of = {one.gpu_uuid: one.node_id for one in inventory}
        self._accounts: Counter[tuple[str, str]] = Counter()
        self._recounted: Counter[str] = Counter()
        self._unknown = [0, 0]
        self._dropped = [0, 0]

    def run(self) -> None:
        found, hours = self._found, self._hours()
        num_hours = (found.until - found.since) // HOUR
        edges = [to_ms(found.since + number * HOUR) for number in range(num_hours + 1)]
        for (start_ms, _), recounted in zip(pairwise(edges), self._recounter.count(edges, only=self._gpu), strict=True):
            hour = hours.get(start_ms)
            if hour is not None:
                self._compare(hour, recounted)
        found.groups = self._groups()
        found.not_recounted = dict(self._not_recounted(num_hours - len(hours)))

    def _hours(self) -> dict[int, LedgerHour]:
        span = Span(self._found.since, self._found.until)
        query = select(LedgerHour).where(LedgerHour.num_gpus > 0, *span.conditions(LedgerHour.hour))
        return {to_ms(one.hour): one for one in self._unit.session.scalars(query)}

    def _compare(self, hour: LedgerHour, recounted: Mapping[Key, int]) -> None:
        node_id = None if self._gpu is None else self._node_of[self._gpu]
        entries = list(stored_entries(self._unit.session, hour.hour, node_id=node_id))
        if not entries and not has_entries(self._unit.session, hour.hour):
            self._dropped[0] += 1
            self._dropped[1] += hour.capacity_ms if self._gpu is None else sum(recounted.values())
            return
        found = self._found
        found.num_hours += 1
        found.num_open_hours += hour.closed_at is None
        self._add_accounts(entries)
        for key, num_ms in recounted.items():
            self._recounted[key.group] += num_ms
        gap_ms = {uuid: _gap_ms(hour.gaps, node_id) for uuid, node_id in self._node_of.items()} if hour.gaps else {}
        self._add(hour.hour, compare(by_group(entries, only=self._gpu), recounted, gap_ms))

    def _add(self, hour: datetime, compared: Compared) -> None:
        found = self._found
        found.num_differences += len(compared.differences)
        found.difference_ms += compared.outside_ms
        found.in_gaps += compared.in_gaps
        found.in_gaps_ms += compared.in_gaps_ms
        self._unknown[0] += compared.unknown
        self._unknown[1] += compared.unknown_ms
        for one in compared.differences[: self._limit - len(found.differences)]:
            events = self._recounter.deciding(one.gpu_uuid, to_ms(hour), to_ms(hour + HOUR))
            found.differences.append(GpuDifference(hour, one, events))

    def _add_accounts(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            head = entry.heading
            own_ms = zip(entry.gpus, entry.gpu_ms, strict=True)
            num_ms = sum(ms for gpu, ms in own_ms if self._gpu in {None, gpu})
            self._accounts[group_of(head.account, head.attempt_id), head.account.value] += num_ms

    def _groups(self) -> list[GroupSums]:
        names = {group for group, _ in self._accounts} | self._recounted.keys()
        found = []
        for name in names - {UNKNOWN}:
            own = {account: num_ms for (group, account), num_ms in self._accounts.items() if group == name and num_ms}
            found.append(GroupSums(name, own, sum(own.values()), self._recounted[name]))
        return sorted(found, key=lambda one: (-max(one.stored_ms, one.recounted_ms), one.group))

    def _not_recounted(self, num_absent: int) -> Iterator[tuple[NotRecounted, tuple[int | None, int | None]]]:
        if num_absent:
            yield NotRecounted.NOT_COMPUTED, (num_absent, None)
        if self._dropped[0]:
            yield NotRecounted.DROPPED, (self._dropped[0], self._dropped[1])
        if self._unknown[0]:
            yield NotRecounted.LOST_END, (self._unknown[0], self._unknown[1])
        for group, cause in ((USED, NotRecounted.WITHIN_USE), (EMPTY, NotRecounted.WITHIN_EMPTY)):
            if num_ms := sum(ms for (name, _), ms in self._accounts.items() if name == group):
                yield cause, (None, num_ms)


def _gap_ms(gaps: Mapping[str, Any], node_id: str) -> int:
    """Return for how long reports of a host are lost in an hour, by its agent or by a restore."""
    pairs = (*gaps.get("nodes", {}).get(node_id, ()), *gaps.get("restores", ()))
    return sum(until_ms - from_ms for from_ms, until_ms in joined((one[0], one[1]) for one in pairs))
