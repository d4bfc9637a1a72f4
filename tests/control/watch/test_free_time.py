"""The time of a re-run on other GPUs that is free of charge: what it needs, and the bound of the tenant."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select

from control.attempts.reruns import charged_from
from control.core.unit_of_work import UnitOfWorkFactory
from control.policy.policies import active_policy
from control.watch import read
from muster.db.models import Attempt
from tests.control.conftest import SetClock
from tests.control.watch.test_reruns import RERUN, RIGHT, SuspectJob
from tests.filled_once import filled_world
from tests.lock_waits import wait_for_a_lock


@pytest.fixture
def job(units: UnitOfWorkFactory, clock: SetClock) -> SuspectJob:
    return filled_world(units, clock, "a job whose ranks may compute wrong", lambda: SuspectJob(units, clock))


@pytest.mark.parametrize("results", [[], [[7, "c", [[9, "1"]]]]])
def test_a_run_without_results_of_a_suspect_rank_is_charged(job: SuspectJob, results: list[object]) -> None:
    job.repeat_in_place()
    job.run()
    job.clock.advance(800)
    job.report({**RERUN, "place": "elsewhere", "is_again": False, "results": results})
    with job.units.read() as session:
        assert session.get_one(Attempt, job.attempt.id).charged_from is None


def test_a_tenant_gets_so_much_time_free_a_day(job: SuspectJob) -> None:
    job.repeat_in_place()
    job.run()
    with job.units.begin(job.hosts[0].principal, read.READ, quiet=True) as unit:
        earlier = unit.session.scalars(select(Attempt).where(Attempt.number == 1)).one()
        earlier.charged_from = earlier.placed_at + timedelta(seconds=3_000)
    job.clock.advance(800)
    job.report({**RERUN, "place": "elsewhere", "is_again": False, "results": RIGHT})
    with job.units.read() as session:
        attempt = session.get_one(Attempt, job.attempt.id)
        assert attempt.charged_from == attempt.placed_at + timedelta(seconds=600)


def test_of_two_that_are_decided_at_once_the_second_counts_the_first(job: SuspectJob) -> None:
    job.repeat_in_place()
    job.run()
    job.clock.advance(800)
    principal = job.hosts[0].principal
    with ThreadPoolExecutor() as pool, job.units.begin(principal, read.READ, quiet=True) as unit:
        first = unit.session.scalars(select(Attempt).where(Attempt.number == 1)).one()
        charged_from(unit.session, first, unit.now, active_policy(unit.session))
        first.charged_from = first.placed_at + timedelta(seconds=3_000)
        unit.session.flush()
        second = pool.submit(job.report, {**RERUN, "place": "elsewhere", "is_again": False, "results": RIGHT})
        wait_for_a_lock(job.units)
    second.result()
    with job.units.read() as session:
        attempt = session.get_one(Attempt, job.attempt.id)
        assert attempt.charged_from == attempt.placed_at + timedelta(seconds=600)
