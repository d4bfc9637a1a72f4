"""Releasing a job that is HELD, over HTTP."""

from control.attempts.attempts import lock_job, step_job
from control.jobs.jobs import RELEASE
from control.policy.policies import active_policy
from muster.domain.ids import JobId
from muster.domain.lifecycle import job as jobs
from tests.api.conftest import GOOD_JOB, Api
from tests.fleet_factory import OPERATOR


def _assigned(api: Api) -> str:
    job_id: str = api.client.post("/v1/jobs", json=GOOD_JOB, headers=api.headers()).json()["id"]
    with api.units.begin(OPERATOR, RELEASE) as unit:
        step_job(unit, lock_job(unit, JobId(job_id)), jobs.HoldRequested("look at it"), active_policy(unit.session))
        unit.audit("test", "job", job_id)
    return job_id


def test_what_is_on_hold_is_released_once_by_its_tenant(api: Api) -> None:
    job_id = _assigned(api)
    path = f"/v1/jobs/{job_id}/release"
    assert api.client.get(f"/v1/jobs/{job_id}", headers=api.headers()).json()["state"] == "HELD"
    assert api.client.post(path, json={}, headers=api.headers("other_tenant")).status_code == 404
    assert api.client.post(path, json={}, headers=api.headers("auditor")).status_code == 403
    rehearsed = api.client.post(f"{path}?dry_run=true", json={}, headers=api.headers())
    assert rehearsed.status_code == 200
    released = api.client.post(path, json={"reason": "mended"}, headers=api.headers())
    assert (released.status_code, released.json()["state"]) == (200, "QUEUED")
    again = api.client.post(path, json={}, headers=api.headers())
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
