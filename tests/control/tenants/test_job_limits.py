"""Limits on what a tenant submits: the job beyond a limit is refused by name, also of two at once, and of no other."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.tenants.job_limits import READ, admit_submission, limits_of, limits_of_all
from muster.domain.errors import TenantLimitError
from muster.domain.ids import TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.policy.document import Policy
from muster.domain.states import JobState
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.filled_once import filled_world
from tests.fleet_factory import OPERATOR


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    return filled_world(units, clock, "a host of two GPUs", lambda: make_stage(units, clock, num_hosts=1))


def limit(stage: Stage, **limits: int) -> None:
    stage.set_policy(Policy.model_validate({"limits": {"tenant": limits}}))


def used(stage: Stage, tenant_id: TenantId | None = None) -> dict[str, int]:
    with stage.units.begin(stage.fleet.tenant, READ, quiet=True) as unit:
        return {one.field: one.used for one in limits_of(unit, tenant_id or stage.fleet.tenant_id)}


def test_a_job_too_many_is_refused_until_one_has_ended(stage: Stage) -> None:
    limit(stage, open_jobs=2)
    first, _ = stage.submit("on_demand"), stage.submit("on_demand")
    with pytest.raises(TenantLimitError) as refused:
        stage.submit("on_demand")
    assert refused.value.detail == "the tenant has 2 jobs that have not ended, of at most 2 (limits.tenant.open_jobs)"
    assert refused.value.retry_after_s == 60
    assert [fault.code for fault in refused.value.faults] == ["open_jobs"]
    stage.submit("on_demand", by=stage.add_tenant("globex"))
    assert used(stage)["open_jobs"] == 2, "another tenant's jobs are not its own"
    with stage.units.begin(stage.fleet.tenant, jobs.CANCEL) as unit:
        assert jobs.cancel(unit, first).state is JobState.CANCELLED
    stage.submit("on_demand")


def test_the_bytes_of_open_jobs_are_bounded_in_all(stage: Stage) -> None:
    limit(stage, stored_bytes=10_000)
    long = {"script": "/srv/train.py", "args": ["x" * 4000]}
    job_id = stage.submit("on_demand", program=long)
    size = used(stage)["stored_bytes"]
    assert 4_000 < size < 6_000
    stage.submit("on_demand")
    with pytest.raises(TenantLimitError, match=r"limits\.tenant\.stored_bytes") as refused:
        stage.submit("on_demand", program=long)
    assert refused.value.faults[0].pointer == "/program"
    with stage.units.begin(stage.fleet.tenant, jobs.CANCEL) as unit:
        jobs.cancel(unit, job_id)
    stage.submit("on_demand", program=long)


def test_submissions_beyond_the_rate_state_when_to_come_again(stage: Stage) -> None:
    limit(stage, submissions_per_minute=6)
    for _ in range(6):
        stage.submit("on_demand")
    with pytest.raises(TenantLimitError, match="6 jobs a minute") as refused:
        stage.submit("on_demand")
    assert refused.value.retry_after_s == 10
    assert used(stage)["submissions_per_minute"] == 6
    stage.clock.advance(10)
    stage.submit("on_demand")
    with pytest.raises(TenantLimitError):
        stage.submit("on_demand")
    stage.clock.advance(3600)
    assert used(stage)["submissions_per_minute"] == 0


def test_a_trial_and_a_refused_job_use_nothing_up(stage: Stage) -> None:
    limit(stage, submissions_per_minute=1, open_jobs=1)
    spec = JobSpec.model_validate({"name": "job", "program": {"script": "/srv/train.py"}}, strict=False)
    with stage.units.begin(stage.fleet.tenant, jobs.SUBMIT, dry_run=True) as unit:
        jobs.submit(unit, spec)
    assert used(stage)["submissions_per_minute"] == 0
    stage.submit("on_demand")
    stage.clock.advance(60)
    with pytest.raises(TenantLimitError, match="open_jobs"):
        stage.submit("on_demand")
    assert used(stage)["submissions_per_minute"] == 0


def test_of_jobs_at_once_no_more_than_the_limit_are_accepted(stage: Stage) -> None:
    limit(stage, open_jobs=3)

    def submit(_: int) -> bool:
        try:
            stage.submit("on_demand")
        except TenantLimitError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        accepted = list(pool.map(submit, range(12)))
    assert sum(accepted) == used(stage)["open_jobs"] == 3


def test_another_tenant_waits_for_no_lock_of_this_one(stage: Stage) -> None:
    other = stage.add_tenant("globex")
    with stage.units.begin(stage.fleet.tenant, jobs.SUBMIT, quiet=True) as unit:
        admit_submission(unit, stage.fleet.tenant_id, 1)
        job_id = stage.submit("on_demand", by=other)  # in another unit, while this one has its lock
    assert stage.job(job_id).state is JobState.QUEUED


def test_an_operator_sees_the_limits_of_all_and_a_tenant_its_own(stage: Stage) -> None:
    stage.add_tenant("globex")
    stage.submit("on_demand")
    with stage.units.begin(OPERATOR, READ, quiet=True) as unit:
        found = {one.tenant.name: one.limits[0] for one in limits_of_all(unit)}
    assert (found["acme"].used, found["globex"].used) == (1, 0)
    with stage.units.begin(stage.fleet.tenant, READ, quiet=True) as unit:
        assert [one.tenant.name for one in limits_of_all(unit)] == ["acme"]
