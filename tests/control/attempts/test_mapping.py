"""A row's values: a job's request is parsed once for each loaded row."""

from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWorkFactory
from muster.db.models import Job
from tests.fleet_factory import make_fleet


def test_a_request_is_parsed_once_for_each_loaded_row(units: UnitOfWorkFactory) -> None:
    job_id = make_fleet(units).submit()
    found = []
    for _ in range(2):
        with units.read() as session:
            job = session.get_one(Job, job_id)
            found.append(job_request(job))
            assert job_request(job) is found[-1]
    assert found[0] == found[1]
    assert found[0] is not found[1], "another load is another row"
