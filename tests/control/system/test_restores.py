"""A database that comes back from a backup: nothing that hosts received since is given twice."""

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWorkFactory
from control.system import restores
from control.system.restores import CLOCK_START, CLOCK_STEP, RESTORED, Restored
from local.postgres import PostgresServer
from muster.db.engine import make_engine
from muster.db.models import AuditEntry, Event
from muster.db.pipeline.batched import query_together
from muster.db.queries.cluster import NEXT_FENCE, node_filter_of
from muster.domain.errors import ConflictError, ForbiddenError
from muster.domain.ids import JobId
from muster.domain.principals import Principal, Role
from muster.domain.states import AttemptState, Cause, JobState
from muster.wire.host import HostAttempt
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.patient import PATIENT
from tests.played_host import PlayedHost

BOOT = "boot-of-alpha"


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    return make_fleet(units)


@pytest.fixture
def host(fleet: Fleet) -> PlayedHost:
    host = PlayedHost(fleet.units, fleet.node_id, boot_id=BOOT)
    host.beat()
    fleet.reconcile()
    return host


@pytest.fixture
def backup(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"backup_{uuid.uuid4().hex}"
    yield name
    postgres_server.drop_database(name)


def back_up(engine: Engine, server: PostgresServer, name: str) -> None:
    """As the database stands now; a template must have no connection."""
    engine.dispose()
    server.create_database(name, template=str(engine.url.database))


def report_restored(units: UnitOfWorkFactory, by: Principal = OPERATOR) -> Restored:
    with units.begin(by, RESTORED) as unit:
        return restores.restored(unit, reason="the disk has failed")


def start(fleet: Fleet, host: PlayedHost) -> tuple[JobId, str, int]:
    job = fleet.submit(shape={"nodes": 1, "gpus_per_node": 1})
    fleet.cycle()
    (order,) = host.beat().unclaimed
    assert host.claim(order.attempt_id, order.fence).granted
    host.report(order.attempt_id, order.fence, "started")
    return job, order.attempt_id, order.fence


def test_a_fence_after_the_restore_is_above_those_that_the_backup_does_not_know(
    fleet: Fleet, host: PlayedHost, engine: Engine, clock: SetClock, postgres_server: PostgresServer, backup: str
) -> None:
    old, known, known_fence = start(fleet, host)
    back_up(engine, postgres_server, backup)
    _, unknown, unknown_fence = start(fleet, host)
    assert unknown_fence > known_fence

    restored_engine = make_engine(postgres_server.url(backup), limits=PATIENT)
    try:
        units = UnitOfWorkFactory(restored_engine, clock)
        clock.advance(3600)
        assert report_restored(units).given_up == ()
        fleet = Fleet(units, fleet.tenant, fleet.tenant_id, fleet.node_id)
        host = PlayedHost(units, fleet.node_id, boot_id=BOOT, seq=host.seq)
        held = [
            HostAttempt(attempt_id=attempt_id, fence=fence, phase="started")
            for attempt_id, fence in ((known, known_fence), (unknown, unknown_fence))
        ]
        answer = host.beat(*held)
        assert [(stop.attempt_id, stop.reason) for stop in answer.stops] == [(unknown, "stale")]
        fleet.reconcile()
        assert fleet.attempts(old)[-1].attempt.state is AttemptState.RUNNING, "what the backup knows runs on"
        fleet.submit(shape={"nodes": 1, "gpus_per_node": 1})
        fleet.cycle()
        (order,) = host.beat(held[0]).unclaimed
        assert order.fence > unknown_fence
    finally:
        restored_engine.dispose()


def test_a_start_that_no_host_had_claimed_is_given_up_at_no_cost_to_its_job(fleet: Fleet, host: PlayedHost) -> None:
    """The host may have claimed it after the backup, run it and forgotten it."""
    running, attempt_id, fence = start(fleet, host)
    waiting = fleet.submit(shape={"nodes": 1, "gpus_per_node": 1})
    fleet.cycle()
    given_up = fleet.attempts(waiting)[-1].attempt
    assert given_up.state is AttemptState.PLACED
    fleet.units.clock.advance(3600)  # type: ignore[attr-defined]  # the fixture's clock
    assert report_restored(fleet.units).given_up == (waiting,)
    ended = fleet.attempts(waiting)[-1].attempt
    assert (ended.id, ended.state, ended.cause) == (given_up.id, AttemptState.ENDED, Cause.MAINTENANCE)
    host.beat(HostAttempt(attempt_id=attempt_id, fence=fence, phase="started"))
    fleet.reconcile()
    assert (fleet.job(waiting).state, fleet.job(waiting).restarts_used) == (JobState.QUEUED, 0)
    assert fleet.attempts(running)[-1].attempt.state is AttemptState.RUNNING


def test_an_older_backup_after_a_restore_gets_an_epoch_above_that_one_too(
    fleet: Fleet, clock: SetClock, engine: Engine, postgres_server: PostgresServer, backup: str
) -> None:
    """It does not know that there has been a restore: the time does."""
    back_up(engine, postgres_server, backup)
    first = report_restored(fleet.units)
    assert first.epoch_before == 1
    assert first.epoch == (clock.now - CLOCK_START) // CLOCK_STEP
    clock.advance(CLOCK_STEP.total_seconds())
    older = make_engine(postgres_server.url(backup), limits=PATIENT)
    try:
        second = report_restored(UnitOfWorkFactory(older, clock))
    finally:
        older.dispose()
    assert second.epoch_before == 1
    assert second.epoch > first.epoch


def test_a_wrong_backup_and_the_right_one_minutes_later_give_no_fence_twice(
    fleet: Fleet, clock: SetClock, engine: Engine, postgres_server: PostgresServer, backup: str
) -> None:
    back_up(engine, postgres_server, backup)
    first = report_restored(fleet.units)
    with Session(engine) as session, session.begin():
        given = [node_filter_of(*query_together(session, NEXT_FENCE)) for _ in range(5)]
    clock.advance(7)
    older = make_engine(postgres_server.url(backup), limits=PATIENT)
    try:
        assert report_restored(UnitOfWorkFactory(older, clock)).epoch == first.epoch, "one step of the clock"
        with Session(older) as session, session.begin():
            assert node_filter_of(*query_together(session, NEXT_FENCE)) > max(given)
    finally:
        older.dispose()


def test_stated_twice_at_once_it_still_rises(fleet: Fleet) -> None:
    assert report_restored(fleet.units).epoch + 1 == report_restored(fleet.units).epoch


def test_it_is_refused_while_an_api_runs_and_of_a_caller_that_may_not(fleet: Fleet, host: PlayedHost) -> None:
    host.beat()
    with pytest.raises(ConflictError, match="stop every process of the control plane first"):
        report_restored(fleet.units)
    with pytest.raises(ForbiddenError):
        report_restored(fleet.units, fleet.tenant)


def test_it_stands_in_events_and_audit(fleet: Fleet) -> None:
    found = report_restored(fleet.units, Principal(name="operator:restore", role=Role.OPERATOR))
    with fleet.units.read() as session:
        event = session.scalars(select(Event).where(Event.kind == "system.restored")).one()
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "system.restored")).one()
    assert (event.payload["epoch_before"], event.payload["epoch"]) == (found.epoch_before, found.epoch)
    assert (entry.actor, entry.reason) == ("operator:restore", "the disk has failed")
