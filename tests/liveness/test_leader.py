"""The lead ends with the progress of the work, not with the process; a former leader writes nothing."""

import os
import signal
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text, update

from control.core.unit_of_work import Guard, UnitOfWorkFactory, utc_now
from control.placement.placement import NOTE_WAITING
from local.children import Child, child_environment
from muster.db.leader_lease import CONSTRAINT, LEASE_S, RENEW_S, LeaderLease, LeadLostError
from muster.db.models import Job
from muster.domain.principals import system_principal
from muster.progress import Progress, advance, bound, on_advance
from tests.fleet_factory import Fleet, make_fleet
from tests.hand_clock import HandClock
from tests.waiting import wait_until
from tests.warm_python import WarmPython
from workers.control.scheduler_loop import STANDBY_PAUSE_S, run_cycle

SCHEDULER = system_principal("scheduler")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def fleet(engine: Engine) -> Fleet:
    made = make_fleet(UnitOfWorkFactory(engine, utc_now))
    made.beat()
    return made


@pytest.fixture
def leases(engine: Engine, clock: HandClock) -> Iterator[list[LeaderLease]]:
    made = [LeaderLease(engine, "scheduler", name, clock=clock) for name in "ab"]
    yield made
    for lease in made:
        lease.close()


def lead(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(text("SELECT holder, term, expires_at FROM leader_leases")).one_or_none()


def let_it_expire(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE leader_leases SET expires_at = clock_timestamp()"))


def test_another_process_leads_within_ten_seconds_of_the_last_progress() -> None:
    assert LEASE_S + STANDBY_PAUSE_S < 10
    assert RENEW_S * 4 <= LEASE_S, "several renewals may fail before the lead is lost"


def test_each_progress_renews_the_lead_and_only_that(
    engine: Engine, leases: list[LeaderLease], clock: HandClock
) -> None:
    lease, standby = leases
    assert lease.take()
    with bound(Progress("scheduler", clock=clock)), on_advance(lease.advance):
        ends = [lead(engine).expires_at]
        for _ in range(3):
            clock.now_s += RENEW_S / 2
            advance()
            ends.append(lead(engine).expires_at)
        assert ends[0] == ends[1] < ends[2] == ends[3], "once a second, however often the work advances"
        assert not standby.take()
    clock.now_s += LEASE_S
    advance()
    assert lead(engine).expires_at == ends[3], "a loop that has ended renews nothing"


def test_a_long_cycle_that_advances_keeps_the_lead(
    fleet: Fleet, engine: Engine, leases: list[LeaderLease], clock: HandClock
) -> None:
    lease, standby = leases
    assert lease.take()
    jobs = [fleet.submit() for _ in range(3)]

    def advanced() -> None:
        clock.now_s += LEASE_S / 2  # each job takes that long
        lease.require()
        assert not standby.take()

    decided = run_cycle(fleet.units, SCHEDULER, advanced=advanced)
    assert clock.now_s == len(jobs) * LEASE_S / 2
    assert len(decided.placements) == 2
    assert lead(engine).term == 1


def test_a_former_leader_writes_nothing(fleet: Fleet, engine: Engine, leases: list[LeaderLease]) -> None:
    former, newer = leases
    assert former.take()
    lost = LeadLostError("another leads")
    units = replace(fleet.units, guard=Guard(former.guard, CONSTRAINT, lost))
    fleet.submit()
    let_it_expire(engine)
    assert newer.take()
    with pytest.raises(LeadLostError):
        run_cycle(units, SCHEDULER)
    unit = units.begin(SCHEDULER, NOTE_WAITING, quiet=True)
    unit.session.execute(update(Job).values(state_reason="written by a former leader"))
    with pytest.raises(LeadLostError):
        unit.__exit__(None, None, None)
    assert fleet.num_taken_gpus() == 0
    assert len(run_cycle(fleet.units, SCHEDULER).placements) == 1


def test_a_former_leader_notes_no_reason_to_wait(fleet: Fleet, engine: Engine, leases: list[LeaderLease]) -> None:
    former, newer = leases
    assert former.take()
    units = replace(fleet.units, guard=Guard(former.guard, CONSTRAINT, LeadLostError("another leads")))
    for _ in range(3):
        fleet.submit()
    assert len(run_cycle(units, SCHEDULER).placements) == 2, "the third waits"
    let_it_expire(engine)
    assert newer.take()
    with engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET state_reason = 'by the newer', wait_verdict = NULL"))
    with pytest.raises(LeadLostError):
        run_cycle(units, SCHEDULER)
    with engine.connect() as connection:
        query = text("SELECT state_reason, wait_verdict FROM jobs WHERE state = 'QUEUED'")
        assert connection.execute(query).all() == [("by the newer", None)]


def test_a_lead_that_was_not_taken_meanwhile_continues(
    engine: Engine, leases: list[LeaderLease], clock: HandClock
) -> None:
    lease = leases[0]
    assert lease.take()
    let_it_expire(engine)
    clock.now_s += 3 * LEASE_S
    lease.require()
    assert lead(engine).term == 1


class Schedulers:
    """Two real processes, with a lease of two seconds."""

    def __init__(self, database_url: str, folder: Path, python: Path) -> None:
        self._variables = child_environment(database_url=database_url, scheduler_lease_s=2)
        self._folder = folder
        self._python = str(python)
        self._children: list[Child] = []

    def start(self, name: str) -> None:
        child = Child(name, ["scheduler"], self._variables, self._folder / f"{name}.log", self._python)
        child.start()
        self._children.append(child)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def close(self) -> None:
        for child in self._children:
            child.stop()


@pytest.fixture
def schedulers(database_url: str, short_folder: Path, warm_stack: WarmPython) -> Iterator[Schedulers]:
    made = Schedulers(database_url, short_folder, warm_stack.daemon)
    yield made
    made.close()


def test_a_stopped_leader_loses_the_lead_and_writes_nothing_as_it_is_resumed(
    fleet: Fleet, engine: Engine, schedulers: Schedulers
) -> None:
    schedulers.start("first")
    wait_until(lambda: "scheduler_active" in schedulers.log("first"))
    job = fleet.submit()
    wait_until(lambda: len(fleet.attempts(job)) == 1)
    before = lead(engine)
    pid = int(before.holder.split(":")[1])
    os.kill(pid, signal.SIGSTOP)
    written = len(schedulers.log("first"))
    schedulers.start("second")
    try:
        wait_until(lambda: lead(engine).term > before.term)
        other = fleet.submit()
        wait_until(lambda: len(fleet.attempts(other)) == 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    fleet.submit()
    wait_until(lambda: "loop_pauses" in schedulers.log("first")[written:])
    resumed = schedulers.log("first")[written:].partition("scheduler_active")[0]
    assert "decision_committed" not in resumed
    assert "process_ends" not in resumed, "it stands by"


OF_0_1_0 = text("""
    SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = :namespace
        AND objid = :key AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
""")
"""How an API of 0.1.0 asks whether a scheduler is active; it would show none otherwise."""
LOCK_OF_0_1_0 = {"namespace": 0x4D55, "key": zlib.crc32(b"scheduler") & 0x7FFFFFFF}


def test_an_api_of_0_1_0_sees_the_lead_as_long_as_it_lasts(
    engine: Engine, leases: list[LeaderLease], clock: HandClock
) -> None:
    lease, standby = leases

    def is_active() -> bool:
        with engine.connect() as connection:
            return bool(connection.scalar(OF_0_1_0, LOCK_OF_0_1_0))

    assert not is_active()
    assert lease.take()
    assert is_active()
    with engine.connect() as scheduler_of_0_1_0:
        own = text("SELECT pg_try_advisory_lock(:namespace, :key)")
        assert scheduler_of_0_1_0.scalar(own, LOCK_OF_0_1_0), "it works as before, with this one"
        scheduler_of_0_1_0.execute(text("SELECT pg_advisory_unlock_all()"))
    let_it_expire(engine)
    assert standby.take()
    clock.now_s += RENEW_S * 2
    lease.advance()
    assert is_active(), "of the new lead"
    standby.close()
    # The former one holds its mark no more. The database ends a session some moments after its connection is closed.
    wait_until(lambda: not is_active())


def test_a_lead_on_a_new_connection_is_marked_again(
    engine: Engine, leases: list[LeaderLease], clock: HandClock
) -> None:
    lease, _ = leases
    assert lease.take()
    with engine.begin() as connection:
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'muster-lead'")
        )
    for _ in range(2):  # the first renewal finds the connection dead
        clock.now_s += RENEW_S
        lease.advance()
    lease.require()
    with engine.connect() as connection:
        assert connection.scalar(OF_0_1_0, LOCK_OF_0_1_0)
