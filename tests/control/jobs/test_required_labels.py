"""Labels that the policy requires: each missing one is named at once, and jobs accepted before stay."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import retrying
from control.jobs.bulk_changes import RETRY
from control.jobs.job_plans import PLAN, plan_job
from control.policy import policies
from muster.domain.errors import ValidationFailedError
from muster.domain.job.spec import JobSpec
from muster.domain.policy.document import Policy
from tests.fleet_factory import OPERATOR, Fleet, make_fleet

RULE = {"limits": {"required_labels": {"project": ["vision", "speech"], "owner": []}}}
GOOD = {"project": "speech", "owner": "lin"}


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    return make_fleet(units)


def require_labels(fleet: Fleet) -> None:
    with fleet.units.begin(OPERATOR, policies.ACTIVATE) as unit:
        policies.store_policy(unit, Policy.model_validate(RULE, strict=False), reason="costs by project")


def faults(refused: pytest.ExceptionInfo[ValidationFailedError]) -> list[tuple[str, str]]:
    return [(one.pointer, one.code) for one in refused.value.faults]


def test_a_job_without_the_required_labels_is_refused_with_each_of_them(fleet: Fleet) -> None:
    require_labels(fleet)
    with pytest.raises(ValidationFailedError, match="accepted: vision, speech") as refused:
        fleet.submit()
    assert faults(refused) == [("/labels/owner", "missing_label"), ("/labels/project", "missing_label")]
    with pytest.raises(ValidationFailedError, match="games is not accepted") as refused:
        fleet.submit(labels={**GOOD, "project": "games"})
    assert faults(refused) == [("/labels/project", "unknown_label")]
    assert fleet.job(fleet.submit(labels=GOOD)).spec["labels"] == GOOD


def test_a_plan_and_a_retry_are_refused_alike_and_jobs_accepted_before_stay(fleet: Fleet) -> None:
    job = fleet.submit()
    require_labels(fleet)
    asked = JobSpec.model_validate({"name": "a", "program": {"script": "/srv/train.py"}}, strict=False)
    with pytest.raises(ValidationFailedError), fleet.units.begin(fleet.tenant, PLAN, dry_run=True) as unit:
        plan_job(unit, asked)
    fleet.cancel(job)
    with pytest.raises(ValidationFailedError), fleet.units.begin(fleet.tenant, RETRY) as unit:
        retrying.retry(unit, job, store=None)
