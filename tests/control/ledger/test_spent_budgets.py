"""A spent error budget: what it forbids where the policy says it, and what is recorded where it does not."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import maintenance
from control.hosts import drains
from control.ledger.objectives import KEEP
from control.policy.activation import activate
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import AuditEntry, Event, ObjectiveState
from muster.domain.errors import ConflictError
from muster.domain.policy.document import Policy
from muster.domain.policy.objectives import ObjectivePolicy
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, make_fleet

ACT = "objective.act_despite_spent"


class World:
    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.units = units
        self.clock = clock
        self.fleet: Fleet = make_fleet(units)
        self.fleet.beat()

    def set_policy(self, *, forbids: bool) -> None:
        with self.units.begin(OPERATOR, ACTIVATE) as unit:
            store_policy(unit, Policy(objectives=ObjectivePolicy(forbids=forbids)), reason="test")

    def spend(self, job_class: str = "production") -> None:
        with self.units.begin(OPERATOR, KEEP, quiet=True) as unit:
            unit.session.add(
                ObjectiveState(
                    objective=f"{job_class}-success",
                    job_class=job_class,
                    indicator="success",
                    basis=f"{job_class} success",
                    target=0.99,
                    window_days=7,
                    counted_from=unit.now,
                    counted_until=unit.now,
                    state="page",
                    state_since=unit.now,
                    burning={},
                    rates={},
                    num_good=9,
                    num_bad=1,
                    left_fraction=-9.0,
                    is_spent=True,
                )
            )

    def run_job(self, job_class: str) -> None:
        self.fleet.submit(job_class=job_class)
        self.fleet.reconcile()
        self.fleet.cycle()
        assert self.fleet.num_taken_gpus() == 1

    def drain(self, despite: str | None = None) -> None:
        with self.units.begin(OPERATOR, drains.DRAIN) as unit:
            drains.drain(unit, self.fleet.node_id, reason="a new fan", despite_budget=despite)

    def maintain(self, until: datetime) -> None:
        with self.units.begin(OPERATOR, maintenance.DECLARE) as unit:
            maintenance.declare(unit, self.fleet.node_id, reason="optics", until=until)

    def recorded(self) -> list[tuple[str | None, bool]]:
        with self.units.read() as session:
            rows = session.scalars(select(AuditEntry).where(AuditEntry.action == ACT)).all()
            assert len(session.scalars(select(Event).where(Event.kind == ACT)).all()) == len(rows)
        return [(row.reason, row.detail["is_forbidden"]) for row in rows]


@pytest.fixture
def world(units: UnitOfWorkFactory, clock: SetClock) -> World:
    return World(units, clock)


def test_by_default_the_act_takes_place_and_is_recorded(world: World) -> None:
    world.spend()
    world.run_job("production")
    world.drain()
    assert world.recorded() == [(None, False)]


def test_where_the_policy_forbids_it_a_drain_of_a_host_of_the_class_is_refused(world: World) -> None:
    world.spend()
    world.run_job("production")
    world.set_policy(forbids=True)
    with pytest.raises(ConflictError, match="production-success is spent, which forbids a drain") as refused:
        world.drain()
    assert "--despite-budget" in refused.value.suggestion
    assert refused.value.extra == {"objectives": ["production-success"]}
    with pytest.raises(ConflictError, match="forbids maintenance"):
        world.maintain(world.clock.now + timedelta(hours=1))
    assert world.recorded() == []


def test_a_reason_allows_it_and_stays_in_the_audit(world: World) -> None:
    world.spend()
    world.run_job("production")
    world.set_policy(forbids=True)
    world.drain("the fan burns")
    assert world.recorded() == [("the fan burns", True)]


def test_hosts_without_jobs_of_the_class_are_free(world: World) -> None:
    world.spend()
    world.run_job("experiment")
    world.set_policy(forbids=True)
    world.drain()
    assert world.recorded() == []


def test_a_class_that_forbids_nothing_does_not(world: World) -> None:
    world.spend("standard")
    world.run_job("standard")
    world.set_policy(forbids=True)
    world.drain()
    assert world.recorded() == []


def test_a_policy_is_refused_everywhere_and_allowed_with_a_reason(world: World) -> None:
    world.set_policy(forbids=True)
    world.spend()
    with pytest.raises(ConflictError, match="forbids another policy"), world.units.begin(OPERATOR, ACTIVATE) as unit:
        activate(unit, Policy(), reason="calmer")
    with world.units.begin(OPERATOR, ACTIVATE) as unit:
        activate(unit, Policy(), reason="calmer", despite_budget="it repairs the cause")
    assert world.recorded() == [("it repairs the cause", True)]
