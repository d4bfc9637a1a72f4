"""From a submission to its hosts: sums, slices, layouts, labels, levels and health, on a real database."""

from collections.abc import Mapping

import pytest
from sqlalchemy import insert, select, update

from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import node_labels
from control.hosts.read import NodeDetail
from control.jobs.job_plans import PLAN, JobPlan, plan_job
from control.placement.fleet_views import placed_views
from muster.db.models import AllocationGpu, AuditEntry, Event, Gpu, GpuStandingChange, Job
from muster.domain.errors import ForbiddenError, NotFoundError, ValidationFailedError
from muster.domain.ids import GpuUuid, JobId
from muster.domain.job.spec import JobSpec
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.placement import PlacementPolicy
from muster.domain.states import Standing
from scheduler.model import Parts
from scheduler.solve.alignment import HostsOnRails
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.fleet_factory import OPERATOR


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Four hosts of two GPUs each."""
    return make_stage(units, clock, num_hosts=4)


def label(stage: Stage, number: int, labels: Mapping[str, str], *remove: str) -> NodeDetail:
    with stage.units.begin(OPERATOR, node_labels.LABEL) as unit:
        return node_labels.set_labels(unit, stage.hosts[number].node_id, labels, remove=remove, reason="moved")


def set_tree(stage: Stage, **tree: object) -> None:
    placement = PlacementPolicy.model_validate(tree, strict=False)
    stage.set_policy(DEFAULT_POLICY.model_copy(update={"placement": placement}))


def submit(stage: Stage, **spec: object) -> JobId:
    return stage.submit("on_demand", by=None, **spec)


def plan(stage: Stage, **spec: object) -> JobPlan:
    asked = {"name": "asked", "program": {"script": "/srv/train.py"}, **spec}
    with stage.units.begin(stage.fleet.tenant, PLAN, dry_run=True, quiet=True) as unit:
        return plan_job(unit, JobSpec.model_validate(asked, strict=False))


def slots(stage: Stage, parts: Parts) -> list[list[int]]:
    with stage.units.read() as session:
        return [[session.get_one(Gpu, uuid).slot_index for uuid in uuids] for _, uuids in parts]


def faults(stage: Stage, **spec: object) -> list[tuple[str | None, str]]:
    with pytest.raises(ValidationFailedError) as caught:
        submit(stage, **spec)
    return [(fault.pointer, fault.code) for fault in caught.value.faults]


def hosts_of(stage: Stage, job_id: JobId) -> list[int]:
    """By their numbers, in rank order; none of a job that was not placed."""
    number_of = {host.node_id: number for number, host in enumerate(stage.hosts)}
    placements = [placed for placed in stage.cycle().placements if placed.job_id == job_id]
    return [number_of[node] for placed in placements for node, _ in placed.parts]


def why(stage: Stage, job_id: JobId) -> str:
    stage.cycle()
    with stage.units.read() as session:
        return session.get_one(Job, job_id).state_reason


def test_a_sum_of_gpus_becomes_hosts_by_the_largest_that_are_enrolled(stage: Stage) -> None:
    job_id = submit(stage, shape={"gpus": 6})
    assert len(hosts_of(stage, job_id)) == 3
    with stage.units.read() as session:
        shape = job_request(session.get_one(Job, job_id)).shape
    assert (shape.nodes, shape.gpus_per_node, shape.gpus) == (3, 2, None)


def test_gpus_of_equal_facts_share_them(stage: Stage) -> None:
    """100,000 are read in a cycle."""
    with stage.units.read() as session:
        views = placed_views(session, stage.clock.now, DEFAULT_POLICY)
    assert len(views) == 8
    assert len({id(view.facts) for view in views}) == 1


def test_a_site_is_a_level_by_the_hosts_labels_and_a_slice_stands_in_one(stage: Stage) -> None:
    set_tree(stage, levels=["site", "rack"])
    for number, site in enumerate(["ams", "fra", "ams", "fra"]):
        label(stage, number, {"site": site})
    gang = {"shape": {"nodes": 2, "gpus_per_node": 1}}
    found = hosts_of(stage, submit(stage, **gang, topology={"required": "site"}))
    assert {number % 2 for number in found} in ({0}, {1})
    four = {"shape": {"nodes": 4, "gpus_per_node": 1}, "topology": {"slices": [{"level": "site", "ranks": 2}]}}
    assert hosts_of(stage, submit(stage, **four)) in (
        [0, 2, 1, 3],
        [2, 0, 1, 3],
        [0, 2, 3, 1],
        [2, 0, 3, 1],
    )
    three = submit(stage, shape={"nodes": 3}, topology={"required": "site"})
    assert "in one site" in why(stage, three)


def test_labels_choose_hosts_and_a_removed_one_lets_the_job_wait(stage: Stage) -> None:
    label(stage, 2, {"generation": "new"})
    asks = {"node_labels": {"required": {"generation": ["new", "newest"]}}}
    assert hosts_of(stage, submit(stage, **asks)) == [2]
    label(stage, 2, {}, "generation")
    job_id = submit(stage, **asks)
    assert "8 on hosts whose labels leave them out" in why(stage, job_id)
    with stage.units.read() as session:
        details = session.scalars(select(AuditEntry.detail).where(AuditEntry.action == "node.label")).all()
        kinds = session.scalars(select(Event.kind).where(Event.kind == "node.labelled")).all()
    assert [detail["to"] for detail in details] == [{"generation": "new"}, {}]
    assert len(kinds) == 2


def test_a_change_of_labels_that_changes_nothing_leaves_no_trace_and_a_wrong_one_is_refused(stage: Stage) -> None:
    label(stage, 0, {"site": "ams"})
    with stage.units.begin(OPERATOR, node_labels.LABEL, quiet=True) as unit:
        node_labels.set_labels(unit, stage.hosts[0].node_id, {"site": "ams"}, reason="again")
    with stage.units.read() as session:
        assert len(session.scalars(select(AuditEntry).where(AuditEntry.action == "node.label")).all()) == 1
    with pytest.raises(ValidationFailedError, match="set as well: site"):
        label(stage, 0, {"site": "fra"}, "site")
    with pytest.raises(ValidationFailedError, match="64 labels at most; it would have 65"):
        label(stage, 0, {f"l{number}": "x" for number in range(64)})
    with stage.units.begin(OPERATOR, node_labels.LABEL) as unit, pytest.raises(NotFoundError):
        node_labels.set_labels(unit, "nobody", {"site": "ams"}, reason="moved")
    with stage.units.begin(stage.fleet.tenant, node_labels.LABEL) as unit, pytest.raises(ForbiddenError):
        node_labels.set_labels(unit, stage.hosts[0].node_id, {"site": "ams"}, reason="moved")


def test_a_gang_takes_the_rails_that_its_hosts_labels_state_are_the_same_and_its_plan_reports_it(stage: Stage) -> None:
    for number, rails in enumerate(("0,1", "0,1", "1,0", "1,0")):
        label(stage, number, {"rails": rails})
    for number in (0, 3):
        label(stage, number, {"generation": "first"})
    first = {"node_labels": {"required": {"generation": ["first"]}}, "shape": {"nodes": 2, "gpus_per_node": 1}}
    planned = plan(stage, **first)
    assert planned.alignment is not None
    assert planned.alignment.rails == HostsOnRails((0,), 2)
    submit(stage, **first)
    (placed,) = stage.cycle().placements
    assert slots(stage, placed.parts) == [[0], [1]], "the second host is wired the other way round"
    whole = submit(stage, shape={"nodes": 1, "gpus_per_node": 2}, node_labels={"required": {"rails": ["1,0"]}})
    (placed,) = [one for one in stage.cycle().placements if one.job_id == whole]
    with stage.units.read() as session:
        query = select(AllocationGpu.gpu_uuid).where(AllocationGpu.node_id == stage.hosts[2].node_id)
        stored = session.scalars(query.order_by(AllocationGpu.local_index)).all()
    assert tuple(stored) == placed.parts[0][1]
    assert slots(stage, placed.parts) == [[1, 0]]


def test_a_label_that_states_no_rails_is_refused_with_what_is_accepted(stage: Stage) -> None:
    with pytest.raises(ValidationFailedError) as caught:
        label(stage, 0, {"rails": "0,2"})
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.code) == ("/labels/rails", "bad_rails")
    assert "such as 0,1,2,3" in fault.detail
    label(stage, 0, {"rails": "none"})


def test_a_tensor_parallel_group_over_hosts_is_refused_or_flagged_where_it_is_forced(stage: Stage) -> None:
    gang = {"shape": {"nodes": 2, "gpus_per_node": 2}}
    assert faults(stage, **gang, layout={"tp": 4}) == [("/layout/tp", "tp_across_nodes")]
    forced = submit(stage, **gang, layout={"tp": 4, "allow_tp_across_nodes": True})
    assert len(hosts_of(stage, forced)) == 2
    with stage.units.read() as session:
        (detail,) = session.scalars(select(AuditEntry.detail).where(AuditEntry.subject_id == forced)).all()
    assert detail["tp_across_nodes"] is True
    set_tree(stage, levels=["nvl", "rack"], nvlink_level="nvl")
    within = submit(stage, **gang, layout={"tp": 4})
    assert "each 2 hosts in one nvl" in why(stage, within), "no host says its NVLink domain"


@pytest.mark.parametrize(
    ("spec", "pointer", "code"),
    [
        ({"topology": {"slices": [{"level": "pod", "ranks": 2}]}}, "/topology/slices/0/level", "unknown_level"),
        ({"topology": {"balance": "pod"}}, "/topology/balance", "unknown_level"),
        ({"topology": {"slices": [{"level": "rack", "ranks": 3}]}}, "/topology/slices/0/ranks", "uneven_slices"),
        (
            {"shape": {"nodes": 3, "gpus_per_node": 2}, "topology": {"slices": [{"level": "rack", "ranks": 4}]}},
            "/topology/slices/0/ranks",
            "uneven_slices",
        ),
        ({"layout": {"tp": 2, "pp": 3}}, "/layout", "not_its_ranks"),
        (
            {"layout": {"pp": 2, "fsdp": 2}, "shape": {"nodes": 2, "gpus_per_node": 2, "min_nodes": 1}},
            "/shape",
            "elastic",
        ),
        (
            {"layout": {"tp": 2, "pp": 3}, "shape": {"nodes": 2, "gpus_per_node": 3}},
            "/layout/tp",
            "tp_across_nodes",
        ),
    ],
)
def test_what_no_wait_could_make_right_is_refused_by_its_field(
    stage: Stage, spec: dict[str, object], pointer: str, code: str
) -> None:
    assert faults(stage, **{"shape": {"nodes": 2, "gpus_per_node": 2}, **spec}) == [(pointer, code)]


def test_slices_that_cut_each_other_are_refused(stage: Stage) -> None:
    set_tree(stage, levels=["block", "rack"])
    slices = [{"level": "block", "ranks": 3}, {"level": "rack", "ranks": 2}]
    shape = {"nodes": 6, "gpus_per_node": 1}
    assert faults(stage, shape=shape, topology={"slices": slices}) == [("/topology/slices", "uneven_slices")]
    wide = {"slices": [{"level": "block", "ranks": 3}], "balance": "rack"}
    assert faults(stage, shape=shape, topology=wide) == [("/topology/balance", "within_slices")]


def weaken(stage: Stage, uuids: list[GpuUuid], score: int) -> None:
    with stage.units.engine.begin() as connection:
        connection.execute(update(Gpu).where(Gpu.uuid.in_(uuids)).values(score=score))


def costs(stage: Stage) -> dict[GpuUuid, int]:
    """Of the GPUs that are not sound."""
    with stage.units.read() as session:
        views = placed_views(session, stage.clock.now, DEFAULT_POLICY)
    return {view.uuid: view.health_cost for view in views if view.health_cost}


def test_a_weak_score_and_a_boards_quarantines_keep_a_gang_away_and_draw_a_small_spot_job(stage: Stage) -> None:
    with stage.units.read() as session:
        weak = list(session.scalars(select(Gpu.uuid).where(Gpu.node_id == stage.hosts[0].node_id).order_by(Gpu.uuid)))
    weaken(stage, weak, 60)
    assert 0 not in hosts_of(stage, submit(stage, shape={"nodes": 3, "gpus_per_node": 2}))
    assert hosts_of(stage, stage.submit("spot")) == [0]
    with stage.units.engine.begin() as connection:
        moved = {"target": Standing.QUARANTINED, "at": stage.clock.now, "reason": "xid", "actor": "rule"}
        row = {"gpu_uuid": weak[0], "evidence_ids": [], **moved}
        connection.execute(insert(GpuStandingChange), [row] * 3)
    assert costs(stage) == {weak[0]: 2_600, weak[1]: 2_000}
    stage.clock.advance(DEFAULT_POLICY.placement.hazard.history_s + 1)
    assert costs(stage) == {weak[0]: 2_000, weak[1]: 2_000}
