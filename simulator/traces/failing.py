"""Nodes that fail at a published rate, and the cost of a failure for a job there: work since its last checkpoint.

A failure takes one node, each with the same probability, whichever job runs there. Failures are a Poisson process of
the fleet, with the same times and nodes for every rule of the queue by the same seed. The job is queued again as a
whole.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

PUBLISHED_RATES: Final[Mapping[str, float]] = {"rsc-1": 6.50, "rsc-2": 2.34, "llama-3": 3.79}
"""Failures in 1,000 node-days.

RSC-1 and RSC-2: Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025
(arXiv 2410.21680). Llama 3: our quotient of 419 unexpected interruptions and 54 days of 2,048 nodes (Meta, "The Llama 3
Herd of Models", 2024).
"""

_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoints and restarts of jobs. The end of a job needs no checkpoint.

    ``every_s``: work between two checkpoints; ``stall_s``: training stops so long for each; ``restart_s``: the time
    until an interrupted job trains again, once it has its GPUs. Five minutes for a write and five for a restart are
    assumed by Kokolis et al.; an hour between two checkpoints is our assumption.
    """

    every_s: float = 3600.0
    stall_s: float = 300.0
    restart_s: float = 300.0

    def run_s(self, work_s: float, *, is_again: bool) -> float:
        """Return how long an attempt takes with so much work left."""
        num_saves = max(math.ceil(work_s / self.every_s) - 1, 0) if self.stall_s else 0
        return (self.restart_s if is_again else 0.0) + work_s + num_saves * self.stall_s

    def spent(self, busy_s: float, *, is_again: bool, saves_last: bool) -> "Spent":
        """Return how an attempt that ended after so long spent its time. ``saves_last``: it had a notice in time."""
        restarting_s = min(busy_s, self.restart_s) if is_again else 0.0
        ran_s = busy_s - restarting_s
        num_saved = math.floor(ran_s / (self.every_s + self.stall_s))
        kept_s, stalled_s = (num_saved * self.every_s, num_saved * self.stall_s) if num_saved else (0.0, 0.0)
        rest_s = ran_s - kept_s - stalled_s
        if saves_last:
            worked_s = min(rest_s, self.every_s)
            return Spent(kept_s + worked_s, stalled_s + rest_s - worked_s, restarting_s, 0.0)
        return Spent(kept_s, stalled_s, restarting_s, rest_s)


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one attempt. ``lost_s``: work that has to be done again, and a save that was in progress."""

    kept_s: float
    stalled_s: float
    restarting_s: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures of nodes. ``repair_s``: how long a node is away.

    The default has no source: SuperBench (USENIX ATC 2024) states that 38 % of incidents take longer than a day, so a
    day is longer than the median.
    """

    per_1000_node_days: float
    repair_s: float = _DAY_S
    checkpoints: Checkpoints = Checkpoints()

    def moments(self, num_nodes: int, *, from_s: float, seed: int) -> Iterator[tuple[float, int]]:
        """Yield (when, which node), without end; at infinity if nothing fails."""
        chance, at_s = Random(f"failures {seed}"), from_s  # noqa: S311  # a simulation
        rate = self.per_1000_node_days * num_nodes / 1000 / _DAY_S
        while True:
            at_s += chance.expovariate(rate) if rate > 0 else math.inf
            yield at_s, chance.randrange(num_nodes)


NO_FAILURES: Final = Failures(0.0, checkpoints=Checkpoints(every_s=math.inf, stall_s=0.0))
"""Failures of a fleet in which nothing fails, and only jobs with a notice save a checkpoint."""
