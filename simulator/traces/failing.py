"""Nodes that fail at a published rate, and what a failure costs who runs there: work since its last checkpoint.

A failure takes one node, each as likely as any other, whoever runs there; failures come as a Poisson process of the
fleet, the same moments and nodes for every rule of the queue by the same seed. The job is queued again as a whole.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

PUBLISHED_RATES: Final[Mapping[str, float]] = {"rsc-1": 6.50, "rsc-2": 2.34, "llama-3": 3.79}
"""Failures of 1,000 node-days. RSC-1 and RSC-2: Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning
Research Clusters", HPCA 2025 (arXiv 2410.21680). Llama 3: 419 unexpected interruptions in 54 days of 2,048 nodes (Meta,
"The Llama 3 Herd of Models", 2024), which is ours to divide."""

_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """``every_s``: work between two of them; ``stall_s``: training stands for each; ``restart_s``: until one that was
    interrupted trains again, once it has its GPUs. The end of a job needs none.

    Five minutes for a write and five for a restart are what Kokolis et al. assume; an hour between two is ours.
    """

    every_s: float = 3600.0
    stall_s: float = 300.0
    restart_s: float = 300.0

    def run_s(self, work_s: float, *, is_again: bool) -> float:
        """How long an attempt takes that has so much work before it."""
        num_saves = max(math.ceil(work_s / self.every_s) - 1, 0) if self.stall_s else 0
        return (self.restart_s if is_again else 0.0) + work_s + num_saves * self.stall_s

    def spent(self, held_s: float, *, is_again: bool, saves_last: bool) -> "Spent":
        """On what an attempt spent its time that was cut off after so long. ``saves_last``: it was told in time."""
        restarting_s = min(held_s, self.restart_s) if is_again else 0.0
        ran_s = held_s - restarting_s
        num_saved = math.floor(ran_s / (self.every_s + self.stall_s))
        kept_s, stalled_s = (num_saved * self.every_s, num_saved * self.stall_s) if num_saved else (0.0, 0.0)
        rest_s = ran_s - kept_s - stalled_s
        if saves_last:
            worked_s = min(rest_s, self.every_s)
            return Spent(kept_s + worked_s, stalled_s + rest_s - worked_s, restarting_s, 0.0)
        return Spent(kept_s, stalled_s, restarting_s, rest_s)


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one attempt. ``lost_s``: work that has to be done again, and a save that was under way."""

    kept_s: float
    stalled_s: float
    restarting_s: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class Failures:
    """``repair_s``: so long a node is away. Without a source: SuperBench (USENIX ATC 2024) says that 38 % of incidents
    take longer than a day, so that a day is on the long side of the middle.
    """

    per_1000_node_days: float
    repair_s: float = _DAY_S
    checkpoints: Checkpoints = Checkpoints()

    def moments(self, num_nodes: int, *, from_s: float, seed: int) -> Iterator[tuple[float, int]]:
        """(when, which node), without end; at infinity where nothing fails."""
        chance, at_s = Random(f"failures {seed}"), from_s  # noqa: S311  # a simulation
        rate = self.per_1000_node_days * num_nodes / 1000 / _DAY_S
        while True:
            at_s += chance.expovariate(rate) if rate > 0 else math.inf
            yield at_s, chance.randrange(num_nodes)


NO_FAILURES: Final = Failures(0.0, checkpoints=Checkpoints(every_s=math.inf, stall_s=0.0))
"""Nothing fails, and nobody stands for a checkpoint but who is told to go."""
