"""How many of the jobs that wait start within the range that they were told, which is meant to hold eight in ten.

Traces by three laws are played by the planner; once all jobs say a wall time of one to three times their duration, and
once every second one says none.
"""

from random import Random

from benchmarks.figures import Figure
from simulator.traces.generated import LAWS, generated
from simulator.traces.starts import Told, starts_told

NUM_JOBS, NUM_NODES, GPUS_PER_NODE, SEED = 150, 24, 8, 1
LONGEST_WALL = 3.0
SHARES = (1.0, 0.5)
"""Of the jobs, how many say a wall time."""


def measure() -> list[Figure]:
    found = {f"{law}, {share:.0%} say": _told(law, share) for law in LAWS for share in SHARES}
    everyone = [one for told in found.values() for one in told]
    return [
        Figure(
            "Starts within the range told, of those who waited",
            _covered(everyone),
            "",
            0.7,
            better="higher",
            peers={"of jobs": float(len(everyone)), **{name: _covered(told) for name, told in found.items()}},
        )
    ]


def _told(law: str, share: float) -> list[Told]:
    jobs = generated(
        LAWS[law], num_jobs=NUM_JOBS, num_nodes=NUM_NODES, gpus_per_node=GPUS_PER_NODE, load=1.0, seed=SEED
    )
    chance = Random(SEED)  # noqa: S311  # a simulation
    walls = [
        max(job.duration_s, 60.0) * chance.uniform(1, LONGEST_WALL) if chance.random() < share else None for job in jobs
    ]
    return starts_told(jobs, walls, num_nodes=NUM_NODES, gpus_per_node=GPUS_PER_NODE)


def _covered(told: list[Told]) -> float:
    return sum(one.is_covered for one in told) / len(told)
