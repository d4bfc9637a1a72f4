"""A trace under any policy: the planner's own decisions, with tiers, quotas, notices, and run times known or not."""

from dataclasses import replace

import pytest

from muster.domain.ids import TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.quota.tenancy import Quota, Tenancy
from simulator.traces.by_policy import PolicyQueue, RunTimes, UnplayableError
from simulator.traces.jobs import TraceJob
from simulator.traces.playing import Played
from tests.simulator.traces.test_planned import GPUS_PER_NODE, NUM_NODES, by_rule, estimates, whole_hosts

SPOT = TraceJob(0, 5_000, 32, 4, 8, "a", "spot")
RESERVED = TraceJob(100, 100, 16, 2, 8, "b", "reserved")


def play(jobs: list[TraceJob], tenancy: Tenancy | None = None, wall_s: float | None = None) -> Played:
    known = RunTimes([wall_s] * len(jobs), [None] * len(jobs))
    return PolicyQueue(jobs, known, DEFAULT_POLICY, tenancy or Tenancy(), 4, 8).play()


def test_without_tiers_it_starts_each_job_when_our_rule_does() -> None:
    jobs = whole_hosts("steady", 1)[:60]
    believed = estimates(jobs, 1)
    known = RunTimes([None] * len(jobs), believed)
    queue = PolicyQueue(jobs, known, DEFAULT_POLICY, Tenancy(), NUM_NODES, GPUS_PER_NODE)
    assert list(queue.play().started_s) == by_rule(jobs, believed)


def test_a_higher_tier_takes_its_gpus_back_after_minimum_run_and_notice() -> None:
    spot = DEFAULT_POLICY.tiers["spot"]
    assert spot.notice_s is not None
    played = play([SPOT, RESERVED])
    begins_s, least_s = played.started_s[1], spot.min_run_s + spot.notice_s
    assert least_s <= begins_s <= least_s + 60
    assert [(one.number, one.at_s) for one in played.interruptions] == [(0, begins_s)]
    # The victim needs all hosts: it continues with the work that it has left once the other job has ended.
    assert played.finished_s[0] == pytest.approx(begins_s + 100 + 5_000 - begins_s)


def test_a_job_within_its_guarantee_goes_before_one_that_borrows() -> None:
    # In a tier whose jobs are taken back, so that its guarantees may be lent.
    first = TraceJob(0, 100, 32, 4, 8, "x", "spot")
    both = [TraceJob(1, 100, 32, 4, 8, "a", "spot"), TraceJob(2, 100, 32, 4, 8, "b", "spot")]
    tenancy = Tenancy(quotas={(TenantId("b"), "spot"): Quota(guaranteed=32)})
    assert list(play([first, *both]).started_s) == [0, 100, 200]
    assert list(play([first, *both], tenancy).started_s) == [0, 200, 100]


def test_only_a_known_wall_time_lets_a_job_pass_a_gang() -> None:
    jobs = [TraceJob(0, 100, 24, 3, 8), TraceJob(1, 50, 32, 4, 8), TraceJob(2, 90, 8, 1, 8)]
    assert list(play(jobs, wall_s=100).started_s)[2] > 2
    known = RunTimes([job.duration_s for job in jobs], [None] * 3)
    exact = PolicyQueue(jobs, known, DEFAULT_POLICY, Tenancy(), 4, 8).play()
    assert list(exact.started_s) == [0, 100, 2]


def test_a_job_that_never_starts_is_refused_with_its_reason() -> None:
    tenancy = Tenancy(quotas={(TenantId("b"), "reserved"): Quota(ceiling=8)})
    with pytest.raises(UnplayableError, match=r"16 GPUs submitted at 100 s never starts .* its quota allows"):
        play([SPOT, RESERVED], tenancy)
    with pytest.raises(UnplayableError, match="no tier 'gold', which the trace names: it has reserved"):
        play([replace(SPOT, tier="gold")])
