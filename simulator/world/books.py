"""The ledger over a world: windows are closed as time passes, corrected at the end, and compared with the truth (I27).

A keeper closes the time since the last window at each inspection. It may die before its commit, so that nothing is
stored, or after it, so that it closes the same window again. Steps are reported late and by clocks that are set wrong.
"""

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from ledger.books import Book, book_of
from ledger.entries import Entry, UnbalancedError, corrections, total
from ledger.facts import Attempt, EarlierAttempt, Facts, Gpu, Node, Period, StandingMove, Steps, Use
from muster.domain.ids import AttemptId, GpuUuid, NodeId
from muster.domain.lifecycle.model import AttemptLifecycle
from muster.domain.states import AttemptState, Cause, HostPartState, Standing
from simulator.world.clocks import WALL_START_MS
from simulator.world.store import Store
from simulator.world.truth import require
from simulator.world.wiring import Wiring

DIES: Final = 0.2
"""How likely the keeper dies before a commit, and how likely after it."""


@dataclass(frozen=True, slots=True)
class _Span:
    start_ms: int
    end_ms: int


class Books:
    """``stored``: the entries of each closed window with its corrections. Times are milliseconds of the world."""

    def __init__(self, store: Store, rng: Random, lost_ms: int, wiring: Wiring) -> None:
        self._store, self._random, self._lost_ms, self._wiring = store, rng.random, lost_ms, wiring
        self.stored: dict[_Span, list[Entry]] = {}
        self.closed_ms = 0
        self.counts: Counter[str] = Counter()

    def keep(self) -> None:
        """Close the time since the last window, as far as the keeper lives, and compare what is closed."""
        now_ms = self._store.clock()
        if now_ms > self.closed_ms and self._lives("before_commit"):
            span = _Span(self.closed_ms, now_ms)
            self._close(span)
            self.closed_ms = now_ms
            if not self._lives("after_commit"):
                require(not self._close(span), "I23", f"{span} is closed again, and counts otherwise")
        self._compare()

    def finish(self) -> None:
        """Correct all windows by the late reports, and compare them with one that is closed at once."""
        for span in self.stored:
            self.counts["corrections"] += bool(self._close(span))
        self._compare()
        whole = self._book(_Span(0, self.closed_ms))
        told = total(entry for entries in self.stored.values() for entry in entries)
        require(told == total(whole.entries), "I23", "closed windows with their corrections are not the whole")

    def _lives(self, point: str) -> bool:
        is_dead = self._random() < DIES
        self.counts[point] += is_dead
        return not is_dead

    def _close(self, span: _Span) -> list[Entry]:
        """Store the entries of a window; of a stored one what changes them. Return what was stored."""
        book = self._book(span)
        before = self.stored.get(span) if self._wiring.corrects_closed_windows else None
        told = list(book.entries) if before is None else corrections(before, book.entries)
        self.stored.setdefault(span, []).extend(told)
        return told

    def _book(self, span: _Span) -> Book:
        try:
            book = book_of(self._facts(span))
        except UnbalancedError as error:
            require(False, "I27", str(error))
            raise
        num_gpus = len(self._store.cases)
        whole_ms = num_gpus * (span.end_ms - span.start_ms)
        require(book.capacity_ms == whole_ms, "I27", f"{book.capacity_ms} ms are counted of {whole_ms} ms in {span}")
        require(not book.unexplained_ms, "I27", f"{book.unexplained_ms} ms of {span} are unexplained")
        return book

    def _compare(self) -> None:
        """Require that each attempt counts each of its GPUs for exactly as long as it had it, and for its program."""
        told: Counter[tuple[AttemptId, GpuUuid]] = Counter()
        for entry in (entry for entries in self.stored.values() for entry in entries if entry.heading.attempt_id):
            for gpu, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True):
                told[AttemptId(entry.heading.attempt_id), GpuUuid(gpu)] += num_ms
        held = {key: one.num_ms(self.closed_ms) for key, one in self._store.times.assigned.items()}
        for key in told.keys() | held.keys():
            own_ms, had_ms = told.get(key, 0), held.get(key, 0)
            require(own_ms == had_ms, "I23", f"{key} counts for {own_ms} ms and had it for {had_ms} ms")
        for place, present in self._store.truth.spans.items():
            ran_ms = present.num_ms(self.closed_ms)
            for gpu in self._store.allocated[place[0]][place[1]]:
                own_ms = told.get((place[0], gpu), 0)
                require(ran_ms <= own_ms, "I23", f"{place} was on {gpu} for {ran_ms} ms and counts for {own_ms} ms")

    def _facts(self, span: _Span) -> Facts:
        store = self._store
        alive = {key: life for key, life in store.attempts.items() if self._reaches(life, span)}
        uses: dict[str, list[Use]] = {}
        for attempt_id, life in alive.items():
            for part in life.hosts:
                at = store.times.parts.get((attempt_id, part.node_id), {})
                exited_ms, clean_ms = (_wall(at.get(one)) for one in (HostPartState.EXITED, HostPartState.CLEAN))
                for gpu in store.allocated[attempt_id][part.node_id]:
                    uses.setdefault(gpu, []).append(Use(attempt_id, _at(life.placed_ms), exited_ms, clean_ms))
        return Facts(
            _at(span.start_ms),
            _at(span.end_ms),
            tuple(
                Gpu(gpu, node_id, "", "", WALL_START_MS, moves=self._moves(gpu), uses=tuple(uses.get(gpu, ())))
                for node_id, gpus in store.gpus.items()
                for gpu in gpus
            ),
            {node_id: self._node(node_id) for node_id in store.gpus},
            {attempt_id: self._attempt(life) for attempt_id, life in alive.items()},
        )

    def _reaches(self, life: AttemptLifecycle, span: _Span) -> bool:
        is_open = life.attempt_id in self._store.open_attempts
        ends = self._store.times.parts
        last_ms = max(
            (max(ends.get((life.attempt_id, part.node_id), {0: 0}).values()) for part in life.hosts), default=0
        )
        last_ms = max(last_ms, self._store.ended_ms.get(life.attempt_id, 0))
        return life.placed_ms < span.end_ms and (is_open or last_ms > span.start_ms)

    def _moves(self, gpu: GpuUuid) -> tuple[StandingMove, ...]:
        told = self._store.times.moves.get(gpu, ())
        return (StandingMove(WALL_START_MS, Standing.HEALTHY, number=-1), *told)

    def _node(self, node_id: NodeId) -> Node:
        times = self._store.times
        told = [*times.silences.get(node_id, ())]
        since_ms = times.contact_ms.get(node_id, 0) + self._lost_ms
        if since_ms < self._store.clock():
            told.append(Period(since_ms, None, "lost"))
        told = [replace(one, start_ms=_at(one.start_ms), end_ms=_wall(one.end_ms)) for one in told]
        return Node(node_id, silences=tuple(told))

    def _attempt(self, life: AttemptLifecycle) -> Attempt:
        times, number = self._store.times, self._store.attempts_of[life.job_id].index(life.attempt_id)
        states = times.states.get(life.attempt_id, {})
        before = self._store.attempts_of[life.job_id][:number]
        return Attempt(
            life.attempt_id,
            _at(life.placed_ms),
            job_id=life.job_id,
            tenant_id=self._store.rows[life.job_id].tenant,
            claimed_ms=_wall(states.get(AttemptState.CLAIMING)),
            running_ms=_wall(states.get(AttemptState.RUNNING)),
            stopping_ms=_wall(states.get(AttemptState.STOPPING)),
            ended_ms=_wall(self._store.ended_ms.get(life.attempt_id)),
            known_until_ms=_at(self._store.clock()),
            end_cause=None if life.ending is None else life.ending.cause,
            steps=self._steps(life.attempt_id),
            earlier=tuple(self._earlier(one, place) for place, one in enumerate(before) if self._steps(one)),
        )

    def _earlier(self, attempt_id: AttemptId, number: int) -> EarlierAttempt:
        ending = self._store.attempts[attempt_id].ending
        cause = Cause.NODE_LOST if ending is None else ending.cause
        return EarlierAttempt(number, len(self._steps(attempt_id)), cause)

    def _steps(self, attempt_id: AttemptId) -> tuple[Steps, ...]:
        now_ms = self._store.clock()
        return tuple(one for known_ms, one in self._store.times.steps.get(attempt_id, ()) if known_ms <= now_ms)


def _at(moment_ms: int) -> int:
    return WALL_START_MS + moment_ms


def _wall(moment_ms: int | None) -> int | None:
    return None if moment_ms is None else WALL_START_MS + moment_ms
