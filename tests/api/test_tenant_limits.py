"""What a tenant's client reads of limits and of long jobs: a 429 with what to do, and lists without programs."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta

import pytest
from httpx import Response
from sqlalchemy import text

from control.core.unit_of_work import utc_now
from control.policy.policies import ACTIVATE, store_policy
from control.tenants import planning
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
        ("planning_s_per_minute", 5),
    ]
    moved.now += timedelta(seconds=30)
    assert api.client.post("/v1/jobs", json=JOB, headers=key).status_code == 201, "a refusal stores no answer"


PLAN_S = 1.5


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let each plan take 1.5 s of CPU. Two marks a plan that was made."""
    taken: list[float] = []

    def mark() -> float:
        taken.append(PLAN_S * len(taken))
        return taken[-1]

    monkeypatch.setattr(planning, "thread_time", mark)
    return taken


def test_a_tenant_that_plans_without_end_is_refused_with_a_time(
    api: Api, moved: MovedClock, marks: list[float]
) -> None:
    """Whatever it asks for. Its jobs are taken, and others are answered."""
    limit(api, planning_s_per_minute=1)
    mine = api.headers()
    job_id = api.client.post("/v1/jobs", json=JOB, headers=mine).json()["id"]
    asks: dict[str, Callable[[], Response]] = {
        "a plan": lambda: api.client.post("/v1/job-plans", json=JOB, headers=mine),
        "an explanation": lambda: api.client.get(f"/v1/jobs/{job_id}/explanation", headers=mine),
        "a submission": lambda: api.client.post("/v1/jobs?dry_run=true", json=JOB, headers=mine),
        "a cancellation": lambda: api.client.post(f"/v1/jobs/{job_id}/cancel?dry_run=true", json={}, headers=mine),
    }
    for what, ask in asks.items():
        moved.now += timedelta(minutes=3)
        assert ask().status_code == 200, what
        num_marks = len(marks)
        for refused in [each() for each in asks.values()]:
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "30"), what
            assert refused.json()["limit"] == "limits.tenant.planning_s_per_minute"
        assert len(marks) == num_marks, "no plan of these was begun"
        used = api.client.get(f"/v1/tenants/{api.fleet.tenant_id}/limits", headers=mine).json()["items"][-1]
        assert used == {"field": "planning_s_per_minute", "used": 2, "most": 1}
    other = {"operator": JOB | {"tenant_id": api.fleet.tenant_id}, "other_tenant": JOB}
    for actor, body in other.items():
        assert api.client.post("/v1/job-plans", json=body, headers=api.headers(actor)).status_code == 200, actor
    assert api.client.post("/v1/jobs", json=JOB, headers=mine).status_code == 201
    moved.now += timedelta(seconds=31)
    assert asks["a plan"]().status_code == 200


@pytest.mark.usefixtures("marks")
def test_a_trial_that_is_refused_for_itself_counts_too(api: Api) -> None:
    limit(api, planning_s_per_minute=1)
    missing = "/v1/jobs/job_0000000000000000000000000a/cancel?dry_run=true"
    assert api.client.post(missing, json={}, headers=api.headers()).status_code == 404
    assert api.client.post(missing, json={}, headers=api.headers()).status_code == 429


def test_plans_of_one_tenant_at_once_are_bounded(api: Api) -> None:
    with ExitStack() as stack:
        for _ in range(planning.AT_ONCE):
            stack.enter_context(planning.planning(api.units, api.fleet.tenant))
        refused = api.client.post("/v1/job-plans", json=JOB, headers=api.headers())
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert api.client.post("/v1/job-plans", json=JOB, headers=api.headers()).status_code == 200


def test_a_key_stores_no_program_and_a_repetition_has_it(api: Api) -> None:
    """Else a tenant could store a megabyte with each key, also of jobs that have ended."""

    def change(path: str, key: str, **body: object) -> Response:
        made: Response = api.client.post(path, json=body, headers={**api.headers(), "Idempotency-Key": key})
        return made

    def num_stored() -> int:
        with api.units.engine.begin() as connection:
            return int(connection.scalar(text("SELECT max(length(body::text)) FROM idempotency_keys")) or 0)

    first = change("/v1/jobs", "submit", **JOB)
    path = f"/v1/jobs/{first.json()['id']}/cancel"
    made = [(first, change("/v1/jobs", "submit", **JOB)), (change(path, "cancel"), change(path, "cancel"))]
    assert 0 < num_stored() < 2_000
    for once, again in made:
        assert again.headers["Idempotency-Replayed"] == "true"
        assert (again.status_code, again.json(), again.headers["ETag"]) == (
            once.status_code,
            once.json(),
            once.headers["ETag"],
        )
        assert again.json()["spec"]["program"]["args"] == ["x" * 4000]
    with api.units.engine.begin() as connection:
        whole = "UPDATE idempotency_keys SET body = body || jsonb_build_object('spec', '{\"of\": \"0.1.0\"}'::jsonb)"
        connection.execute(text(whole.replace(":", r"\:")))
    assert change("/v1/jobs", "submit", **JOB).json()["spec"] == {"of": "0.1.0"}, "an answer of release 0.1.0 is whole"


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
