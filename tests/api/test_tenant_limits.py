"""What a tenant's client reads of limits and of long jobs: a 429 with what to do, and lists without programs."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from control.core.unit_of_work import utc_now
from control.policy.policies import ACTIVATE, store_policy
from muster.domain.policy.document import Policy
from tests.api.conftest import Api
from tests.fleet_factory import OPERATOR

JOB = {"name": "long", "program": {"script": "/srv/train.py", "args": ["x" * 4000]}, "labels": {"team": "a"}}


class MovedClock:
    """It stands until a test moves it, so that no part of a tenant's minute passes by itself."""

    def __init__(self) -> None:
        self.now = utc_now()

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def moved() -> MovedClock:
    return MovedClock()


@pytest.fixture
def api_clock(moved: MovedClock) -> Callable[[], datetime]:
    return moved


def limit(api: Api, **limits: int) -> None:
    with api.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy.model_validate({"limits": {"tenant": limits}}), reason="test")


def test_a_job_beyond_a_limit_is_answered_with_429_and_what_to_do(api: Api, moved: MovedClock) -> None:
    limit(api, submissions_per_minute=2)
    for _ in range(2):
        assert api.client.post("/v1/jobs", json=JOB, headers=api.headers()).status_code == 201
    key = {**api.headers(), "Idempotency-Key": "one"}
    refused = api.client.post("/v1/jobs", json=JOB, headers=key)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "30")
    problem = refused.json()
    assert (problem["code"], problem["limit"]) == ("tenant_limit", "limits.tenant.submissions_per_minute")
    assert "An operator may raise" in problem["suggestion"]
    found = api.client.get(f"/v1/tenants/{api.fleet.tenant_id}/limits", headers=api.headers()).json()["items"]
    assert [(one["field"], one["most"]) for one in found] == [
        ("open_jobs", 2_000),
        ("stored_bytes", 64 << 20),
        ("submissions_per_minute", 2),
    ]
    moved.now += timedelta(seconds=30)
    assert api.client.post("/v1/jobs", json=JOB, headers=key).status_code == 201, "a refusal stores no answer"


def test_a_list_has_no_program_and_the_document_has_it(api: Api) -> None:
    job_id = api.client.post("/v1/jobs", json=JOB, headers=api.headers()).json()["id"]

    def read() -> tuple[dict[str, object], dict[str, object]]:
        (listed,) = api.client.get("/v1/jobs", headers=api.headers()).json()["items"]
        return listed["spec"], api.client.get(f"/v1/jobs/{job_id}", headers=api.headers()).json()["spec"]

    listed, whole = read()
    assert listed == {name: whole[name] for name in listed}
    assert {"name", "tier", "shape", "labels", "wall_time_s"} <= listed.keys()
    assert "program" not in listed
    assert whole["program"]["args"] == ["x" * 4000]  # type: ignore[index]  # a document of JSON
    with api.units.engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET request = NULL, labels = NULL, spec_bytes = NULL"))
    assert read() == (listed, whole), "a row of release 0.1.0"


def test_labels_that_every_cycle_would_read_are_bounded(api: Api) -> None:
    long = {**JOB, "labels": {f"name-{number}": "v" * 1000 for number in range(20)}}
    refused = api.client.post("/v1/jobs", json=long, headers=api.headers())
    assert refused.status_code == 422
    assert [(one["pointer"], one["code"]) for one in refused.json()["errors"]] == [("/labels", "too_long")]
