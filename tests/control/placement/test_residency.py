"""A tenant's residency rule over PostgreSQL: every way to a place and to the store keeps it; outside is named."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from control.content import bundles
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.hosts import node_labels
from control.incidents.keeping import KEEP
from control.jobs.job_plans import EXPLAIN, PLAN, JobPlan, explain_job, plan_job
from control.placement.placement import PLACE, PlacementLostError, place
from control.placement.scheduling import question
from control.policy.policies import active_policy
from control.system.attention import keep_attention_once
from control.tenants import tenants
from control.tenants.guarantees import guarantees_now
from control.tenants.residency import READ, SET, ResidencyFound, set_residency, show_residency
from muster.db.models import AuditEntry, Incident, Job, NodeBundle
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.ids import JobId, TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY, DispatchPolicy
from muster.domain.principals import Principal, system_principal
from muster.domain.residency import OutsideKind, Residency, StorePlace
from muster.domain.states import JobState
from scheduler.model import Placement
from scheduler.planner import plan
from tests.control.conftest import SetClock
from tests.control.content.conftest import manifest
from tests.control.reclaim.stage import DONE, SCHEDULER, Stage, make_stage
from tests.fleet_factory import OPERATOR
from tests.lock_waits import wait_for_a_lock

AMS = Residency(sites=frozenset({"ams"}))
MAIN = StorePlace("main", "ams")
COMMIT = {"url": "https://git.example.org/code", "commit": "0a" * 20}
WHOLE = {"nodes": 1, "gpus_per_node": 2}
LIFTED = Residency()


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Four hosts of two GPUs each: two in ams, one in fra, and one without a site."""
    stage = make_stage(units, clock, num_hosts=4)
    for number, site in enumerate(["ams", "fra", "ams"]):
        label(stage, number, {"site": site})
    return stage


def label(stage: Stage, number: int, labels: Mapping[str, str], *remove: str) -> None:
    with stage.units.begin(OPERATOR, node_labels.LABEL) as unit:
        node_labels.set_labels(unit, stage.hosts[number].node_id, labels, remove=remove, reason="moved")


def own(stage: Stage) -> TenantId:
    assert stage.fleet.tenant.tenant_id is not None
    return stage.fleet.tenant.tenant_id


def bind(
    stage: Stage, rule: Residency, tenant_id: TenantId | None = None, store: StorePlace | None = MAIN, **how: bool
) -> ResidencyFound:
    with stage.units.begin(OPERATOR, SET, **how) as unit:
        return set_residency(unit, tenant_id or own(stage), rule, store=store, reason="their contract")


def shown(stage: Stage, by: Principal = OPERATOR) -> ResidencyFound:
    with stage.units.begin(by, READ, quiet=True) as unit:
        return show_residency(unit, own(stage), store=MAIN)


def hosts_of(stage: Stage, job_id: JobId) -> list[int]:
    """By their numbers, of the parts that run."""
    number_of = {host.node_id: number for number, host in enumerate(stage.hosts)}
    return sorted(number_of[host.node_id] for host, _ in stage.running.get(job_id, []))


def outside(found: ResidencyFound) -> list[tuple[OutsideKind, str, tuple[str, ...]]]:
    return [(one.kind, one.subject_id, one.places) for one in found.outside]


def planned(stage: Stage) -> Placement:
    with stage.units.read() as session:
        asked = question(session, stage.clock.now)
        assert asked is not None
        (placement,) = plan(asked.gpus, asked.queue, asked.policy, asked.workload).placements
    return placement


def commit(stage: Stage, placement: Placement) -> object:
    with stage.units.begin(SCHEDULER, PLACE) as unit:
        return place(unit, placement, active_policy(unit.session), planned_under=guarantees_now(unit.session))


def plan_of(stage: Stage, **spec: object) -> JobPlan:
    document = {"name": "asked", "program": {"script": "/srv/train.py"}, **spec}
    with stage.units.begin(stage.fleet.tenant, PLAN, dry_run=True, quiet=True) as unit:
        return plan_job(unit, JobSpec.model_validate(document, strict=False), store=MAIN)


def test_jobs_of_a_bound_tenant_run_at_its_sites_alone_and_others_anywhere(stage: Stage) -> None:
    bind(stage, AMS)
    jobs = [stage.submit("on_demand", shape=WHOLE) for _ in range(3)]
    other = stage.submit("on_demand", by=stage.add_tenant("others"), shape={"nodes": 2, "gpus_per_node": 2})
    stage.cycle()
    stage.beat_all()
    assert sorted(number for job_id in jobs for number in hosts_of(stage, job_id)) == [0, 2]
    assert hosts_of(stage, other) == [1, 3], "a host without a site is outside, and free to others"


def test_why_it_waits_is_reported_in_plain_words_by_plan_and_explanation(stage: Stage) -> None:
    bind(stage, AMS)
    gang = {"nodes": 3, "gpus_per_node": 2}
    job_id = stage.submit("on_demand", shape=gang)
    stage.cycle()
    held = "held by residency: its tenant's jobs may run at the site ams only, and 2 of 4 hosts are there"
    assert stage.job(job_id).state_reason.startswith(held)
    with stage.units.begin(OPERATOR, EXPLAIN, quiet=True) as unit:
        explained = explain_job(unit, job_id).verdict
    for verdict in (plan_of(stage, shape=gang).verdict, explained):
        assert verdict is not None
        assert verdict.binding is WaitReason.RESIDENCY
        assert verdict.why.startswith(held)


def test_a_rule_of_a_department_holds_for_its_teams_together_with_their_own(stage: Stage) -> None:
    department = stage.add_tenant("research").tenant_id
    assert department is not None
    with stage.units.begin(OPERATOR, tenants.PLACE) as unit:
        tenants.place(unit, own(stage), tenants.Place(department), reason="their department")
    bind(stage, Residency(sites=frozenset({"ams", "fra"})), department, store=None)
    found = bind(stage, Residency(sites=frozenset({"fra", "nyc"})), store=None)
    assert (found.own.sites, found.holds.sites) == (frozenset({"fra", "nyc"}), frozenset({"fra"}))
    job_id = stage.run("on_demand", shape=WHOLE)
    assert hosts_of(stage, job_id) == [1]


def is_bound(stage: Stage, on: int) -> None:
    del on
    bind(stage, Residency(sites=frozenset({"nyc"})), store=None)


def loses_its_site(stage: Stage, on: int) -> None:
    label(stage, on, {}, "site")


def department_is_bound(stage: Stage, on: int) -> None:
    del on
    department = stage.add_tenant("research").tenant_id
    bind(stage, Residency(sites=frozenset({"nyc"})), department, store=None)
    with stage.units.begin(OPERATOR, tenants.PLACE) as unit:
        tenants.place(unit, own(stage), tenants.Place(department), reason="their department")


@pytest.mark.parametrize("change", [is_bound, loses_its_site, department_is_bound])
def test_a_place_that_is_outside_since_the_plan_is_refused_at_the_commit(
    stage: Stage, change: Callable[[Stage, int], None]
) -> None:
    bind(stage, AMS)
    job_id = stage.submit("on_demand", shape=WHOLE)
    placement = planned(stage)
    (node_id,) = [node for node, _ in placement.parts]
    change(stage, [host.node_id for host in stage.hosts].index(node_id))
    with pytest.raises(PlacementLostError, match="outside the sites"):
        commit(stage, placement)
    assert stage.fleet.attempts(job_id) == []


def test_a_rule_that_is_being_set_is_waited_for_and_seen(stage: Stage) -> None:
    stage.submit("on_demand", shape=WHOLE)
    placement = planned(stage)
    with ThreadPoolExecutor(1) as pool:
        with stage.units.begin(OPERATOR, SET) as other:
            set_residency(other, own(stage), Residency(sites=frozenset({"nyc"})), store=None, reason="a race")
            committing = pool.submit(commit, stage, placement)
            wait_for_a_lock(stage.units)
        with pytest.raises(PlacementLostError, match="outside the sites"):
            committing.result()


def test_a_tightened_rule_stops_nothing_names_what_lies_outside_and_the_next_attempt_is_inside(stage: Stage) -> None:
    label(stage, 0, {"site": "fra"})
    label(stage, 2, {"site": "fra"})
    job_id = stage.run("on_demand", shape=WHOLE, restart={"max_restarts": 1})
    (was,) = hosts_of(stage, job_id)
    with stage.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        unit.session.add(NodeBundle(node_id=stage.hosts[was].node_id, tenant_id=own(stage), digest=b"\1" * 32))
    label(stage, (was + 1) % 4, {"site": "ams"})
    tried = bind(stage, AMS, dry_run=True)
    found = bind(stage, AMS)
    assert outside(tried) == outside(found) == outside(shown(stage))
    hosts = {one.kind: one.places for one in found.outside}
    assert hosts.keys() == {OutsideKind.RUNNING_JOB, OutsideKind.COPIES}
    assert hosts[OutsideKind.RUNNING_JOB] == hosts[OutsideKind.COPIES]
    assert (found.num_hosts, found.num_fleet_hosts) == (1, 4)
    assert stage.job(job_id).state is JobState.ACTIVE
    failed = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 1, "signal": None}}}
    stage.leave(job_id, failed)
    stage.pass_time(120)
    stage.cycle()
    stage.beat_all()
    assert hosts_of(stage, job_id) == [(was + 1) % 4]
    assert [one.kind for one in shown(stage).outside] == [OutsideKind.COPIES]


def test_a_job_that_runs_outside_is_an_incident_until_it_has_ended_there_or_the_host_is_inside_again(
    stage: Stage,
) -> None:
    bind(stage, AMS)
    job_id = stage.run("on_demand", shape=WHOLE)
    (on,) = hosts_of(stage, job_id)
    assert kept(stage) == []
    label(stage, on, {"site": "fra"})
    ((kind, subject, summary),) = kept(stage)
    assert (kind, subject) == ("outside_residency", job_id)
    assert "the rule permits jobs at the site ams only" in summary
    label(stage, on, {"site": "ams"})
    assert kept(stage) == []
    label(stage, on, {}, "site")
    assert len(kept(stage)) == 1
    stage.leave(job_id, DONE)
    assert kept(stage) == []


def kept(stage: Stage) -> list[tuple[str, str, str]]:
    """The open incidents after a round of the keeper."""
    keep_attention_once(stage.units, system_principal("reconciler"))
    with stage.units.read() as session:
        rows = session.scalars(select(Incident).where(Incident.closed_at.is_(None))).all()
        return [(row.kind, row.subject_id, row.summary) for row in rows]


def test_a_preflight_is_made_by_hosts_at_its_sites_alone_and_is_withdrawn_from_one_that_is_outside_by_now(
    stage: Stage,
) -> None:
    stage.set_policy(DEFAULT_POLICY.model_copy(update={"dispatch": DispatchPolicy(preflight_from_nodes=1)}))
    bind(stage, AMS)
    for host in stage.hosts:
        host.beat(capabilities=("look",))
    for _ in range(3):
        stage.submit("on_demand", shape=WHOLE)
    stage.cycle()
    checking = [number for number, host in enumerate(stage.hosts) if host.beat(capabilities=("look",)).preflights]
    assert checking == [0, 2]
    label(stage, 0, {"site": "fra"})
    assert [len(stage.hosts[number].beat(capabilities=("look",)).preflights) for number in (0, 2)] == [0, 1]


def test_checkpoints_go_to_permitted_stores_alone(stage: Stage) -> None:
    abroad, home = ({"store": f"s3://acme-{site}/runs"} for site in ("fra", "ams"))
    queued = stage.submit("on_demand", shape={"nodes": 4, "gpus_per_node": 2}, checkpoint=abroad)
    rule = Residency(frozenset({"ams"}), frozenset({"main", "s3://acme-ams"}))
    assert outside(bind(stage, rule)) == [(OutsideKind.CHECKPOINTS, queued, ("s3://acme-fra/runs",))]
    with pytest.raises(ValidationFailedError) as refused:
        stage.submit("on_demand", checkpoint=abroad)
    assert [(fault.pointer, fault.code) for fault in refused.value.faults] == [
        ("/checkpoint/store", "outside_residency")
    ]
    assert hosts_of(stage, stage.run("on_demand", checkpoint=home)) in ([0], [2])
    assert stage.job(queued).state is JobState.HELD, "no wait makes it possible"
    assert "s3://acme-fra/runs is not permitted" in stage.job(queued).state_reason


def test_a_rule_is_refused_that_the_content_store_does_not_meet_and_names_what_to_do(stage: Stage) -> None:
    for rule, store, pointer, words in (
        (AMS, StorePlace("main", "fra"), "/sites", "the content store main is at the site fra"),
        (AMS, StorePlace("main"), "/sites", "the content store main has no site"),
        (Residency(stores=frozenset({"mian"})), MAIN, "/stores", "there is no store mian"),
        (Residency(stores=frozenset({"s3://acme"})), MAIN, "/stores", "and the content store is main"),
        (Residency(stores=frozenset({"main"})), None, "/stores", "no content store is configured"),
    ):
        with pytest.raises(ValidationFailedError) as refused:
            bind(stage, rule, store=store)
        ((at, told),) = [(fault.pointer, fault.detail) for fault in refused.value.faults]
        assert (at, words in told) == (pointer, True), told
    assert shown(stage).own == LIFTED, "nothing of a refused rule is stored"
    by_name = Residency(frozenset({"ams"}), frozenset({"main"}))
    assert bind(stage, by_name, store=StorePlace("main", "fra")).own == by_name, "a name permits a store at any site"


def test_content_is_refused_at_submission_and_at_upload_where_the_store_is_outside_by_now(stage: Stage) -> None:
    """The rule was set while the store was inside; the control plane has another one since."""
    bind(stage, AMS)
    code, abroad = manifest(train=b"print()"), StorePlace("other", "fra")
    with stage.units.begin(stage.fleet.tenant, bundles.BEGIN) as unit:
        wanted = [each.digest for each in bundles.begin(unit, code, store=MAIN).wanted]

    def plan(**spec: object) -> Callable[[UnitOfWork], object]:
        return lambda unit: plan_job(unit, JobSpec.model_validate({"name": "j", **spec}, strict=False), store=abroad)

    attempts: list[Callable[[UnitOfWork], object]] = [
        lambda unit: bundles.begin(unit, manifest(other=b"x"), store=abroad),
        lambda unit: bundles.confirm(unit, code.digest, wanted, store=abroad),
        plan(program={"script": "/srv/train.py"}, outputs=["model"]),
        plan(program={"script": "train.py", "git": COMMIT}),
    ]
    for attempt in attempts:
        with (
            pytest.raises(
                ValidationFailedError, match="is at the site fra, and the rule permits stores at the site ams only"
            ),
            stage.units.begin(stage.fleet.tenant, bundles.CONFIRM, quiet=True) as unit,
        ):
            attempt(unit)
    with stage.units.begin(stage.fleet.tenant, bundles.CONFIRM, quiet=True) as unit:
        assert bundles.confirm(unit, code.digest, wanted, store=MAIN).num_missing == 0


def test_a_job_that_requests_a_site_outside_is_refused(stage: Stage) -> None:
    bind(stage, AMS)
    with pytest.raises(ValidationFailedError, match="the site fra is outside") as refused:
        stage.submit("on_demand", node_labels={"required": {"site": ["fra"]}})
    assert refused.value.faults[0].pointer == "/node_labels/required/site"


def test_it_is_audited_and_a_tenant_reads_its_own_and_sets_none(stage: Stage) -> None:
    bind(stage, AMS)
    bind(stage, LIFTED)
    with stage.units.read() as session:
        entries = session.scalars(
            select(AuditEntry).where(AuditEntry.action == "tenant.set_residency").order_by(AuditEntry.id)
        ).all()
        assert session.scalars(select(Job)).all() == []
    rule = {"sites": ["ams"], "stores": None}
    assert [(entry.detail["from"], entry.detail["to"]) for entry in entries] == [(None, rule), (rule, None)]
    assert shown(stage, stage.fleet.tenant).holds == LIFTED
    with pytest.raises(NotFoundError):
        shown(stage, stage.add_tenant("others"))
