"""Findings of a job: from the newest paces of its ranks, and from two days of its steps."""

from datetime import timedelta

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.jobs.findings import NO_PACE, WELL, JobFindings, findings_of_job
from ledger.findings import FindingKind
from muster.db.models import TrainingRank, TrainingStep
from muster.domain.errors import NotFoundError
from muster.domain.ids import JobId, TenantId
from muster.domain.principals import Principal, Role
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, make_fleet

EVEN = {"data_s": 0.0, "forward_s": 0.5, "backward_s": 0.5, "collective_s": 0.0, "optimizer_s": 0.0, "other_s": 0.0}


class World:
    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.units = units
        self.clock = clock
        self.fleet: Fleet = make_fleet(units)
        self.fleet.beat()

    def running(self) -> JobId:
        job_id = self.fleet.submit()
        self.fleet.reconcile()
        self.fleet.cycle()
        return job_id

    def reports(self, job_id: JobId, *paces: dict[str, float]) -> None:
        attempt_id = self.fleet.attempts(job_id)[-1].attempt.id
        with self.units.begin(OPERATOR, jobs.READ, quiet=True) as unit:
            unit.session.add_all(
                TrainingRank(
                    attempt_id=attempt_id,
                    rank=rank,
                    tenant_id=self.fleet.tenant_id,
                    node_id=self.fleet.node_id,
                    world_size=len(paces),
                    updated_at=unit.now,
                    pace={**EVEN, **pace},
                )
                for rank, pace in enumerate(paces)
            )

    def steps(self, job_id: JobId, first: int, tokens_per_s: float, hours_ago: int) -> None:
        attempt_id = self.fleet.attempts(job_id)[-1].attempt.id
        with self.units.begin(OPERATOR, jobs.READ, quiet=True) as unit:
            unit.session.add_all(
                TrainingStep(
                    attempt_id=attempt_id,
                    step=first + number,
                    job_id=job_id,
                    tenant_id=self.fleet.tenant_id,
                    at=unit.now - timedelta(hours=hours_ago) + timedelta(minutes=number),
                    pace={**EVEN, "tokens_per_s": tokens_per_s} if number % 2 == 0 else None,
                )
                for number in range(40)
            )

    def found(self, job_id: JobId, reader: Principal | None = None) -> JobFindings:
        with self.units.begin(reader or self.fleet.tenant, jobs.READ, dry_run=True, quiet=True) as unit:
            return findings_of_job(unit, job_id)


@pytest.fixture
def world(units: UnitOfWorkFactory, clock: SetClock) -> World:
    return World(units, clock)


def test_the_newest_pace_of_all_ranks_is_judged(world: World) -> None:
    job_id = world.running()
    world.reports(job_id, {"collective_s": 0.4}, {"collective_s": 0.2})
    [found] = world.found(job_id).findings
    assert found.kind is FindingKind.COMMUNICATION_FAULT
    assert found.value == pytest.approx(0.3 / 1.3)
    assert found.num_reports == 2


def test_two_days_of_its_steps_are_compared(world: World) -> None:
    job_id = world.running()
    world.reports(job_id, {}, {})
    world.steps(job_id, 0, 1000.0, hours_ago=40)
    world.steps(job_id, 40, 500.0, hours_ago=10)
    [found] = world.found(job_id).findings
    assert (found.kind, found.value, found.bar, found.gain) == (FindingKind.THROUGHPUT_DOWN, 1000.0, 2000.0, 2.0)


def test_a_training_that_is_well_states_it(world: World) -> None:
    job_id = world.running()
    world.reports(job_id, {})
    assert world.found(job_id) == JobFindings([], WELL)


def test_a_foreign_program_without_a_pace_has_none_and_states_why(world: World) -> None:
    assert world.found(world.running()) == JobFindings((), NO_PACE)


def test_a_job_that_has_never_run_states_nothing(world: World) -> None:
    assert world.found(world.fleet.submit()) == JobFindings((), None)


def test_another_tenant_reads_none(world: World) -> None:
    stranger = Principal(name="eve", role=Role.TENANT_MEMBER, tenant_id=TenantId("ten_other"))
    with pytest.raises(NotFoundError):
        world.found(world.running(), stranger)
