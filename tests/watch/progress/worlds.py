"""Ranks on virtual time, as a host's sensors report them: each second the phase, step and ticks of every rank."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from muster.domain.policy.watch import WatchPolicy
from watch.phases import Phase
from watch.progress.tracker import Overdue, Tracker
from watch.reports import ProcessState, RankReport

POLL_S = 1.0


@dataclass
class Rank:
    """One rank. ``script``: it yields how long the rank stays as it is now."""

    number: int
    phase: Phase = Phase.START
    step: int = 0
    ticks: int = 0
    is_declared: bool = False
    process: ProcessState = ProcessState.SLEEPING
    cpu_share: float = 0.0
    children_cpu_share: float = 0.0
    moves: bool = False
    io: float = 0.0
    until_s: float = 0.0
    changed_s: float = 0.0
    _seen: tuple[object, ...] = ()
    script: Iterator[float] | None = None

    def advance(self, now_s: float) -> None:
        while self.script is not None and self.until_s <= now_s:
            try:
                self.until_s += next(self.script)
            except StopIteration:
                self.script = None

    def report(self, now_s: float) -> RankReport:
        seen = (self.phase, self.step, self.ticks)
        if seen != self._seen:
            self._seen, self.changed_s = seen, now_s
        return RankReport(
            self.number,
            self.phase,
            self.step,
            self.ticks,
            still_s=now_s - self.changed_s,
            is_declared=self.is_declared,
            process=self.process,
            cpu_share=self.cpu_share,
            moved_s=0.0 if self.moves else now_s - self.changed_s,
            io_bytes_per_s=self.io,
            children_cpu_share=self.children_cpu_share,
        )


@dataclass
class World:
    """Ranks and their tracker. ``watch`` returns the first moment that is overdue, or None."""

    ranks: list[Rank]
    policy: WatchPolicy = field(default_factory=WatchPolicy)
    now_s: float = 1000.0

    def __post_init__(self) -> None:
        self.tracker = Tracker(self.policy)
        for rank in self.ranks:
            rank.until_s = rank.changed_s = self.now_s

    def watch(self, seconds: float, change: Callable[["World"], None] = lambda _: None) -> tuple[float, Overdue] | None:
        began_s = self.now_s
        while self.now_s < began_s + seconds:
            self.now_s += POLL_S
            change(self)
            for rank in self.ranks:
                rank.advance(self.now_s)
            overdue = self.tracker.take([rank.report(self.now_s) for rank in self.ranks], self.now_s)
            if overdue is not None:
                return self.now_s, overdue
        return None


def trains(rank: Rank, rng: random.Random, step_s: float) -> Iterator[float]:
    """A clean training: a slow start, then steps of its own pace, with evaluations, saves, loaders and compiles."""
    rank.phase, rank.ticks = Phase.RESTORE, 1
    yield rng.uniform(0, 100)
    rank.phase = Phase.FIRST_STEP
    yield rng.choice([1.0, 30.0, 280.0])
    while True:
        rank.step, rank.phase = rank.step + 1, Phase.STEP
        for _ in range(3):
            rank.ticks += 1
            yield step_s / 3 * rng.uniform(0.5, 1.5)
        yield from _between_steps(rank, rng)


def _between_steps(rank: Rank, rng: random.Random) -> Iterator[float]:
    drawn = rng.random()
    if drawn < 0.02:
        yield from _evaluates(rank, rng)
    elif drawn < 0.04:
        rank.phase = Phase.SAVE
        rank.process, rank.io = rng.choice([(ProcessState.BLOCKED, 0.0), (ProcessState.RUNNING, 1e8)])
        yield rng.uniform(1, 39) if rank.process is ProcessState.BLOCKED else rng.uniform(1, 1500)
    elif drawn < 0.06:
        rank.phase, rank.cpu_share, rank.moves = Phase.COMPILE, 1.0, True
        yield rng.uniform(1, 1200)
    elif drawn < 0.08:
        rank.phase, rank.cpu_share = Phase.DATA, rng.choice([0.0, 0.9])
        rank.moves = rank.cpu_share > 0
        yield rng.uniform(1, 400) if rank.moves else rng.uniform(1, 38)
    elif drawn < 0.1:
        rank.phase, rank.children_cpu_share = Phase.DATA, 7.9
        yield rng.uniform(1, 400)
        rank.children_cpu_share = 0.0
    elif drawn < 0.11:
        yield from _with_pauses(rank, Phase.SAVE, rng.uniform(60, 1500))
    elif drawn < 0.13:
        yield from _with_pauses(rank, Phase.STEP, rng.uniform(30, 280))
    rank.process, rank.io, rank.cpu_share, rank.moves = ProcessState.SLEEPING, 0.0, 0.0, False


def _with_pauses(rank: Rank, phase: Phase, seconds: float) -> Iterator[float]:
    """Write for so long, with a pause now and then. In a step rank 0 alone does so, and the others wait for it."""
    rank.phase = phase
    if phase is Phase.STEP and rank.number:
        rank.ticks += 1
    left_s = seconds
    while left_s > 0:
        for rate, lasts_s in ((1e8, 9.0), (0.0, 3.0)):
            rank.io = rate if phase is not Phase.STEP or rank.number == 0 else 0.0
            yield min(lasts_s, max(left_s, 0.0))
            left_s -= lasts_s
    if phase is Phase.STEP and rank.number == 0:
        rank.ticks += 1


def _evaluates(rank: Rank, rng: random.Random) -> Iterator[float]:
    rank.phase, rank.is_declared = Phase.EVALUATION, rng.random() < 0.5
    if rank.is_declared:
        yield 3600.0
    else:
        for _ in range(rng.randrange(5, 60)):
            rank.ticks += 1
            yield rng.uniform(0.1, 20)
    rank.is_declared = False


def gang(num_ranks: int, seed: int, step_s: float) -> list[Rank]:
    """Ranks that do the same at the same time, as collectives make them."""
    ranks = [Rank(number) for number in range(num_ranks)]
    for rank in ranks:
        rank.script = trains(rank, random.Random(seed), step_s)  # noqa: S311  # a seeded world
    return ranks
