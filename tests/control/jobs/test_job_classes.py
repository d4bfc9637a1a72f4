"""The class of a job: as it names it, or the policy's default; an unknown one is refused with the known ones."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.jobs.listing import JobFilter, list_jobs
from muster.domain.errors import ValidationFailedError
from tests.fleet_factory import OPERATOR, Fleet, make_fleet


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    return make_fleet(units)


def test_a_job_has_the_class_that_it_names_or_the_default(fleet: Fleet) -> None:
    named, unnamed = fleet.submit(job_class="production"), fleet.submit()
    assert (fleet.job(named).job_class, fleet.job(unnamed).job_class) == ("production", "standard")
    assert fleet.job(named).spec["job_class"] == "production"
    assert "job_class" not in fleet.job(unnamed).spec, "a scheduler of 0.1.0 reads it"


def test_a_list_has_the_jobs_of_a_class_alone(fleet: Fleet) -> None:
    named = fleet.submit(job_class="production")
    fleet.submit()
    with fleet.units.begin(OPERATOR, jobs.READ, dry_run=True, quiet=True) as unit:
        assert [each.job.id for each in list_jobs(unit, JobFilter(job_class="production"), limit=9)] == [named]


def test_an_unknown_class_is_refused_with_the_known_ones(fleet: Fleet) -> None:
    with pytest.raises(ValidationFailedError) as refused:
        fleet.submit(job_class="prod")
    [fault] = refused.value.faults
    assert (fault.pointer, fault.code) == ("/job_class", "unknown_class")
    assert fault.detail == "the policy defines: experiment, production, standard"
