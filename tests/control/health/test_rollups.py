"""Roll-ups: what a round stores of each group, once, and what of it stays; what a reader gets as of a time."""

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text, update

from control.core.paging import Part, Span
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.health import rollup_reads
from control.health.rollup_reads import GroupRollup, RollupFilter, list_rollups, past_scores
from control.health.rollups import ROUNDS_A_SWEEP, drop_expired, take_once
from control.policy.policies import ACTIVATE, store_policy
from control.system.retention import sweep_once
from muster.db.models import Gpu, GpuHold, HealthRollup, Node, RollupRound
from muster.domain.errors import ForbiddenError, InvalidCursorError
from muster.domain.gpu.rollup_groups import GroupKind, RoundStep
from muster.domain.ids import GpuUuid, TenantId
from muster.domain.policy.document import Policy
from muster.domain.principals import Principal, Role
from muster.domain.states import Contact
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, enrol_host, make_fleet

MINUTE, HOUR, DAY = 60, 3600, 86_400


@dataclass
class World:
    """Three hosts of two GPUs: alpha in rack r1 at site ams, beta in r1, gamma in r2; all healthy."""

    units: UnitOfWorkFactory
    clock: SetClock
    fleet: Fleet

    def change(self, **values: Any) -> None:
        """Change the GPU ``uuid``, by hand."""
        uuid = values.pop("uuid")
        with self.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
            unit.session.execute(update(Gpu).where(Gpu.uuid == uuid).values(**values))

    def later(self, seconds: float) -> bool:
        """Take a round so much later."""
        self.clock.advance(seconds)
        return take_once(self.units)

    def read(
        self, kind: GroupKind, *keys: str, part: Part | None = None, principal: Principal = OPERATOR, **wanted: Any
    ) -> list[GroupRollup]:
        with self.units.begin(principal, rollup_reads.READ, dry_run=True, quiet=True) as unit:
            return list(list_rollups(unit, RollupFilter(kind, keys, **wanted), part or Part(None)))

    def scores(self, kind: GroupKind, **wanted: Any) -> list[tuple[str | None, int]]:
        return [(each.name, each.rollup.score_tenths) for each in self.read(kind, **wanted)]

    def count(self, kind: GroupKind) -> int:
        with self.units.read() as session:
            return session.scalar(select(func.count()).where(HealthRollup.kind == kind)) or 0


@pytest.fixture
def world(units: UnitOfWorkFactory, clock: SetClock) -> World:
    clock.advance((datetime(2027, 1, 4, tzinfo=UTC) - clock()).total_seconds())
    fleet = make_fleet(units)
    enrol_host(units, "beta", rack="r1")
    enrol_host(units, "gamma", rack="r2")
    with units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        values = {"rack": "r1", "labels": {"site": "ams"}}
        unit.session.execute(update(Node).where(Node.id == fleet.node_id).values(**values))
        unit.session.execute(update(Node).values(contact=Contact.LIVE))
    return World(units, clock, fleet)


def test_a_round_has_each_group_with_score_worst_percentile_mean_and_standings(world: World) -> None:
    world.change(uuid="GPU-beta-0", score=60)
    world.change(uuid="GPU-gamma-1", score=90)
    assert take_once(world.units)
    assert world.scores(GroupKind.NODE) == [("beta", 600), ("gamma", 900), ("alpha", 1000)]
    assert world.scores(GroupKind.RACK) == [("r1", 800), ("r2", 900)]
    assert world.scores(GroupKind.SITE) == [(None, 750), ("ams", 1000)]
    assert world.scores(GroupKind.MODEL) == [("Simulated H100", 833)]
    assert len(world.scores(GroupKind.COHORT)) == 1
    assert world.scores(GroupKind.TENANT) == [], "none has a GPU"
    ((fleet,),) = [world.read(GroupKind.FLEET)]
    assert (fleet.name, fleet.rollup.worst, fleet.rollup.p10, fleet.rollup.mean_tenths) == (None, 60, 60, 916)
    assert (fleet.rollup.num_nodes, fleet.rollup.num_gpus, fleet.rollup.standings) == (3, 6, {"HEALTHY": 6})


def test_capacity_is_delivered_healthy_reserved_and_in_use_and_a_tenants_is_what_it_has_now(world: World) -> None:
    job = world.fleet.submit(shape={"nodes": 1, "gpus_per_node": 2})
    world.fleet.beat()
    world.fleet.cycle()
    with world.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        free = unit.session.scalars(select(Gpu.uuid).where(Gpu.node_id != world.fleet.node_id)).all()
        taken = world.fleet.num_taken_gpus()
        unit.session.add(GpuHold(gpu_uuid=GpuUuid("GPU-gamma-0"), job_id=job, created_at=unit.now))
        unit.session.execute(update(Node).where(Node.name == "beta").values(contact=Contact.LOST))
    assert (taken, len(free)) == (2, 4)
    assert take_once(world.units)
    (fleet,) = [each.rollup for each in world.read(GroupKind.FLEET)]
    assert fleet.num_gpus == 6, "delivered: also without contact"
    on_beta = [each.rollup for each in world.read(GroupKind.NODE, "beta")]
    used_on_beta = on_beta[0].num_in_use
    assert (fleet.num_healthy, fleet.num_in_use) == (4, 2)
    assert fleet.num_in_use + fleet.num_reserved + fleet.num_free + fleet.num_out == 6
    assert fleet.num_out == 2 - used_on_beta
    (tenant,) = world.read(GroupKind.TENANT)
    assert (tenant.name, tenant.rollup.num_gpus, tenant.rollup.num_in_use) == ("acme", 2, 2)


def test_a_gpu_with_a_hold_is_reserved_while_it_is_free(world: World) -> None:
    job = world.fleet.submit()
    with world.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        unit.session.add(GpuHold(gpu_uuid=GpuUuid("GPU-gamma-0"), job_id=job, created_at=unit.now))
    assert take_once(world.units)
    (fleet,) = [each.rollup for each in world.read(GroupKind.FLEET)]
    assert (fleet.num_reserved, fleet.num_free, fleet.num_out, fleet.num_in_use) == (1, 5, 0, 0)


def test_a_round_is_taken_once_in_its_five_minutes(world: World) -> None:
    assert take_once(world.units)
    assert not world.later(4 * MINUTE)
    assert world.later(MINUTE)
    assert world.count(GroupKind.FLEET) == 2


def test_of_processes_that_take_one_round_at_once_one_stores_it(world: World) -> None:
    results: list[bool] = []
    together = threading.Barrier(4)

    def take() -> None:
        together.wait()
        results.append(take_once(world.units))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, False, False, True]
    assert (world.count(GroupKind.FLEET), world.count(GroupKind.NODE)) == (1, 3)


def test_a_round_waits_for_no_lock_of_a_gpu(world: World, engine: Engine) -> None:
    with engine.begin() as other:
        other.execute(text("SELECT * FROM gpus FOR UPDATE"))
        other.execute(text("SELECT * FROM nodes FOR UPDATE"))
        assert take_once(world.units)


def test_a_fleet_that_is_still_empty_has_no_round_and_its_first_is_the_first_of_the_day(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    assert not take_once(units)
    enrol_host(units, "beta")
    assert take_once(units)
    with units.read() as session:
        assert session.scalars(select(RollupRound.step)).all() == [RoundStep.DAY]


def test_history_is_as_of_a_time_and_of_a_span(world: World) -> None:
    began = world.clock()
    take_once(world.units)
    world.change(uuid="GPU-alpha-0", score=10)
    assert world.later(HOUR)
    assert world.scores(GroupKind.RACK) == [("r1", 550), ("r2", 1000)]
    assert world.scores(GroupKind.RACK, at=began + timedelta(minutes=30)) == [("r1", 1000), ("r2", 1000)]
    assert world.scores(GroupKind.RACK, at=began - timedelta(seconds=1)) == []
    assert world.scores(GroupKind.RACK, span=Span(began)) == [("r1", 1000), ("r2", 1000), ("r1", 550), ("r2", 1000)]
    assert world.scores(GroupKind.RACK, span=Span(None, began + timedelta(hours=1))) == [("r1", 1000), ("r2", 1000)]
    with world.units.begin(OPERATOR, rollup_reads.READ, dry_run=True, quiet=True) as unit:
        past = past_scores(unit, GroupKind.RACK, ["r1", "gone"], Span(), RoundStep.HOUR)
    assert past == {"r1": [(began, 1000), (world.clock(), 550)], "gone": []}


def test_the_first_round_of_each_hour_and_day_is_its_own_also_after_an_outage(world: World) -> None:
    take_once(world.units)
    world.later(5 * MINUTE)
    world.later(70 * MINUTE)
    world.later(5 * MINUTE)
    with world.units.read() as session:
        steps = session.scalars(select(RollupRound.step).order_by(RollupRound.at)).all()
    assert steps == [RoundStep.DAY, RoundStep.FIVE_MINUTES, RoundStep.HOUR, RoundStep.FIVE_MINUTES]
    assert len(world.read(GroupKind.FLEET, span=Span(), step=RoundStep.HOUR)) == 2
    assert len(world.read(GroupKind.FLEET, span=Span(), step=RoundStep.DAY)) == 1


def test_by_node_the_newest_two_rounds_and_the_first_of_each_hour_are_kept(world: World) -> None:
    began = world.clock()
    take_once(world.units)
    for _ in range(4):
        assert world.later(5 * MINUTE)
    assert (world.count(GroupKind.NODE), world.count(GroupKind.RACK)) == (9, 10)
    assert len(world.read(GroupKind.NODE)) == 3
    as_of_gone = world.read(GroupKind.NODE, at=began + timedelta(minutes=12))
    assert {each.rollup.at for each in as_of_gone} == {began}, "the newest that is kept before that time"


def test_rounds_go_by_the_policy_the_finest_first(world: World) -> None:
    with world.units.begin(OPERATOR, ACTIVATE) as unit:
        kept = {"rollups_recent_hours": 2, "rollups_hourly_days": 2, "rollups_days": 4}
        store_policy(unit, Policy.model_validate({"retention": kept}), reason="test")
    take_once(world.units)
    for _ in range(26):
        world.later(5 * MINUTE)
    assert sweep_once(world.units)["rollups"] == 1, "of 00:05 alone: 00:00 is the day's"
    world.later(3 * DAY)
    assert sweep_once(world.units)["rollups"] == ROUNDS_A_SWEEP, "not more in one transaction"
    while sweep_once(world.units)["rollups"]:
        pass
    with world.units.read() as session:
        left = session.scalars(select(RollupRound.step).order_by(RollupRound.at)).all()
        of_rows = session.scalar(select(func.count(func.distinct(HealthRollup.at))))
    assert left == [RoundStep.DAY, RoundStep.DAY]
    assert of_rows == 2
    world.clock.advance(5 * DAY)
    with world.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        assert drop_expired(unit, 1) == 2


def test_pages_stay_in_the_round_that_they_began_in(world: World) -> None:
    world.change(uuid="GPU-beta-0", score=60)
    take_once(world.units)
    first = world.read(GroupKind.NODE, part=Part(1))
    world.change(uuid="GPU-alpha-0", score=0)
    assert world.later(5 * MINUTE)
    behind = rollup_reads.SORT.position_of(first[0])
    assert [each.name for each in first] == ["beta"]
    rest = world.read(GroupKind.NODE, part=Part(10, behind))
    assert {each.name for each in rest} == {"alpha", "gamma"}
    assert {each.rollup.score_tenths for each in rest} == {1000}, "as that round was"


def test_a_page_of_a_round_that_has_gone_is_refused_and_never_short(world: World) -> None:
    take_once(world.units)
    world.later(5 * MINUTE)
    behind = rollup_reads.SORT.position_of(world.read(GroupKind.NODE, part=Part(1))[0])
    world.later(5 * MINUTE)
    world.later(5 * MINUTE)
    with pytest.raises(InvalidCursorError):
        world.read(GroupKind.NODE, part=Part(10, behind))


def test_a_tenant_reads_its_own_roll_up_alone(world: World) -> None:
    world.fleet.submit(shape={"nodes": 1, "gpus_per_node": 2})
    world.fleet.beat()
    world.fleet.cycle()
    take_once(world.units)
    own = world.read(GroupKind.TENANT, principal=world.fleet.tenant)
    assert [each.rollup.key for each in own] == [world.fleet.tenant_id]
    other = Principal(name="other", role=Role.TENANT_ADMIN, tenant_id=TenantId("tenant_other"))
    assert world.read(GroupKind.TENANT, principal=other) == []
    assert world.read(GroupKind.TENANT, world.fleet.tenant_id, principal=other) == []
    assert [each.rollup.num_gpus for each in world.read(GroupKind.TENANT, "acme")] == [2], "by its name too"
    for kind in set(GroupKind) - {GroupKind.TENANT}:
        with pytest.raises(ForbiddenError):
            world.read(kind, principal=world.fleet.tenant)


def test_a_retired_gpu_is_in_no_group(world: World) -> None:
    with world.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        unit.session.execute(text("SET LOCAL session_replication_role = replica"))
        unit.session.execute(text("UPDATE gpus SET standing = 'RETIRED' WHERE uuid LIKE 'GPU-gamma-%'"))
    take_once(world.units)
    assert [each.rollup.num_gpus for each in world.read(GroupKind.FLEET)] == [4]
    assert [each.name for each in world.read(GroupKind.RACK)] == ["r1"]
