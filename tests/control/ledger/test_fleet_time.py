"""The fleet's time over a stretch: accounts, runs of jobs, hosts and outages, each by hand."""

from dataclasses import asdict
from datetime import timedelta

import pytest
from sqlalchemy import null, select, text, update

from control.core.paging import Span
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.ledger import read as ledger
from control.ledger.fleet_time import FleetTime, fleet_time
from control.ledger.measuring import MEASURED
from ledger.measures import figures
from muster.db.models import Gpu, GpuStandingChange, Job, LedgerHour, Node, NodeContactChange
from muster.domain.errors import ForbiddenError
from muster.domain.states import Contact, JobState, Standing
from tests.control.ledger.figure_case import member_of
from tests.control.ledger.played_hour import FOUR, PlayedHour
from tests.fleet_factory import OPERATOR, enrol_host
from tests.played_host import PlayedHost

HOUR = timedelta(hours=1)
DAY = Span(FOUR - 20 * HOUR, FOUR + 4 * HOUR)


def time_of(units: UnitOfWorkFactory, span: Span = DAY) -> FleetTime:
    with units.begin(OPERATOR, ledger.READ, dry_run=True, quiet=True) as unit:
        return fleet_time(unit, span)


def test_of_an_empty_ledger_every_figure_is_unknown(units: UnitOfWorkFactory) -> None:
    found = time_of(units)
    assert found.num_measured == 0
    assert set(figures(found.window).values()) == {None}


def test_a_run_is_from_its_start_to_its_end_within_the_counted_hours(played: PlayedHour) -> None:
    played.at(10)
    played.start()
    for number in range(1, 4):
        played.at(10 + 10 * number)
        played.step(number, 600.0)
    played.at(50)
    played.end()
    played.at(130)
    assert played.keep()
    found = time_of(played.units)
    job = found.window.jobs
    assert job.run_ms == pytest.approx(40 * 60_000, abs=1_000)
    assert figures(found.window)["ettr"] == pytest.approx(30 / 40, rel=0.01)
    assert found.num_measured == found.sums.num_hours


def test_a_pause_between_attempts_is_of_the_run(played: PlayedHour) -> None:
    played.at(10)
    played.start()
    played.at(30)
    played.end()
    with played.units.engine.begin() as connection:  # as if a fault had ended the attempt
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(update(Job).values(state=JobState.QUEUED, finished_at=None))
    played.at(200)
    assert played.keep() == 3
    job = time_of(played.units, Span(FOUR, FOUR + 3 * HOUR)).window.jobs
    assert job.run_ms == pytest.approx(170 * 60_000, abs=1_000)


def test_more_time_than_a_small_integer_holds_is_summed_up(played: PlayedHour) -> None:
    played.at(70)
    played.keep()
    with played.units.begin(OPERATOR, ledger.READ, quiet=True) as unit:
        unit.session.execute(update(LedgerHour).values(measured=dict.fromkeys(MEASURED, 3_600_000_000)))
    job = time_of(played.units).window.jobs
    assert job.run_ms == 3_600_000_000


def test_idle_time_is_measured_by_place_and_hour(played: PlayedHour) -> None:
    beside = PlayedHost(played.units, enrol_host(played.units, "beta", rack="r1"))
    elsewhere = PlayedHost(played.units, enrol_host(played.units, "gamma", rack="r2"))
    with played.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        unit.session.get_one(Node, played.fleet.node_id).rack = "r1"
    played.at(10)
    played.start()
    played.at(20)
    beside.beat()
    elsewhere.beat()
    waiting = played.fleet.submit(shape={"gpus_per_node": 2})
    played.at(30)
    played.fleet.cancel(waiting)
    played.at(70)
    assert played.keep()
    found = time_of(played.units, Span(FOUR, FOUR + HOUR)).window.idle
    minutes = {name: num_ms / 60_000 for name, num_ms in asdict(found).items()}
    assert minutes == {
        "all_ms": 50 + 2 * 40 + 2 * 40,
        "on_used_ms": 50,
        "in_used_racks_ms": 2 * 40,
        "waiting_ms": 10 + 2 * 10 + 2 * 10,
        "waiting_on_used_ms": 10,
    }


def test_hours_of_an_earlier_release_count_in_accounts_alone(played: PlayedHour) -> None:
    played.at(70)
    played.keep()
    with played.units.begin(OPERATOR, ledger.READ, quiet=True) as unit:
        unit.session.execute(update(LedgerHour).values(measured=null()))
    found = time_of(played.units)
    assert (found.num_measured, found.sums.num_hours) == (0, 1)
    assert figures(found.window)["allocation"] == 0.0
    assert figures(found.window)["fragmented_nodes"] is None


def test_faults_that_take_gpus_and_hosts_out_are_outages(played: PlayedHour) -> None:
    played.at(70)
    played.keep()
    with played.units.begin(OPERATOR, ledger.READ, quiet=True) as unit:
        uuids = unit.session.scalars(select(Gpu.uuid).order_by(Gpu.uuid)).all()
        moves = [
            (uuids[0], Standing.HEALTHY, Standing.QUARANTINED, 10, "condemned"),
            (uuids[1], Standing.HEALTHY, Standing.QUARANTINED, 10, "condemned"),
            (uuids[0], Standing.QUARANTINED, Standing.REPAIR, 15, "repair_started"),
            (uuids[0], Standing.REPAIR, Standing.PROBATION, 20, "burn_in_passed"),
            (uuids[1], Standing.QUARANTINED, Standing.PROBATION, 40, "burn_in_passed"),
            (uuids[0], Standing.PROBATION, Standing.QUARANTINED, 45, "taken_out"),
            (uuids[1], Standing.PROBATION, Standing.QUARANTINED, 50, "condemned"),
        ]
        for uuid, origin, target, minutes, reason in moves:
            at = FOUR + timedelta(minutes=minutes)
            row = GpuStandingChange(
                gpu_uuid=uuid, origin=origin, target=target, at=at, reason="r", actor="a", move_reason=reason
            )
            unit.session.add(row)
            unit.session.flush()
        for minutes, contact in ((5, Contact.LOST), (7, Contact.SILENT), (9, Contact.LIVE)):
            at = FOUR + timedelta(minutes=minutes)
            unit.session.add(NodeContactChange(node_id=played.fleet.node_id, at=at, contact=contact))
    outages = time_of(played.units).window.outages
    assert sorted((one.out_ms is None, one.out_ms) for one in outages) == [
        (False, 4 * 60_000),
        (False, 30 * 60_000),
        (True, None),
    ]
    later = Span(FOUR + HOUR, FOUR + 3 * HOUR)
    assert time_of(played.units, later).window.outages == ()


def test_a_tenant_reads_no_time_of_the_fleet(played: PlayedHour) -> None:
    with (
        played.units.begin(member_of(played.fleet.tenant_id), ledger.READ, dry_run=True, quiet=True) as unit,
        pytest.raises(ForbiddenError),
    ):
        fleet_time(unit, DAY)
