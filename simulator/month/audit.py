"""The ledger's books of a month, hour by hour, compared with the truth, with a recount, and with goodput.

Each hour is computed as in production: once soon after its end, from what is known by then, and once at its close,
from all reports that ever come. The difference is added as corrections.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ledger.accounts import Account
from ledger.books import Book, book_of
from ledger.entries import Entry, corrections
from ledger.figures.hours import CLOSES_AFTER
from ledger.recount import Key, Recounter
from ledger.recount_comparison import by_group, compare
from muster.domain.states import Cause
from simulator.month.events import events_of, inventory_of
from simulator.month.facts import Rows, number_of
from simulator.month.history import HOUR_MS, History, by_job
from simulator.month.reports import Reports, silences_of
from simulator.month.truth import Cell, Truth

_SETTLES_MS: Final = 300_000
_FINAL_MS: Final = round(CLOSES_AFTER.total_seconds() * 1000)
_MOST_FAULTS: Final = 20


@dataclass(slots=True)
class Audit:
    """What was compared. A cell is one GPU in one hour.

    ``num_marked``: cells within gap markers; ``num_different``: others in which the time of any attempt and account is
    not the true one; ``num_counted_twice``: cells whose entries are more or less than an hour. ``by_account``: the
    ledger's milliseconds outside of markers. ``goodput_ms``: of whole jobs without lost reports, by the ledger and by
    the work that the trace requested. ``faults``: the first cells that differ, as text.
    """

    num_cells: int = 0
    num_marked: int = 0
    num_different: int = 0
    num_counted_twice: int = 0
    marked_different_ms: int = 0
    capacity_ms: int = 0
    unexplained_ms: int = 0
    recount_different_ms: int = 0
    num_corrected_hours: int = 0
    num_events: int = 0
    goodput_ms: tuple[int, int] = (0, 0)
    num_whole_jobs: int = 0
    by_account: Counter[Account] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def audit_month(history: History, seed: int) -> Audit:
    return _Auditor(history, seed).audit()


class _Auditor:
    def __init__(self, history: History, seed: int) -> None:
        self._history, silences = history, silences_of(history, seed)
        self._reports = Reports(history, silences)
        self._rows, self._truth = Rows(self._reports), Truth(self._reports)
        self._recounter = Recounter(inventory_of(history))
        self._events, self._days = events_of(history, silences), list[dict[Key, int]]()
        self._found = Audit(num_events=len(self._events))
        self._productive: Counter[str] = Counter()

    def audit(self) -> Audit:
        day: list[Entry] = []
        for hour in range(self._history.shape.num_hours):
            stored = self._stored(hour)
            self._compare(hour, stored)
            day += stored
            if (hour + 1) % 24 == 0:
                self._days.append(by_group(day))
                day = []
        self._recount()
        self._compare_goodput()
        return self._found

    def _stored(self, hour: int) -> list[Entry]:
        """Return the entries of an hour: of its first book, and of the corrections by its last look."""
        end_ms = (hour + 1) * HOUR_MS
        first = self._book(hour, end_ms + _SETTLES_MS)
        last = self._book(hour, end_ms + _FINAL_MS)
        more = corrections(first.entries, last.entries)
        self._found.num_corrected_hours += bool(more)
        self._found.capacity_ms += last.capacity_ms
        self._found.unexplained_ms += first.unexplained_ms + last.unexplained_ms
        return [*first.entries, *more]

    def _book(self, hour: int, known_ms: int) -> Book:
        return book_of(self._rows.facts(hour * HOUR_MS, (hour + 1) * HOUR_MS, known_ms))

    def _compare(self, hour: int, stored: list[Entry]) -> None:
        found, marked = self._found, self._reports.marked
        cells = self._cells(stored)
        true = self._truth.cells(hour * HOUR_MS, (hour + 1) * HOUR_MS)
        different: Counter[int] = Counter()
        whole: Counter[int] = Counter()
        for cell in cells.keys() | true.keys():
            gpu, attempt_id, account = cell
            own_ms, true_ms = cells[cell], true.get(cell, 0)
            whole[gpu] += own_ms
            different[gpu] += abs(own_ms - true_ms)
            if account is Account.PRODUCTIVE:
                self._productive[attempt_id] += own_ms
            if (gpu, hour) not in marked:
                found.by_account[account] += own_ms
                if own_ms != true_ms:
                    self._fault(f"hour {hour}, {cell}: {own_ms} ms, truly {true_ms} ms")
        for gpu, num_ms in different.items():
            found.num_cells += 1
            found.num_counted_twice += whole[gpu] != HOUR_MS
            if (gpu, hour) in marked:
                found.num_marked += 1
                found.marked_different_ms += num_ms
            else:
                found.num_different += num_ms > 0

    @staticmethod
    def _cells(stored: list[Entry]) -> Counter[Cell]:
        cells: Counter[Cell] = Counter()
        for entry in stored:
            head = entry.heading
            for uuid, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True):
                cells[number_of(uuid), head.attempt_id, head.account] += num_ms
        return cells

    def _fault(self, fault: str) -> None:
        if len(self._found.faults) < _MOST_FAULTS:
            self._found.faults.append(fault)

    def _recount(self) -> None:
        """Compare each whole day of the ledger with the recount from events; no gap explains a difference."""
        for event in self._events:
            self._recounter.take(event)
        edges = [day * 24 * HOUR_MS for day in range(len(self._days) + 1)]
        for stored, recounted in zip(self._days, self._recounter.count(edges), strict=True):
            found = compare(stored, recounted, {})
            self._found.recount_different_ms += found.outside_ms + found.unknown_ms
            for one in found.differences:
                self._fault(str(one))

    def _compare_goodput(self) -> None:
        """Compare the productive time of each whole job within the month with the work that it asked for."""
        month_ms = self._history.shape.num_hours * HOUR_MS
        counted_ms = true_ms = 0
        for job, own in by_job(self._history.attempts).items():
            last = own[-1]
            is_whole = last.cause is Cause.SUCCEEDED and last.end_ms is not None and last.end_ms <= month_ms
            if is_whole and not any(self._reports.lost(one.attempt_id) for one in own):
                counted_ms += sum(self._productive[one.attempt_id] for one in own)
                true_ms += round(self._history.jobs[job].duration_s * 1000) * len(last.gpus)
                self._found.num_whole_jobs += 1
        self._found.goodput_ms = counted_ms, true_ms
