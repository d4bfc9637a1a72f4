"""What the world itself holds of a place, by no code of the scheduler's."""

from dataclasses import replace

from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.spec import NodeLossRule
from scheduler.model import Reclaim
from scheduler.quota.tenancy import Member, Quota, Tenancy
from scheduler.solve.placement_rule import PlacementRule, Slice
from simulator.planning.rules import Rules
from simulator.world.places import fault_of_place, fault_of_reclaimed, over_quota
from simulator.world.rows import JobRow

A, B, C, LOST = (NodeId(name) for name in ("a", "b", "c", "lost"))
RULES = Rules(
    is_planned=True,
    paths={A: ("b1", "r1"), B: ("b1", "r1"), C: ("b1", "r10"), LOST: ("", "")},
    cohorts={A: "h100", B: "h100", C: "h100", LOST: "a100"},
)
ROW = JobRow(JobId("job"), "key", 2, 2, NodeLossRule.WAIT, 1000, 0, 2, "team", None, 0)
GPUS = {node: (GpuUuid(f"{node}0"), GpuUuid(f"{node}1")) for node in (A, B, C)}


def reclaim(victim: str, *gpus: GpuUuid) -> Reclaim:
    return Reclaim(AttemptId(victim), JobId("job"), 1.0, gpus, (), 0.0)


def test_a_gang_of_one_cohort_may_be_anywhere() -> None:
    assert fault_of_place(RULES, ROW, [A, C]) is None
    assert (fault_of_place(RULES, ROW, [A, LOST]) or ("",))[0] == "I4"


def test_a_required_level_is_one_domain_whose_name_is_known() -> None:
    in_rack = replace(ROW, required_level="rack")
    assert fault_of_place(RULES, in_rack, [A, B]) is None
    assert (fault_of_place(RULES, in_rack, [B, C]) or ("",))[0] == "level"
    assert (fault_of_place(RULES, in_rack, [LOST]) or ("",))[0] == "level"


def test_each_slice_is_in_one_domain_by_rank() -> None:
    pairs = replace(ROW, placement=PlacementRule(slices=(Slice("rack", 2),)))
    assert fault_of_place(RULES, pairs, [A, B]) is None
    assert (fault_of_place(RULES, pairs, [A, C]) or ("",))[0] == "level"


def test_what_is_picked_by_random_is_limited_to_no_rule_of_placement() -> None:
    assert fault_of_place(replace(RULES, is_planned=False), ROW, [A, LOST]) is None


def test_what_teams_hold_their_department_holds() -> None:
    tenancy = Tenancy(
        {TenantId("team"): Member(TenantId("department")), TenantId("other"): Member(TenantId("department"))},
        {(TenantId("department"), "on_demand"): Quota(ceiling=4)},
    )
    rules = replace(RULES, tenancy=tenancy)
    assert over_quota(rules, {("team", "on_demand"): 2, ("other", "on_demand"): 2}, ROW) is None
    assert over_quota(rules, {("team", "on_demand"): 2, ("other", "on_demand"): 3}, ROW)
    assert over_quota(rules, {("team", "on_demand"): 2, ("other", "spot"): 3}, ROW) is None


def test_what_is_reclaimed_makes_one_whole_place() -> None:
    whole = [*GPUS[A], *GPUS[B]]
    assert fault_of_reclaimed(RULES, ROW, whole, [reclaim("v", *GPUS[A])], GPUS) is None
    assert fault_of_reclaimed(RULES, ROW, whole[:3], [reclaim("v", *GPUS[A])], GPUS)
    assert fault_of_reclaimed(RULES, ROW, GPUS[A], [reclaim("v", *GPUS[A])], GPUS)
    assert fault_of_reclaimed(RULES, ROW, whole, [reclaim("v", *GPUS[A]), reclaim("idle", *GPUS[C])], GPUS)
