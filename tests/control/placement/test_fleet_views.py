"""The fleet as a cycle plans on it: what a process keeps of it is what one that knows nothing reads."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, insert, select, update

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import cordons, overrides
from control.fleet.inventory import OVERRIDE, gpu_views
from control.hosts import node_labels
from control.placement.fleet_views import placed_views
from muster.db.engine import make_engine
from muster.db.models import BurnIn, Gpu, GpuStandingChange, Node
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.states import BurnInState, Contact, Standing
from scheduler.fleet.topology import build_layout
from scheduler.model import GpuView
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import DONE, Stage, make_stage
from tests.fleet_factory import OPERATOR
from tests.patient import PATIENT
from tests.stored_signals import add_signal

HAZARD = DEFAULT_POLICY.placement.hazard
YOUNG_S = DEFAULT_POLICY.health.standing.reclaimable_only_s


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Four hosts of two GPUs each."""
    return make_stage(units, clock, num_hosts=4)


@pytest.fixture
def stranger(database_url: str) -> Iterator[Callable[[], Engine]]:
    """Engines of processes that have read nothing yet."""
    engines: list[Engine] = []

    def make() -> Engine:
        engines.append(make_engine(database_url, limits=PATIENT))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


def read(units: UnitOfWorkFactory, policy: Policy = DEFAULT_POLICY) -> list[GpuView]:
    with units.read() as session:
        return placed_views(session, units.clock(), policy)


def first_gpu(stage: Stage, number: int) -> GpuUuid:
    with stage.units.read() as session:
        query = select(Gpu.uuid).where(Gpu.node_id == stage.hosts[number].node_id).order_by(Gpu.slot_index)
        return session.scalars(query).first() or GpuUuid("")


def store(stage: Stage, number: int, **values: object) -> None:
    with stage.units.engine.begin() as connection:
        connection.execute(update(Gpu).where(Gpu.uuid == first_gpu(stage, number)).values(**values))


def start_probation(stage: Stage) -> None:
    store(stage, 1, standing=Standing.PROBATION, standing_since=stage.clock.now)


def grow_old(stage: Stage) -> None:
    stage.clock.advance(YOUNG_S)


def cordon_gpu(stage: Stage) -> None:
    with stage.units.begin(OPERATOR, cordons.CREATE) as unit:
        until = unit.now + timedelta(seconds=60)
        cordons.create(unit, reason="noise", gpu_uuid=first_gpu(stage, 0), until=until)


def cordon_node(stage: Stage) -> None:
    with stage.units.begin(OPERATOR, cordons.CREATE) as unit:
        cordons.create(unit, reason="noise", node_id=stage.hosts[3].node_id)


def end_cordon(stage: Stage) -> None:
    stage.clock.advance(61)


def override(stage: Stage) -> None:
    with stage.units.begin(OPERATOR, OVERRIDE) as unit:
        until = unit.now + timedelta(hours=1)
        overrides.override(unit, first_gpu(stage, 2), Standing.SUSPECT, until=until, reason="noise")


def burn_in(stage: Stage) -> None:
    with stage.units.begin(OPERATOR, OVERRIDE, quiet=True) as unit:
        row = BurnIn(
            id="brn_1",
            gpu_uuid=first_gpu(stage, 1),
            node_id=stage.hosts[1].node_id,
            state=BurnInState.ORDERED,
            reason="noise",
            ordered_by="test",
            ordered_at=unit.now,
        )
        unit.session.add(row)
        unit.session.flush()
        row.state, row.began_at, row.deadline_at = BurnInState.RUNNING, unit.now, unit.now + timedelta(hours=1)
        unit.audit("burn_in.order", "gpu", row.gpu_uuid, reason="noise")


def turn_mig_on(stage: Stage) -> None:
    store(stage, 2, is_mig_enabled=True)


def report(stage: Stage) -> None:
    with stage.units.begin(OPERATOR, OVERRIDE, quiet=True) as unit:
        add_signal(unit, first_gpu(stage, 2), is_alarming=True)
        unit.audit("gpu.report", "gpu", first_gpu(stage, 2), reason="noise")


def place(stage: Stage) -> None:
    stage.run("on_demand", shape={"nodes": 1, "gpus_per_node": 2})


def leave(stage: Stage) -> None:
    (job_id,) = stage.running
    stage.leave(job_id, DONE)


def label(stage: Stage) -> None:
    with stage.units.begin(OPERATOR, node_labels.LABEL) as unit:
        node_labels.set_labels(unit, stage.hosts[1].node_id, {"zone": "z1"}, remove=(), reason="moved")


def lose_contact(stage: Stage) -> None:
    with stage.units.engine.begin() as connection:
        connection.execute(update(Node).where(Node.id == stage.hosts[2].node_id).values(contact=Contact.SILENT))


def weaken(stage: Stage) -> None:
    store(stage, 3, score=60)


def quarantined_of_late(stage: Stage) -> None:
    row = {"gpu_uuid": first_gpu(stage, 0), "evidence_ids": [], "target": Standing.QUARANTINED, "at": stage.clock.now}
    with stage.units.engine.begin() as connection:
        connection.execute(insert(GpuStandingChange), [row | {"reason": "xid", "actor": "rule"}] * 3)


def change_cohort(stage: Stage) -> None:
    store(stage, 1, cohort_key="of another kind")


CHANGES = (
    start_probation,
    cordon_gpu,
    cordon_node,
    end_cordon,
    override,
    burn_in,
    turn_mig_on,
    report,
    place,
    leave,
    label,
    weaken,
    quarantined_of_late,
    change_cohort,
    lose_contact,
    grow_old,
)


def test_whatever_changes_between_two_reads_is_as_a_process_reads_it_that_has_read_nothing(
    stage: Stage, stranger: Callable[[], Engine]
) -> None:
    last = read(stage.units)
    for change in CHANGES:
        change(stage)
        views = read(stage.units)
        assert views == read(UnitOfWorkFactory(stranger(), stage.clock)), change.__name__
        assert views != last, f"{change.__name__} changed nothing"
        with stage.units.read() as session:
            by_row = gpu_views(session, stage.clock.now, DEFAULT_POLICY.health)
        assert {view.uuid: view.facts for view in views} == {view.uuid: view.facts for view in by_row}
        last = views


def test_another_policy_is_read_as_if_nothing_had_been_read(stage: Stage, stranger: Callable[[], Engine]) -> None:
    start_probation(stage)
    label(stage)
    placement = DEFAULT_POLICY.placement.model_copy(update={"levels": ("zone", "rack")})
    standing = DEFAULT_POLICY.health.standing.model_copy(update={"reclaimable_only_s": 0.0})
    health = DEFAULT_POLICY.health.model_copy(update={"standing": standing})
    weaken(stage)
    bands = {name: band.model_copy(update={"failures_per_1000_h": 9.0}) for name, band in HAZARD.bands.items()}
    hazard = {"hazard": HAZARD.model_copy(update={"bands": bands})}
    weighs_more = DEFAULT_POLICY.placement.model_copy(update=hazard)
    for update_of in ({}, {"placement": placement}, {"health": health}, {"placement": weighs_more}):
        policy = DEFAULT_POLICY.model_copy(update=update_of)
        assert read(stage.units, policy) == read(UnitOfWorkFactory(stranger(), stage.clock), policy)
    assert {view.path for view in read(stage.units, DEFAULT_POLICY.model_copy(update={"placement": placement}))} > {
        ("z1", "")
    }


def test_what_has_not_changed_is_the_very_same(stage: Stage) -> None:
    before = {view.uuid: view for view in read(stage.units)}
    store(stage, 1, standing=Standing.QUARANTINED)
    after = {view.uuid: view for view in read(stage.units)}
    node_id = stage.hosts[1].node_id
    assert {after[uuid].node_id for uuid in after if after[uuid] is not before[uuid]} == {node_id}


def test_they_come_in_the_planners_order(stage: Stage) -> None:
    stage.add_host("in-a-rack", rack="a rack")
    change_cohort(stage)
    views = read(stage.units)
    assert build_layout(views, DEFAULT_POLICY.placement.levels)[1] == views
