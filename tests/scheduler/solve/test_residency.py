"""A tenant's residency rule in every plan: nothing is placed, held or grown outside its sites; and a plain reason."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.model import FirmStart, GpuView, Plan, ResumeHold, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.solve.placement_rule import LabelRule, PlacementRule
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, host, job, of_host, running, standing
from tests.scheduler.test_all_features import MANY, full_worlds
from tests.scheduler.test_plan_properties import World

AMS = frozenset({"ams"})
SITES = ("ams", "fra", None)
IN_AMS = PlacementRule(labels=LabelRule(sites=AMS))


def at(gpus: Sequence[GpuView], site: str | None) -> list[GpuView]:
    """The same GPUs, on hosts with that site; None: without one."""
    own = () if site is None else (("site", site),)
    return [replace(gpu, labels=tuple(sorted((*gpu.labels, *own)))) for gpu in gpus]


def bound(rule: PlacementRule) -> PlacementRule:
    return replace(rule, labels=replace(rule.labels, sites=AMS))


@st.composite
def resident_worlds(draw: st.DrawFn) -> World:
    """Worlds whose hosts have sites, or none, and in which a rule binds some waiting jobs and each elastic gang."""
    world = draw(full_worlds())
    sites = {node: draw(st.sampled_from(SITES)) for node in dict.fromkeys(gpu.node_id for gpu in world.gpus)}
    gpus = [each for gpu in world.gpus for each in at([gpu], sites[gpu.node_id])]
    queue = [replace(one, rule=bound(one.rule)) if draw(st.booleans()) else one for one in world.queue]
    running = tuple(
        one if one.elastic is None else replace(one, elastic=replace(one.elastic, rule=bound(one.elastic.rule)))
        for one in world.workload.running
    )
    return World(gpus, queue, replace(world.workload, running=running))


def given_to(world: World, decided: Plan) -> Iterator[tuple[WaitingJob, Sequence[GpuUuid]]]:
    """Each GPU that the plan gives to a waiting job, or keeps for it."""
    jobs = {one.job_id: one for one in world.queue}
    for placed in decided.placements:
        yield jobs[placed.job_id], [uuid for _, part in placed.parts for uuid in part]
    for held in decided.holds:
        yield jobs[held.job_id], held.gpus
    for reclaim in decided.reclaims:
        yield jobs[reclaim.beneficiary], reclaim.hold
    for waiting in decided.waiting:
        if waiting.firm_start is not None:
            yield jobs[waiting.job_id], waiting.firm_start.gpus


@MANY
@given(resident_worlds())
def test_no_gpu_outside_its_sites_is_given_to_a_job_or_is_its_hold(world: World) -> None:
    decided = world.plan()
    site_of = {gpu.uuid: dict(gpu.labels).get("site") for gpu in world.gpus}
    for one, uuids in given_to(world, decided):
        if one.rule.labels.sites is not None:
            assert {site_of[uuid] for uuid in uuids} <= AMS
    for growth in decided.growths:
        assert {site_of[uuid] for _, part in growth.parts for uuid in part} <= AMS, "it leaves what is outside by now"


def test_a_job_whose_tenants_sites_are_too_small_reports_that_and_is_not_advised_to_leave_them() -> None:
    gpus = [*at(host("a", 8), "ams"), *at(host("b", 8), "fra"), *host("c", 8)]
    waits = replace(job("j", nodes=2, gpus=8), rule=IN_AMS)
    (waiting,) = plan(gpus, [waits], DEFAULT_POLICY).waiting
    assert waiting.verdict.binding is WaitReason.RESIDENCY
    assert waiting.why.startswith(
        "held by residency: its tenant's jobs may run at the site ams only, and 1 of 3 hosts are there; "
    )
    assert "16 on hosts outside its tenant's sites" in waiting.why
    assert [(one.token, one.num_gpus) for one in waiting.verdict.reasons] == [(WaitReason.RESIDENCY, 16)]


def test_a_demand_of_the_job_and_the_rule_of_its_tenant_are_counted_apart() -> None:
    new = LabelRule(required=(("gen", frozenset({"new"})),), sites=AMS)
    gpus = [*at(host("a", 8), "ams"), *at(host("b", 4), "fra")]
    wanted = replace(job("j", gpus=8), rule=PlacementRule(labels=new))
    (waiting,) = plan(gpus, [wanted], DEFAULT_POLICY).waiting
    counted = {one.token: one.num_gpus for one in waiting.verdict.reasons}
    assert counted == {WaitReason.RESIDENCY: 4, WaitReason.LABELS: 8}


def test_an_interrupted_gang_keeps_no_host_that_is_outside_by_now_and_gets_another() -> None:
    """The rule was tightened while it ran: its good GPUs elsewhere are as lost."""
    gpus = [*at(host("a", 4), "ams"), *at(host("b", 4), "fra"), *at(host("c", 4), "ams")]
    kept = tuple((gpu.node_id, tuple(one.uuid for one in gpus if one.node_id == gpu.node_id)) for gpu in gpus[:8:4])
    resumes = replace(job("j", nodes=2, gpus=4, keep=kept), rule=IN_AMS, interrupted_ms=NOW_MS)
    (placed,) = plan(gpus, [resumes], DEFAULT_POLICY).placements
    assert [node for node, _ in placed.parts] == ["a", "c"]


def test_a_reclaim_takes_no_gpus_outside_for_a_bound_job_though_they_cost_less() -> None:
    gpus = hold([*at(host("a", 4), "ams"), *at(host("b", 4), "fra")], [*of_host("a", 4), *of_host("b", 4)])
    inside, outside = (
        running("in", of_host("a", 4), saved_minutes=100),
        running("out", of_host("b", 4), saved_minutes=1),
    )
    workload = Workload(NOW_MS, (inside, outside), peak_gpus={inside.tenant_id: 999})
    wanted = job("j", gpus=4, tier="reserved")
    assert victims(plan(gpus, [wanted], DEFAULT_POLICY, workload)) == ["out"]
    assert victims(plan(gpus, [replace(wanted, rule=IN_AMS)], DEFAULT_POLICY, workload)) == ["in"]


def victims(decided: Plan) -> list[str]:
    return [each.victim for each in decided.reclaims]


def test_a_hold_of_a_job_from_before_its_rule_was_tightened_is_not_used() -> None:
    """A hold after a reclaim, and the place of a firm start, are both outside by now."""
    gpus = [*at(host("a", 4), "ams"), *at(host("b", 4), "fra")]
    outside = [GpuUuid(uuid) for uuid in of_host("b", 4)]
    firm = FirmStart(NOW_MS + MINUTE_MS, tuple(outside))
    starts = replace(job("j", gpus=4, tier="reserved"), rule=IN_AMS, firm_start=firm)
    workload = Workload(NOW_MS, reclaims=(standing("gone", "j", outside),))
    for known in (Workload(NOW_MS), workload):
        decided = plan(gpus, [starts], DEFAULT_POLICY, known)
        given = {uuid for one, uuids in given_to(World(gpus, [starts], known), decided) for uuid in uuids}
        assert given == set(of_host("a", 4))


def test_gpus_outside_that_are_kept_for_an_interrupted_job_are_free_for_others_at_once() -> None:
    """It cannot continue on them any more, whether or not there is room inside."""
    outside = at(host("b", 4), "fra")
    kept = ((outside[0].node_id, tuple(gpu.uuid for gpu in outside)),)
    resumes = replace(job("j", gpus=4, keep=kept), rule=IN_AMS, interrupted_ms=NOW_MS)
    workload = Workload(NOW_MS, holds=(ResumeHold(resumes.job_id, kept[0][1]),))
    others = job("o", gpus=4, tenant="others", at=1)
    decided = plan(outside, [resumes, others], DEFAULT_POLICY, workload)
    assert [each.beneficiary for each in decided.lapses] == ["j"]
    assert [each.job_id for each in decided.placements] == ["o"]
