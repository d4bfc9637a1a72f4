"""Share of the pending jobs that start within their forecast range, which should hold for eight in ten.

The planner plays traces by three laws. In one run all jobs state a wall time of one to three times their duration; in
the next every second one states none; and in a third these have a known history, of other runs that took as long, some
less and some more (``scheduler.forecast.history``).
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.forecast.history import predicted_s
from simulator.traces.generated import LAWS, generated
from simulator.traces.jobs import TraceJob
from simulator.traces.starts import Start, starts_reported

NUM_NODES, GPUS_PER_NODE, SEED = 24, 8, 1
LONGEST_WALL = 3.0
SHARES = (1.0, 0.5)
"""Shares of the jobs that state a wall time."""
NUM_RUNS, SPREAD = 15, 0.5
"""Number of other runs like it, and the standard deviation of the logarithm of their times."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``jobs``: of each trace."""

    laws: tuple[str, ...]
    jobs: int


SIZES: Final = Sizes(full=Size(tuple(LAWS), jobs=150), smallest=Size(("bursts",), jobs=25))


def measure(size: Size) -> Groups:
    found = {
        f"{law}, {share:.0%} with a wall time": _starts(law, size.jobs, share) for law in size.laws for share in SHARES
    }
    found |= {
        f"{law}, 50% with a wall time, the past of the others is known": _starts(law, size.jobs, 0.5, has_past=True)
        for law in size.laws
    }
    starts = [one for of_law in found.values() for one in of_law]
    peers = {"of jobs": float(len(starts)), **{name: _covered(of_law) for name, of_law in found.items()}}
    name = "Starts within the forecast range, of pending jobs"
    yield [Figure(name, _covered(starts), "", 0.7, "higher", peers, basis=Basis.COUNT)]


def _starts(law: str, num_jobs: int, share: float, *, has_past: bool = False) -> list[Start]:
    jobs = generated(
        LAWS[law], num_jobs=num_jobs, num_nodes=NUM_NODES, gpus_per_node=GPUS_PER_NODE, load=1.0, seed=SEED
    )
    chance = Random(SEED)  # noqa: S311  # a simulation
    walls = [
        max(job.duration_s, 60.0) * chance.uniform(1, LONGEST_WALL) if chance.random() < share else None for job in jobs
    ]
    is_known = [has_past and wall is None for wall in walls]
    past = [_predicted_s(job, chance) if known else None for job, known in zip(jobs, is_known, strict=True)]
    return starts_reported(jobs, walls, past, num_nodes=NUM_NODES, gpus_per_node=GPUS_PER_NODE)


def _predicted_s(job: TraceJob, rng: Random) -> float | None:
    """Return the expected time; the job's own run is one of as many more, drawn alike."""
    typical_s = job.duration_s / rng.lognormvariate(0, SPREAD)
    return predicted_s([typical_s * rng.lognormvariate(0, SPREAD) for _ in range(NUM_RUNS)], DEFAULT_POLICY)


def _covered(starts: list[Start]) -> float:
    return sum(one.is_covered for one in starts) / len(starts)
