"""Requests that arrive while others are being answered: each gets a read made after it, and few plans serve many."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Semaphore
from typing import Any

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import job_plans
from control.jobs.job_plans import EXPLAIN, JobPlan, explain_job
from control.placement import scheduling, shared_what_if
from muster.domain.ids import JobId
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage

NUM_REQUESTING = 8


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Two hosts of two GPUs each, on which a job runs."""
    stage = make_stage(units, clock, num_hosts=2)
    stage.run("on_demand", shape={"nodes": 2, "gpus_per_node": 2}, wall_time_s=3600.0)
    return stage


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(NUM_REQUESTING) as pool:
        yield pool


def waiting(stage: Stage) -> JobId:
    return stage.submit("on_demand", shape={"nodes": 1, "gpus_per_node": 2}, wall_time_s=600.0)


def explained(stage: Stage, job_id: JobId) -> JobPlan:
    with stage.units.begin(stage.fleet.tenant, EXPLAIN, dry_run=True, quiet=True) as unit:
        return explain_job(unit, job_id)


class Questions:
    """Counts them; the first waits for ``goes_on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num, self.has_begun, self.goes_on = 0, Event(), Event()
        monkeypatch.setattr(job_plans, "question", self)

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.num += 1
        found = scheduling.question(*given, **named)
        self.has_begun.set()
        assert self.goes_on.wait(30)
        return found


def test_many_what_ask_at_once_are_reported_by_two_plans_what_each_alone_is_reported(
    stage: Stage, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [waiting(stage) for _ in range(NUM_REQUESTING)]
    alone = [explained(stage, job_id) for job_id in jobs]
    assert len({plan.num_ahead for plan in alone}) == NUM_REQUESTING
    questions, num_here = Questions(monkeypatch), Semaphore(0)

    def together(*given: Any) -> Any:
        num_here.release()
        return shared_what_if.plan_shared(*given)

    monkeypatch.setattr(job_plans, "plan_shared", together)
    asking = [pool.submit(explained, stage, job_id) for job_id in jobs]
    assert all(num_here.acquire(timeout=30) for _ in jobs)
    time.sleep(0.2)  # all but the first wait for the next plan
    questions.goes_on.set()
    assert [each.result(30) for each in asking] == alone
    assert questions.num == 2


def test_a_caller_that_requests_after_a_plan_was_begun_is_reported_what_has_changed_since(
    stage: Stage, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = waiting(stage)
    questions = Questions(monkeypatch)
    before = pool.submit(explained, stage, first)
    assert questions.has_begun.wait(30)
    second = waiting(stage)
    after = pool.submit(explained, stage, second)
    questions.goes_on.set()
    assert before.result(30).num_ahead == 0
    assert after.result(30).num_ahead == 1
    assert questions.num == 2


def test_where_a_plan_fails_the_next_a_caller_that_requests_makes_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = waiting(stage)

    def fails(*_: Any, **__: Any) -> Any:
        raise LookupError

    with monkeypatch.context() as broken:
        broken.setattr(job_plans, "question", fails)
        with pytest.raises(LookupError):
            explained(stage, job_id)
    assert explained(stage, job_id).num_ahead == 0
