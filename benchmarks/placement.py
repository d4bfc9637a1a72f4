"""One placement decision over 100,000 GPUs in the planner's core: from arrays to the GPUs of every rank, and taken.

It is measured as process time, since these machines are shared. The fleet is a third full and fragmented; further
figures are the full recount, the building of the state from views, and the choice of victims on a full fleet.
"""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from health.standing.admission import AdmissionFacts
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.queue import CONSERVATIVE, EASY, BackfillRule
from muster.domain.states import Contact, Standing
from scheduler.fleet.topology import FleetState
from scheduler.holds.outcomes import Notified
from scheduler.model import GpuView, RunningAttempt, WaitingJob, Workload
from scheduler.planner import plan_on
from scheduler.quota.tenancy import Tenancy
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.placement_rule import PlacementRule, Slice
from scheduler.solve.solver import Request, parts_of, place

GPUS_PER_NODE = 8
NODES_PER_RACK = 16
NODES_PER_POD = 256
LEVELS = ("pod", "rack")
NOW_MS = 10_000_000
NUM_TENANTS, QUOTA_GPUS = 50, 4_000
IN_FOURS = PlacementRule(slices=(Slice("rack", 4),))
RECLAIMS = {
    "64 GPUs of one rack": Request("reserved", 8, 8, required="rack"),
    "512 GPUs of one block": Request("reserved", 64, 8, required="pod"),
    "1,024 GPUs": Request("reserved", 128, 8),
    "128 GPUs in slices of four hosts of a rack": Request("reserved", 16, 8, rule=IN_FOURS),
    "512 GPUs of one block in slices of four hosts of a rack": Request(
        "reserved", 64, 8, required="pod", rule=IN_FOURS
    ),
}
FREE = AdmissionFacts(standing=Standing.HEALTHY, contact=Contact.LIVE)
HELD = replace(FREE, is_assigned=True)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``waiting``: jobs that fit nowhere; ``plans``: choices of victims; ``in_cycle``: with
    quotas.
    """

    nodes: int
    decisions: int
    waiting: int
    plans: int
    in_cycle: int

    @property
    def gpus(self) -> int:
        return self.nodes * GPUS_PER_NODE


SIZES: Final = Sizes(
    full=Size(nodes=12_500, decisions=300, waiting=10_000, plans=15, in_cycle=1_000),
    smallest=Size(nodes=2_048, decisions=5, waiting=50, plans=1, in_cycle=50),
)


def measure(size: Size) -> Groups:
    views = fleet_views(random.Random(1), size.nodes)  # noqa: S311  # a seeded fleet must repeat
    started = time.process_time()
    state = FleetState(views, DEFAULT_POLICY, LEVELS)
    build_ms = (time.process_time() - started) * 1000
    state.tier("on_demand")
    recount_ms = _p95(lambda: state.recount("on_demand"), size)
    rack_ms = _p95(lambda: _decide(state, Request("on_demand", 8, 8, required="rack")), size)
    one_ms = _p95(lambda: _decide(state, Request("on_demand", 1, 8)), size)
    gang_ms = _p95(lambda: _decide(state, Request("on_demand", 128, 8)), size)
    peers = {"full recount ms": recount_ms, "build of the state ms": build_ms}
    beside = {"64 GPUs of one rack ms": rack_ms}
    fleet = f"of {size.gpus:,} GPUs"
    yield [
        Figure(f"placement: 8 {fleet}, p95", one_ms, "ms", 1.0, peers=peers, basis=Basis.CPU),
        Figure(f"placement: 1,024 {fleet}, p95", gang_ms, "ms", 1.0, peers=beside, basis=Basis.CPU),
    ]
    yield [_queue_figure(state, size)]
    yield _reclaim_figures(views, size)
    for rule in (EASY, CONSERVATIVE):
        yield [_cycle_figure(views, rule, size)]


def fleet_views(rng: random.Random, num_nodes: int) -> list[GpuView]:
    views = []
    for node in range(num_nodes):
        num_held = rng.choice([0, 0, 0, 8, 8, 3])
        path = (f"pod-{node // NODES_PER_POD:03}", f"rack-{node // NODES_PER_RACK:04}")
        cohort = "b200" if node // NODES_PER_POD % 3 == 0 else "h100"
        for slot in range(GPUS_PER_NODE):
            facts = HELD if slot < num_held else FREE
            name = f"{node:05}"
            views.append(GpuView(GpuUuid(f"gpu-{name}-{slot}"), NodeId(f"node-{name}"), slot, cohort, facts, path))
    return views


def _decide(state: FleetState, request: Request) -> None:
    chosen = place(state, request)
    if chosen is None:
        message = f"the fleet of the benchmark has no place for {request}"
        raise AssertionError(message)
    parts_of(state, request.tier, chosen)
    state.take(chosen.gpus)
    state.give(chosen.gpus)


def _p95(decide: Callable[[], object], size: Size) -> float:
    """Return milliseconds of process time."""
    times_ms = []
    for _ in range(size.decisions):
        started = time.process_time_ns()
        decide()
        times_ms.append((time.process_time_ns() - started) / 1e6)
    return sorted(times_ms)[int(size.decisions * 0.95)]


def _queue_figure(state: FleetState, size: Size) -> Figure:
    """Measure a queue of jobs of ten shapes that fit nowhere, and one behind them that fits."""
    queue = [
        WaitingJob(JobId(f"job-{number:05}"), 1, "on_demand", number, 240 + number % 10, 8, required_level="pod")
        for number in range(size.waiting)
    ]
    last = WaitingJob(JobId("last"), 1, "on_demand", size.waiting, 1, 8)
    started = time.process_time()
    decided = plan_on(state, [*queue, last], DEFAULT_POLICY)
    took_ms = (time.process_time() - started) * 1000
    if [placement.job_id for placement in decided.placements] != ["last"]:
        message = "the job that fits was hidden by jobs that do not fit"
        raise AssertionError(message)
    name = f"placement: {size.waiting:,} jobs that do not fit, one that does"
    return Figure(name, took_ms, "ms", 250.0, basis=Basis.CPU)


def _reclaim_figures(views: list[GpuView], size: Size) -> list[Figure]:
    """Measure victims among 10,000 or so running gangs, half of them spot, on a fleet that is full."""
    workload = running_gangs(views)
    state = FleetState([replace(view, facts=HELD) for view in views], DEFAULT_POLICY, LEVELS)
    return [_reclaim_figure(name, state, workload, request, size) for name, request in RECLAIMS.items()]


def _reclaim_figure(name: str, state: FleetState, workload: Workload, request: Request, size: Size) -> Figure:
    prepare_ms, choose_ms = [], []
    for _ in range(size.plans):
        started = time.process_time()
        reclaimer = Reclaimer(state, DEFAULT_POLICY, workload)
        prepared = time.process_time()
        outcome = reclaimer.choose(JobId("gang"), request)
        choose_ms.append((time.process_time() - prepared) * 1000)
        prepare_ms.append((prepared - started) * 1000)
        if not isinstance(outcome, Notified):
            message = f"the benchmark's reclaim was refused: {outcome}"
            raise TypeError(message)
    peers = {"prepare ms": statistics.median(prepare_ms), "gangs": float(len(workload.running))}
    p50_ms = statistics.median(choose_ms)
    return Figure(f"reclaim: victims for {name}, p50", p50_ms, "ms", 5.0, peers=peers, basis=Basis.CPU)


def _cycle_figure(views: list[GpuView], rule: BackfillRule, size: Size) -> Figure:
    """Measure a cycle on a full fleet with wall times and quotas: nothing starts, and holds are made."""
    chance = random.Random(3)  # noqa: S311  # a seeded queue must repeat
    workload = running_gangs(views)
    running = tuple(
        replace(one, tier="on_demand", ends_ms=NOW_MS + chance.randrange(60_000, 7_200_000)) for one in workload.running
    )
    quotas = {(TenantId(f"ten-{number}"), "on_demand"): QUOTA_GPUS for number in range(NUM_TENANTS)}
    queue = [
        replace(
            WaitingJob(JobId(f"job-{number:05}"), 1, "on_demand", NOW_MS - number, chance.choice([1, 2, 4, 8]), 8),
            tenant_id=TenantId(f"ten-{number % NUM_TENANTS}"),
            expected_s=float(chance.randrange(600, 9_000)),
        )
        for number in range(size.in_cycle)
    ]
    policy = DEFAULT_POLICY.model_copy(update={"queue": DEFAULT_POLICY.queue.model_copy(update={"backfill": rule})})
    state = FleetState([replace(view, facts=HELD) for view in views], policy, LEVELS)
    started = time.process_time()
    decided = plan_on(state, queue, policy, replace(workload, running=running, tenancy=Tenancy.of_ceilings(quotas)))
    took_ms = (time.process_time() - started) * 1000
    if decided.placements or not decided.holds:
        message = f"{len(decided.placements)} of the benchmark's jobs were placed, {len(decided.holds)} have places"
        raise AssertionError(message)
    name = f"cycle: {size.in_cycle:,} waiting jobs under quotas on a full fleet, {rule}"
    peers = {"places": float(len(decided.holds))}
    return Figure(name, took_ms, "ms", 1_000.0, peers=peers, basis=Basis.CPU)


def running_gangs(views: list[GpuView]) -> Workload:
    """Return 10,000 or so gangs, half of them spot, on all GPUs."""
    chance = random.Random(2)  # noqa: S311  # a seeded workload must repeat
    attempts: list[RunningAttempt] = []
    start = 0
    while start < len(views):
        end = start + GPUS_PER_NODE * chance.choice([1, 1, 1, 1, 1, 2])
        number = len(attempts)
        attempt = RunningAttempt(
            attempt_id=AttemptId(f"att-{number:06}"),
            job_id=JobId(f"job-{number:06}"),
            tenant_id=TenantId(f"ten-{number % 50}"),
            tier=chance.choice(["spot", "on_demand"]),
            gpus=tuple(view.uuid for view in views[start:end]),
            started_ms=chance.randrange(NOW_MS - 2_000_000),
            saved_ms=NOW_MS - chance.randrange(1_000_000),
        )
        attempts.append(attempt)
        start = end
    return Workload(NOW_MS, tuple(attempts))
