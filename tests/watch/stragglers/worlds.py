"""Worlds of ranks that train together: their reports of pace with noise, evaluations, saves and one slow rank."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.domain.policy.stragglers import StragglerPolicy
from watch.stragglers.findings import Judgement
from watch.stragglers.judge import judge
from watch.stragglers.windows import Folding, RankWindows

RULES = StragglerPolicy()
SLOW_BY: Mapping[str, str] = {
    "compute": "compute",
    "data": "data_s",
    "cpu": "cpu_wait_s",
    "gc": "gc_s",
    "threads": "threads_s",
    "disk": "io_wait_s",
}
CAUSES: Mapping[str, str] = {
    "compute": "compute",
    "data": "data",
    "cpu": "host",
    "gc": "host",
    "threads": "host",
    "disk": "data",
}
"""What each kind of slowness is named."""


class Folded:
    """The windows of ranks, folded from their reports. ``open``: the window that each rank is in."""

    def __init__(self, num_ranks: int, rules: StragglerPolicy = RULES) -> None:
        self.rules = rules
        self.open = {rank: Folding() for rank in range(num_ranks)}
        self.ranks = {rank: RankWindows(rank, 0) for rank in range(num_ranks)}

    def take(self, rank: int, step: int, pace: Mapping[str, Any]) -> bool:
        """Take a report. Return whether a window of the rank is over."""
        before = self.open[rank]
        self.open[rank], window = before.with_pace(step, pace, self.rules.window_s)
        if window is not None:
            self.ranks[rank] = self.ranks[rank].with_window(before.size, before.place, window)
        return window is not None

    def judgement(self) -> Judgement:
        return judge(list(self.ranks.values()), self.rules)


@dataclass
class Gang:
    """Ranks that wait for the slowest at each step. Each report covers a second or more, as reports of ``pace`` do.

    ``noise``: standard deviation of own compute as a share. ``work``: tokens of each rank; None: not reported.
    """

    num_ranks: int
    seed: int
    own_s: float = 0.2
    transfer_s: float = 0.02
    noise: float = 0.03
    work: Mapping[int, float] | None = None
    places: Mapping[int, str] = field(default_factory=dict)
    is_eventful: bool = True
    step: int = 0
    rules: StragglerPolicy = RULES

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311  # a seeded world
        self.folded = Folded(self.num_ranks, self.rules)
        self.open, self.ranks = self.folded.open, self.folded.ranks
        self.slow: dict[int, tuple[str, float]] = {}
        self.num_windows = 0

    def second(self) -> bool:
        """Let a second or more of steps pass. Return whether a window of rank 0 is over."""
        steps = max(round(1 / (self.own_s + self.transfer_s)), 1)
        sums = [dict[str, float]() for _ in range(self.num_ranks)]
        for _ in range(steps):
            self._step(sums)
        self.step += steps
        is_over = False
        for rank, found in enumerate(sums):
            pace = {name: value / steps for name, value in found.items()} | {"own_steps": steps, "num_steps": steps}
            if self.work is not None:
                pace["tokens_per_step"] = self.work[rank]
            is_over = self.take(rank, {**pace, "place": self.places.get(rank)}) or is_over
        self.num_windows += is_over
        return is_over

    def take(self, rank: int, pace: Mapping[str, Any]) -> bool:
        return self.folded.take(rank, self.step, pace)

    def judgements(self, num_windows: int) -> Iterator[Judgement]:
        """Yield the judgement after each of so many windows."""
        until = self.num_windows + num_windows
        while self.num_windows < until:
            if self.second():
                yield self.folded.judgement()

    def _step(self, sums: list[dict[str, float]]) -> None:
        own = {rank: self._own(rank) for rank in range(self.num_ranks)}
        arrived = max(own_s for own_s, _ in own.values()) + self.transfer_s * self.rng.uniform(0.9, 1.2)
        late_s = self.rng.uniform(0.5, 30) if self.is_eventful and self.rng.random() < 0.01 else 0.0
        for rank, (own_s, named) in own.items():  # rank 0 saves or evaluates, and the others wait for it
            waits = {"own_s": own_s, "wait_s": arrived - own_s + (late_s if rank else 0.0), **named}
            for name, value in waits.items():
                sums[rank][name] = sums[rank].get(name, 0.0) + value

    def _own(self, rank: int) -> tuple[float, dict[str, float]]:
        own_s = self.own_s * max(self.rng.gauss(1, self.noise), 0.5)
        if self.is_eventful and self.rng.random() < 0.01:  # the host does something else
            own_s *= self.rng.uniform(1.1, 3)
        own_s *= (self.work or {}).get(rank, 1000.0) / 1000.0
        named = {"data_s": 0.05 * own_s, "cpu_wait_s": 0.01 * own_s, "gc_s": 0.002, "threads_s": 0.01, "io_wait_s": 0.0}
        kind, share = self.slow.get(rank, ("compute", 0.0))
        more_s = share * self.own_s
        if SLOW_BY[kind] in named:
            named[SLOW_BY[kind]] += more_s
        return own_s + more_s, named
