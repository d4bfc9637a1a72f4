"""The rule of ``muster simulate --trace`` is the planner's: on whole hosts both start each job at the same moment.

Where jobs share hosts they may choose other hosts: the planner weighs what it leaves to others, that rule does not.
"""

import pytest

from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.queue import CONSERVATIVE
from simulator.traces.generated import LAWS, generated
from simulator.traces.jobs import TraceJob
from simulator.traces.planned import Expected, PlannedQueue
from simulator.traces.playing import estimates_of, play
from simulator.traces.rules import QUEUE_RULES, muster_by_wall_times

NUM_NODES, GPUS_PER_NODE, NUM_JOBS = 24, 8, 120


def whole_hosts(law: str, seed: int) -> list[TraceJob]:
    """Of a generated trace, in whole seconds: single GPUs become some hosts too, so that many have to wait."""
    jobs = generated(
        LAWS[law], num_jobs=NUM_JOBS, num_nodes=NUM_NODES, gpus_per_node=GPUS_PER_NODE, load=1.0, seed=seed
    )
    sized = [(job, job.num_nodes if job.num_nodes > 1 else 1 + job.gpus % 5) for job in jobs]
    return [
        TraceJob(round(job.submit_s), max(round(job.duration_s), 1), nodes * GPUS_PER_NODE, nodes, GPUS_PER_NODE)
        for job, nodes in sized
    ]


def planned(jobs: list[TraceJob], estimates_s: list[float], policy: Policy = DEFAULT_POLICY) -> list[float]:
    queue = PlannedQueue(jobs, Expected([None] * len(jobs), estimates_s), NUM_NODES, GPUS_PER_NODE, policy)
    queue.play()
    return [queue.started_ms[number] / 1000 for number in range(len(jobs))]


def by_rule(jobs: list[TraceJob], estimates_s: list[float]) -> list[float]:
    return list(
        play(jobs, estimates_s, QUEUE_RULES["muster"], num_nodes=NUM_NODES, gpus_per_node=GPUS_PER_NODE).started_s
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("law", LAWS)
def test_both_keep_the_same_firm_starts_where_all_state_wall_times(law: str, seed: int) -> None:
    jobs = whole_hosts(law, seed)
    walls = [job.duration_s for job in jobs]
    # Without a tier that a rule may reclaim from, no GPUs are held in addition that become free within a notice.
    tiers = {name: tier.model_copy(update={"notice_s": None}) for name, tier in DEFAULT_POLICY.tiers.items()}
    policy = DEFAULT_POLICY.model_copy(update={"tiers": tiers})
    queue = PlannedQueue(jobs, Expected(walls, [None] * len(jobs)), NUM_NODES, GPUS_PER_NODE, policy)
    firm: set[str] = set()
    queue.play(lambda one: firm.update(entry.job_id for entry in one.decided.waiting if entry.firm_start is not None))
    played = play(jobs, walls, muster_by_wall_times, num_nodes=NUM_NODES, gpus_per_node=GPUS_PER_NODE)
    assert [queue.started_ms[number] / 1000 for number in range(len(jobs))] == list(played.started_s)
    assert firm


def estimates(jobs: list[TraceJob], seed: int) -> list[float]:
    return [float(max(round(estimate_s), 1)) for estimate_s in estimates_of(jobs, error=2, seed=seed)]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("law", LAWS)
def test_both_start_each_job_at_the_same_moment(law: str, seed: int) -> None:
    jobs = whole_hosts(law, seed)
    believed = estimates(jobs, seed)
    started = by_rule(jobs, believed)
    assert sum(at_s > job.submit_s for job, at_s in zip(jobs, started, strict=True)) > NUM_JOBS / 4, "many have waited"
    assert planned(jobs, believed) == started


def test_what_has_been_passed_by_as_much_as_the_policy_allows_goes_first_by_both() -> None:
    """The second is so long that short ones go before it for weeks; the policy bounds what they may do meanwhile."""
    bound_s = DEFAULT_POLICY.queue.overtaken_work_bound_s
    short_s, all_gpus = round(bound_s / 40), NUM_NODES * GPUS_PER_NODE
    jobs = [TraceJob(0, short_s, all_gpus, NUM_NODES, GPUS_PER_NODE), TraceJob(1, 10 * bound_s, 8, 1, GPUS_PER_NODE)]
    jobs += [TraceJob(2 + place * short_s, short_s, all_gpus, NUM_NODES, GPUS_PER_NODE) for place in range(60)]
    believed = [job.duration_s for job in jobs]
    started = by_rule(jobs, believed)
    assert bound_s <= started[1] <= bound_s + 2 * short_s
    assert planned(jobs, believed) == started


def test_conservative_backfill_is_another_rule() -> None:
    jobs = whole_hosts("steady", 0)
    believed = estimates(jobs, 0)
    queue = DEFAULT_POLICY.queue.model_copy(update={"backfill": CONSERVATIVE})
    assert planned(jobs, believed, DEFAULT_POLICY.model_copy(update={"queue": queue})) != by_rule(jobs, believed)
