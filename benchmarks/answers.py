"""Answers about one pending job over 100,000 GPUs: the jobs ahead, the range of starts, what would help.

The first query about a plan computes the part that all queries share; later queries reuse it. A single query behind
10,000 jobs pays for both, and for the plan of that queue: the first answer is compared with that plan. Queries are
about a queue's head and its end, in an idle fleet and behind 10,000 gangs.
"""

import random
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from benchmarks.decisions import spread_of
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.placement import HELD, LEVELS, NOW_MS, fleet_views, running_gangs
from benchmarks.sizes import Sizes
from muster.domain.ids import JobId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.explain.advice import answer
from scheduler.fleet.topology import FleetState
from scheduler.forecast.start_range import StartForecast
from scheduler.model import GpuView, Plan, Question, WaitingJob, Workload
from scheduler.planner import plan_on

NUM_TENANTS = 50
HOSTS = (1, 1, 1, 1, 2, 2, 4, 8, 16, 32)
WALL_TIMES_S = (None, 3_600.0, 7_200.0, 86_400.0)
GRACE_S = 30.0
OF_PLAN = 0.5


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``ahead``: jobs pending before the queried one; the others: how often it is queried."""

    nodes: int
    ahead: int
    first_times: int
    further_times: int


SIZES: Final = Sizes(
    full=Size(nodes=12_500, ahead=10_000, first_times=10, further_times=100),
    smallest=Size(nodes=512, ahead=50, first_times=1, further_times=2),
)


@dataclass(frozen=True, slots=True)
class Query:
    """Query about the last pending job. ``state``: as the plan left it, which took ``plan_ms`` of CPU."""

    state: FleetState
    question: Question
    decided: Plan
    plan_ms: float

    def ask(self, forecast: StartForecast | None = None) -> None:
        found = answer(self.state, self.question, self.decided, self.question.queue[-1], GRACE_S, forecast)
        if not found.verdict.reasons or found.starts is None:
            message = f"the answer about a pending job has no reasons or no start: {found}"
            raise AssertionError(message)


def measure(size: Size) -> Groups:
    views = fleet_views(random.Random(1), size.nodes)  # noqa: S311  # a seeded fleet must repeat
    full = [replace(view, facts=HELD) for view in views]
    gangs = replace(running_gangs(views), may_grow=False)
    idle = Workload(NOW_MS, may_grow=False)
    alone = _query(views, _large(0), idle)
    first = spread_of(alone.ask, size.first_times)
    yield [
        Figure("answer behind 0 jobs, p50", first.p50, "ms", 2.0, peers={"p99": first.p99}, basis=Basis.CPU),
        _further("behind 0 jobs", alone, size),
    ]
    yield _figures(f"behind {size.ahead:,} jobs", _query(views, _large(size.ahead), idle), size)
    name = f"behind {size.ahead:,} jobs and {len(gangs.running):,} gangs"
    yield _figures(name, _query(full, _mixed(size.ahead), gangs), size)


def _figures(name: str, query: Query, size: Size) -> list[Figure]:
    first = spread_of(query.ask, size.first_times)
    over = first.p50 / query.plan_ms
    peers = {"p50 ms": first.p50, "p99 ms": first.p99, "plan ms": query.plan_ms}
    return [
        Figure(f"answer {name}, over their plan", over, "×", OF_PLAN, peers=peers, basis=Basis.RATIO),
        _further(name, query, size),
    ]


def _further(name: str, query: Query, size: Size) -> Figure:
    outlook = StartForecast(query.state, query.question, query.decided)
    further = spread_of(partial(query.ask, outlook), size.further_times)
    full_name = f"answer {name}, a further one of the plan, p50"
    return Figure(full_name, further.p50, "ms", 2.0, peers={"p99": further.p99}, basis=Basis.CPU)


def _query(views: list[GpuView], queue: list[WaitingJob], workload: Workload) -> Query:
    state = FleetState(views, DEFAULT_POLICY, LEVELS)
    started_ns = time.process_time_ns()
    decided = plan_on(state, queue, DEFAULT_POLICY, workload)
    plan_ms = (time.process_time_ns() - started_ns) / 1e6
    return Query(state, Question(DEFAULT_POLICY, views, queue, workload), decided, plan_ms)


def _large(num_ahead: int) -> list[WaitingJob]:
    """Return jobs that each take most of a block."""
    return [
        WaitingJob(JobId(f"job-{number:05}"), 1, "on_demand", number, 240 + number % 10, 8, required_level="pod")
        for number in range(num_ahead + 1)
    ]


def _mixed(num_ahead: int) -> list[WaitingJob]:
    """Return jobs of many sizes and tenants."""
    chance = random.Random(3)  # noqa: S311  # a seeded queue must repeat
    return [
        WaitingJob(
            JobId(f"job-{number:05}"),
            1,
            "on_demand",
            NOW_MS - num_ahead + number,
            chance.choice(HOSTS),
            8,
            tenant_id=TenantId(f"ten-{chance.randrange(NUM_TENANTS)}"),
            expected_s=chance.choice(WALL_TIMES_S),
        )
        for number in range(num_ahead + 1)
    ]
