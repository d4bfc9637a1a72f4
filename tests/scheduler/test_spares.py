"""Spares: as many hosts as fail at once, kept from who could not give them back, open to gangs that lost a host."""

from dataclasses import replace
from math import comb, exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy import DEFAULT_POLICY, Policy
from muster.domain.recovery_policy import RecoveryPolicy, SparePolicy
from muster.domain.wait_reasons import WaitReason
from scheduler.model import GpuView, Parts, Plan, RunningAttempt, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.spares import spares_needed
from tests.scheduler.fleets import NOW_MS, hold, job, of_host, racks, running

P99 = SparePolicy(confidence=0.99)
KEEPS = Policy(recovery=RecoveryPolicy(spares=P99))
TWO_OF_SIX = 0.0002
"""Failures per GPU-hour at which two of six hosts are kept, and one of eight GPUs fails in 26 days."""


@settings(max_examples=200, deadline=None)
@given(
    hosts=st.integers(1, 60),
    per_host=st.integers(1, 8),
    rate=st.floats(1e-7, 1e-2),
    confidence=st.sampled_from([0.5, 0.9, 0.99, 0.999]),
)
def test_the_number_is_the_binomial_quantile(hosts: int, per_host: int, rate: float, confidence: float) -> None:
    found = spares_needed(hosts, hosts * per_host, rate, SparePolicy(confidence=confidence))
    away = 1 - exp(-rate * per_host * 24)

    def at_most(count: int) -> float:
        return sum(comb(hosts, each) * away**each * (1 - away) ** (hosts - each) for each in range(count + 1))

    assert at_most(found) >= confidence - 1e-9
    assert found == 0 or at_most(found - 1) < confidence + 1e-9


def test_of_a_large_fleet_it_is_what_it_is() -> None:
    """12,500 hosts of 8, one failure in 50,000 GPU-hours, a day away: 47.9 on average, and 65 at P99."""
    assert spares_needed(12_500, 100_000, 1 / 50_000, P99) == 65


@pytest.mark.parametrize("policy", [SparePolicy(), P99])
def test_without_a_confidence_or_a_failure_none_is_kept(policy: SparePolicy) -> None:
    assert spares_needed(10, 80, 0.0, policy) == 0
    assert spares_needed(10, 80, 0.01, SparePolicy()) == 0


def decide(
    gpus: list[GpuView], queue: list[WaitingJob], attempts: tuple[RunningAttempt, ...] = (), policy: Policy = KEEPS
) -> Plan:
    held = hold(gpus, [uuid for attempt in attempts for uuid in attempt.gpus])
    return plan(held, queue, policy, Workload(NOW_MS, attempts, failures_per_gpu_hour=TWO_OF_SIX))


SIX = racks({"r0": [8, 8, 8], "r1": [8, 8, 8]})


def hosts_of(decided: Plan, name: str) -> list[str]:
    return [node for placed in decided.placements if placed.job_id == name for node, _ in placed.parts]


def test_a_job_that_no_rule_takes_back_leaves_them_alone_and_is_told() -> None:
    decided = decide(SIX, [job("j", nodes=5, gpus=8), job("k", nodes=4, gpus=8, at=1)])
    assert hosts_of(decided, "k") == ["r0h0", "r0h1", "r1h0", "r1h1"], "one of each rack is kept"
    (waiting,) = decided.waiting
    assert any(reason.token is WaitReason.SPARE and reason.num_gpus == 16 for reason in waiting.verdict.reasons)
    assert "16 of those are kept as spares for gangs that lose hosts" in waiting.why


def test_without_the_policy_none_are_kept() -> None:
    assert len(hosts_of(decide(SIX, [job("j", nodes=6, gpus=8)], policy=DEFAULT_POLICY), "j")) == 6


def test_spot_runs_there_and_counts_as_a_spare() -> None:
    assert len(hosts_of(decide(SIX, [job("s", nodes=6, gpus=8, tier="spot")]), "s")) == 6
    lent = tuple(running(f"s{host}", of_host(host)) for host in ("r0h2", "r1h2"))
    assert len(hosts_of(decide(SIX, [job("j", nodes=4, gpus=8)], lent), "j")) == 4


def test_a_gang_that_lost_a_host_has_one_at_once_and_the_next_job_does_not() -> None:
    last: Parts = tuple((NodeId(host), tuple(GpuUuid(uuid) for uuid in of_host(host))) for host in ("r0h0", "r0h1"))
    gpus = racks({"r0": [8, 0, 8], "r1": [8, 8, 8]})
    lost = replace(job("lost", nodes=2, gpus=8, required="rack", keep=last, at=1), interrupted_ms=NOW_MS)
    decided = decide(gpus, [lost, job("other", nodes=3, gpus=8), job("small", nodes=1, gpus=8, at=2)])
    assert hosts_of(decided, "lost") == ["r0h0", "r0h2"]
    assert hosts_of(decided, "other") == [], "three are left, of which one is a spare"
    assert hosts_of(decided, "small") != []


def test_who_has_what_is_kept_is_not_in_the_way_of_an_equal_request() -> None:
    """An on-demand job that may not have spares fails; one that was interrupted and asks for the same does not."""
    last: Parts = ((NodeId("r0h9"), tuple(GpuUuid(uuid) for uuid in of_host("r0h9"))),)
    lost = replace(job("lost", nodes=1, gpus=8, keep=last, at=9), interrupted_ms=NOW_MS)
    gpus = racks({"r0": [8, 8, 0], "r1": [0, 0, 0]})
    decided = decide(gpus, [job("first", gpus=8, tier="reserved"), lost])
    assert hosts_of(decided, "first") == []
    assert hosts_of(decided, "lost") != []
