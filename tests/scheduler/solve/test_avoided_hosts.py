"""Hosts at fault are avoided for as long as the gang has anywhere else to be."""

from dataclasses import replace

from muster.domain.ids import NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.model import GpuView, WaitingJob, Workload
from scheduler.planner import plan
from tests.scheduler.fleets import hold, host, job, racks


def nodes_of(gpus: list[GpuView], wanted: WaitingJob) -> set[str] | None:
    placements = plan(gpus, [wanted], DEFAULT_POLICY, Workload(now_ms=0)).placements
    return {node_id for one in placements for node_id, _ in one.parts} or None


def avoiding(wanted: WaitingJob, *names: str) -> WaitingJob:
    return replace(wanted, avoid_nodes=frozenset(NodeId(name) for name in names))


def test_a_gang_waits_for_other_hosts_while_there_are_any() -> None:
    gpus = racks({"r0": [8, 8], "r1": [8, 0]})
    assert nodes_of(gpus, avoiding(job("j", nodes=2, gpus=8, required="rack"), "r0h0")) is None


def test_where_every_rack_has_a_host_at_fault_one_of_them_is_had_back() -> None:
    """It had run in both, and both times a host failed it: it would wait without end in a fleet that is idle."""
    gpus = racks({"r0": [8, 8], "r1": [8, 8]})
    wanted = avoiding(job("j", nodes=2, gpus=8, required="rack"), "r0h0", "r1h1")
    assert nodes_of(gpus, wanted) == {"r1h0", "r1h1"}


def test_no_more_hosts_at_fault_are_had_back_than_it_takes() -> None:
    gpus = [*host("a", 8), *host("b", 8), *host("c", 8)]
    assert nodes_of(gpus, avoiding(job("j", nodes=2, gpus=8), "a", "b")) == {"b", "c"}


def test_a_cohort_that_is_too_small_without_it_has_it_back() -> None:
    gpus = [*host("a", 8), *host("b", 8), *host("c", 8, cohort="a100")]
    assert nodes_of(gpus, avoiding(job("j", nodes=2, gpus=8), "b")) == {"a", "b"}


def test_a_host_that_is_avoided_and_gone_helps_none() -> None:
    gpus = [*host("a", 8), *hold(host("b", 8), {"b-0"})]
    assert nodes_of(gpus, avoiding(job("j", nodes=3, gpus=8), "b")) is None
