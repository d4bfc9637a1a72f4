"""What each GPU did in each millisecond, by the simulator's own timeline: the truth that the ledger must agree with.

It is made of spans that follow one another, without claims and precedence, and it knows no report. Its accounts are
the ledger's by their definitions:

* a step that an earlier attempt of the job had done as a whole is done again, with its save;
* time of an attempt after its last whole step is idle, and all before its first whole step is its start;
* a free GPU is pending while the simulator's queue has any job.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ledger.accounts import Account
from muster.domain.states import Cause
from simulator.month.history import GPUS_A_NODE, HOUR_MS, Attempt, History, Outage, by_job
from simulator.month.reports import Reports, Step

Cell = tuple[int, str, Account]
"""A GPU, the attempt that has it (empty: none), and an account."""
REPAIR_AFTER: Final = 2 * HOUR_MS
BURN_IN: Final = HOUR_MS // 2
"""A failed node is quarantined for two hours, then in repair, and in its last half hour its GPUs burn in."""


class Span(NamedTuple):
    start_ms: int
    end_ms: int
    account: Account


def phases_of(outage: Outage) -> tuple[Span, ...]:
    """Return how the GPUs of a failed node come back into service."""
    repair_ms, burn_in_ms = outage.start_ms + REPAIR_AFTER, outage.end_ms - BURN_IN
    return (
        Span(outage.start_ms, repair_ms, Account.QUARANTINED),
        Span(repair_ms, burn_in_ms, Account.REPAIR),
        Span(burn_in_ms, outage.end_ms, Account.BURN_IN),
    )


class Truth:
    def __init__(self, reports: Reports) -> None:
        self._history = history = reports.history
        self._spans: dict[str, list[Span]] = {}
        for own in by_job(history.attempts).values():
            self._spans |= _spans_of_job(own, reports.steps, history.until_ms)
        self._of_gpu: dict[int, list[tuple[int, int, str | None]]] = {}
        for one in history.attempts:
            for gpu in one.gpus:
                end_ms = history.until_ms if one.end_ms is None else one.end_ms
                self._of_gpu.setdefault(gpu, []).append((one.start_ms, end_ms, one.attempt_id))
        for outage in history.outages:
            for gpu in range(outage.node * GPUS_A_NODE, (outage.node + 1) * GPUS_A_NODE):
                self._of_gpu.setdefault(gpu, []).append((outage.start_ms, outage.end_ms, None))
        for uses in self._of_gpu.values():
            uses.sort(key=lambda one: (one[0], one[1]))
        self._phases: dict[int, list[Span]] = {}
        for outage in history.outages:
            self._phases.setdefault(outage.node, []).extend(phases_of(outage))
        self._queue = list(_queue(history))
        self._begins = [span.start_ms for span in self._queue]

    def cells(self, start_ms: int, end_ms: int) -> dict[Cell, int]:
        """Return the milliseconds of each GPU by attempt and account, from ``start_ms`` to before ``end_ms``."""
        found: Counter[Cell] = Counter()
        of_attempt: dict[str, list[tuple[Account, int]]] = {}
        for gpu in range(self._history.shape.num_gpus):
            at_ms = start_ms
            for from_ms, until_ms, attempt_id in self._of_gpu.get(gpu, ()):
                if until_ms <= start_ms or from_ms >= end_ms:
                    continue
                for span in self._empty(at_ms, max(from_ms, start_ms)):
                    found[gpu, "", span.account] += span.end_ms - span.start_ms
                at_ms = min(until_ms, end_ms)
                if attempt_id is None:
                    phases = _cut(self._phases[gpu // GPUS_A_NODE], max(from_ms, start_ms), at_ms)
                    for account, num_ms in phases:
                        found[gpu, "", account] += num_ms
                    continue
                own = of_attempt.get(attempt_id)
                if own is None:
                    own = of_attempt[attempt_id] = list(_cut(self._spans[attempt_id], start_ms, end_ms))
                for account, num_ms in own:
                    found[gpu, attempt_id, account] += num_ms
            for span in self._empty(at_ms, end_ms):
                found[gpu, "", span.account] += span.end_ms - span.start_ms
        return {key: num_ms for key, num_ms in found.items() if num_ms}

    def productive_ms(self, attempts: Iterable[Attempt]) -> int:
        """Return the productive milliseconds of one GPU of the attempts."""
        return sum(
            span.end_ms - span.start_ms
            for one in attempts
            for span in self._spans[one.attempt_id]
            if span.account is Account.PRODUCTIVE
        )

    def _empty(self, start_ms: int, end_ms: int) -> Iterator[Span]:
        if start_ms < end_ms:
            for span in self._queue[bisect_right(self._begins, start_ms) - 1 :]:
                if span.start_ms >= end_ms:
                    break
                yield Span(max(span.start_ms, start_ms), min(span.end_ms, end_ms), span.account)


def _queue(history: History) -> Iterator[Span]:
    """Yield whether any job waits, from the beginning to the end."""
    moments = [(0, 0), *history.waiting, (history.until_ms, 0)]
    for (at_ms, num_waiting), (until_ms, _) in pairwise(moments):
        if until_ms > at_ms:
            yield Span(at_ms, until_ms, Account.PENDING if num_waiting else Account.FREE)


def _spans_of_job(
    attempts: Sequence[Attempt], steps: Mapping[str, Sequence[Step]], until_ms: int
) -> dict[str, list[Span]]:
    done_by: dict[int, Cause | None] = {}
    found: dict[str, list[Span]] = {}
    for one in attempts:
        own = steps[one.attempt_id]
        over_ms = until_ms if one.end_ms is None else one.end_ms
        first_ms = own[0].start_ms if own else over_ms
        spans = [Span(one.start_ms, first_ms, Account.STARTING)]
        for step in own:
            if step.number in done_by:
                is_reclaim = done_by[step.number] is Cause.RECLAIMED
                account = Account.RECLAIM_LOST if is_reclaim else Account.REPLAYED
                spans.append(Span(step.start_ms, step.end_ms, account))
            else:
                saves_ms = step.end_ms - step.save_ms
                spans += [
                    Span(step.start_ms, saves_ms, Account.PRODUCTIVE),
                    Span(saves_ms, step.end_ms, Account.SAVING),
                ]
        spans.append(Span(own[-1].end_ms if own else over_ms, over_ms, Account.IDLE))
        done_by |= dict.fromkeys((step.number for step in own), one.cause)
        found[one.attempt_id] = [span for span in spans if span.end_ms > span.start_ms]
    return found


def _cut(spans: Iterable[Span], start_ms: int, end_ms: int) -> Iterator[tuple[Account, int]]:
    for span in spans:
        num_ms = min(span.end_ms, end_ms) - max(span.start_ms, start_ms)
        if num_ms > 0:
            yield span.account, num_ms
