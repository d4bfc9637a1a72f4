"""Elastic gangs: as many of the requested hosts as there are, never fewer than the fewest; and growth."""

from dataclasses import replace

from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY, ElasticPolicy
from scheduler.model import ElasticGang, GpuView, Plan, ResumeHold, RunningAttempt, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.quota.tenancy import Tenancy
from tests.scheduler.fleets import NOW_MS, hold, job, of_host, racks, running, standing

NONE = Workload(NOW_MS)


def elastic(name: str, fewest: int, nodes: int, most: int, **words: object) -> WaitingJob:
    return replace(job(name, nodes=nodes, gpus=8), min_nodes=fewest, max_nodes=most, **words)  # type: ignore[arg-type]


def gang(name: str, hosts: list[str], most: int, *, minutes: float = 60, tier: str = "on_demand") -> RunningAttempt:
    parts = tuple((NodeId(each), tuple(map(GpuUuid, of_host(each)))) for each in hosts)
    uuids = [uuid for _, part in parts for uuid in part]
    attempt = running(name, uuids, tier=tier, minutes=minutes)
    return replace(attempt, elastic=ElasticGang(parts, 1, most, 8))


def fleet(num_hosts: int, attempts: list[RunningAttempt]) -> list[GpuView]:
    return hold(racks({"r0": [8] * num_hosts}), [uuid for attempt in attempts for uuid in attempt.gpus])


def with_running(num_hosts: int, attempts: list[RunningAttempt], queue: list[WaitingJob] | None = None) -> Plan:
    return plan(fleet(num_hosts, attempts), queue or [], DEFAULT_POLICY, replace(NONE, running=tuple(attempts)))


def sizes(decided: Plan) -> dict[str, int]:
    return {placement.job_id: len(placement.parts) for placement in decided.placements}


def test_it_starts_with_what_is_free_between_its_fewest_and_its_preference() -> None:
    assert sizes(plan(fleet(5, []), [elastic("j", 4, 8, 8)], DEFAULT_POLICY)) == {"j": 5}
    assert sizes(plan(fleet(4, []), [elastic("j", 4, 8, 8)], DEFAULT_POLICY)) == {"j": 4}
    decided = plan(fleet(3, []), [elastic("j", 4, 8, 8)], DEFAULT_POLICY)
    assert sizes(decided) == {}
    assert "needs 4 to 8 × 8 GPUs of one cohort" in decided.waiting[0].why
    assert "only 3 of 4 hosts" in decided.waiting[0].why


def test_it_stays_within_its_required_level() -> None:
    wanted = elastic("j", 1, 4, 4, required_level="rack")
    (placement,) = plan(racks({"r0": [8, 8], "r1": [8, 8, 8]}), [wanted], DEFAULT_POLICY).placements
    assert [node for node, _ in placement.parts] == ["r1h0", "r1h1", "r1h2"]


def test_beyond_its_preference_it_takes_what_none_waits_for() -> None:
    assert sizes(plan(fleet(6, []), [elastic("j", 1, 2, 4)], DEFAULT_POLICY)) == {"j": 4}
    behind = job("behind", nodes=7, gpus=8, at=1)
    assert sizes(plan(fleet(6, []), [elastic("j", 1, 2, 4), behind], DEFAULT_POLICY)) == {"j": 4}, "it can never run"
    taken = hold(fleet(8, []), of_host("r0h7"))
    assert sizes(plan(taken, [elastic("j", 1, 2, 4), behind], DEFAULT_POLICY)) == {"j": 2}
    small = job("small", nodes=3, gpus=8, at=1)
    assert sizes(plan(fleet(6, []), [elastic("j", 1, 2, 4), small], DEFAULT_POLICY)) == {"j": 3, "small": 3}


def test_a_quota_makes_it_smaller_before_it_makes_it_wait() -> None:
    limited = replace(NONE, tenancy=Tenancy.of_ceilings({(TenantId("waiter"), "on_demand"): 20}))
    assert sizes(plan(fleet(6, []), [elastic("j", 1, 4, 6)], DEFAULT_POLICY, limited)) == {"j": 2}
    decided = plan(fleet(6, []), [elastic("j", 3, 4, 6)], DEFAULT_POLICY, limited)
    assert decided.waiting[0].why.startswith("no quota is left for 24 GPUs: its tenant holds 0 of the 20 GPUs")


def test_after_a_fault_it_goes_on_at_once_on_what_is_left_of_its_hosts() -> None:
    last = tuple((NodeId(each), tuple(map(GpuUuid, of_host(each)))) for each in ("r0h0", "r0h1", "r0h2"))
    wanted = elastic("j", 1, 3, 3, keep=last, avoid_nodes=frozenset({NodeId("r0h1")}))
    (placement,) = plan(fleet(3, []), [wanted], DEFAULT_POLICY).placements
    assert [node for node, _ in placement.parts] == ["r0h0", "r0h2"]


def test_only_for_its_fewest_anything_is_reclaimed() -> None:
    spot = [running(name, of_host(f"r0h{number}"), tenant=name) for number, name in enumerate("abc")]
    decided = with_running(3, spot, [elastic("j", 2, 3, 3, tier="reserved")])
    assert len(decided.reclaims) == 2
    assert len(decided.reclaims[0].hold) == 16
    decided = with_running(4, spot, [elastic("j", 1, 3, 3, tier="reserved")])
    assert (sizes(decided), decided.reclaims) == ({"j": 1}, ())


def test_what_is_reclaimed_for_its_fewest_still_stands_in_the_next_cycle() -> None:
    attempts = [running("a", of_host("r0h0"))]
    wanted = elastic("j", 1, 3, 3, tier="reserved")
    workload = replace(NONE, running=tuple(attempts), reclaims=(standing("a", "j", of_host("r0h0")),))
    decided = plan(fleet(1, attempts), [wanted], DEFAULT_POLICY, workload)
    assert (decided.withdrawals, decided.lapses, decided.reclaims) == ((), (), ())
    assert "GPUs are being reclaimed for it" in decided.waiting[0].why


def test_it_grows_on_its_own_hosts_and_idle_ones_near_them() -> None:
    (growth,) = with_running(4, [gang("a", ["r0h2"], 3)]).growths
    assert (growth.attempt_id, growth.job_id, growth.from_nodes) == ("a", "job-of-a", 1)
    assert [node for node, _ in growth.parts] == ["r0h2", "r0h0", "r0h1"]


def test_it_does_not_grow_soon_nor_for_little_nor_while_it_stops() -> None:
    young = gang("a", ["r0h0"], 2, minutes=4.9)
    assert with_running(2, [young]).growths == ()
    assert with_running(2, [replace(gang("a", ["r0h0"], 2), is_stopping=True)]).growths == ()
    hosts = [f"r0h{number}" for number in range(11)]
    assert with_running(12, [gang("a", hosts, 20)]).growths == (), "one host of eleven is less than a tenth"
    assert len(with_running(13, [gang("a", hosts, 20)]).growths) == 1
    generous = DEFAULT_POLICY.model_copy(update={"elastic": ElasticPolicy(min_gain_fraction=0.0)})
    attempts = [gang("a", hosts, 20)]
    workload = replace(NONE, running=tuple(attempts))
    assert len(plan(fleet(12, attempts), [], generous, workload).growths) == 1


def test_it_does_not_grow_while_any_waits_what_could_use_the_gpus() -> None:
    attempts = [gang("a", ["r0h0"], 3), running("b", of_host("r0h1"), tier="on_demand")]
    wide = job("wide", nodes=3, gpus=8)
    assert with_running(3, attempts, [wide]).growths == ()
    assert len(with_running(3, attempts, [job("impossible", nodes=4, gpus=8)]).growths) == 1
    may_not = replace(NONE, running=tuple(attempts), may_grow=False)
    assert plan(fleet(3, attempts), [], DEFAULT_POLICY, may_not).growths == ()


def test_it_grows_within_its_tenants_quota() -> None:
    attempts = [gang("a", ["r0h0"], 4)]
    workload = replace(
        NONE, running=tuple(attempts), tenancy=Tenancy.of_ceilings({(TenantId("owner"), "on_demand"): 16})
    )
    (growth,) = plan(fleet(4, attempts), [], DEFAULT_POLICY, workload).growths
    assert len(growth.parts) == 2


def test_two_of_them_never_grow_into_the_same_hosts() -> None:
    decided = with_running(4, [gang("a", ["r0h0"], 3, minutes=50), gang("b", ["r0h1"], 3, minutes=60)])
    assert [(growth.attempt_id, len(growth.parts)) for growth in decided.growths] == [("b", 3)]


def test_what_it_will_go_on_with_is_given_to_no_other() -> None:
    own = ResumeHold(JobId("job-of-a"), tuple(map(GpuUuid, of_host("r0h0") + of_host("r0h1"))))
    attempts = [replace(gang("a", ["r0h0"], 2), is_stopping=True, ends_ms=NOW_MS + 1000)]
    workload = replace(NONE, running=tuple(attempts), holds=(own,))
    other = job("other", gpus=8, tier="reserved")
    decided = plan(fleet(2, attempts), [other], DEFAULT_POLICY, workload)
    assert (sizes(decided), decided.lapses) == ({}, ())
    free = fleet(2, [])
    back = replace(elastic("job-of-a", 1, 2, 2), keep=gang("a", ["r0h0"], 2).elastic.parts)  # type: ignore[union-attr]
    decided = plan(free, [other, back], DEFAULT_POLICY, replace(NONE, holds=(own,)))
    assert sizes(decided) == {"job-of-a": 2}


def test_a_hold_that_does_not_suffice_ends() -> None:
    own = ResumeHold(JobId("j"), tuple(map(GpuUuid, of_host("r0h0"))))
    decided = plan(fleet(1, []), [elastic("j", 2, 2, 4)], DEFAULT_POLICY, replace(NONE, holds=(own,)))
    (lapse,) = decided.lapses
    assert (lapse.beneficiary, sizes(decided)) == ("j", {})
