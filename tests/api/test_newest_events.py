"""``GET /v1/events/newest``: from the end that people begin with."""

from typing import Any

import pytest

from control.core.sequencer import sequence_once
from tests.api.conftest import GOOD_JOB, Api


def newest(api: Api, actor: str = "tenant_member", **filters: Any) -> dict[str, Any]:
    answer = api.client.get("/v1/events/newest", params=filters, headers=api.headers(actor))
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


@pytest.fixture
def jobs(api: Api) -> list[str]:
    made = [("tenant_member", "one"), ("tenant_member", "two"), ("other_tenant", "canary")]
    asked = [
        api.client.post("/v1/jobs", json={**GOOD_JOB, "name": name}, headers=api.headers(who)) for who, name in made
    ]
    while sequence_once(api.units):
        pass
    return [answer.json()["id"] for answer in asked]


def test_they_are_the_same_events_from_the_other_end(api: Api, jobs: list[str]) -> None:
    forward = api.client.get("/v1/events", params={"limit": 200}, headers=api.headers()).json()["items"]
    assert newest(api, limit=200)["items"] == forward[::-1]
    assert jobs[2] not in str(newest(api, limit=200))
    assert jobs[2] in str(newest(api, "auditor", limit=200))


def test_each_filter_narrows_and_pages_follow_one_another(api: Api, jobs: list[str]) -> None:
    of_one = newest(api, "operator", subject_id=jobs[0])["items"]
    assert {event["subject_id"] for event in of_one} == {jobs[0]}
    queued = newest(api, "operator", kind="job.queued")["items"]
    assert [event["subject_id"] for event in queued] == jobs[::-1]
    first = newest(api, "operator", kind="job.queued", limit=2)
    rest = newest(api, "operator", kind="job.queued", limit=2, cursor=first["next_cursor"])
    assert first["items"] + rest["items"] == queued
    assert rest["next_cursor"] is None
    assert newest(api, "operator", kind="no.such")["items"] == []


def test_a_cursor_is_good_for_its_own_filters_alone(api: Api, jobs: list[str]) -> None:
    cursor = newest(api, "operator", kind="job.", limit=1)["next_cursor"]
    answer = api.client.get("/v1/events/newest", params={"cursor": cursor}, headers=api.headers("operator"))
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize("filters", [{"kind": ""}, {"kind": "a\x00"}, {"subject_id": "ä"}, {"limit": "0"}])
def test_what_is_no_filter_is_named(api: Api, filters: dict[str, str]) -> None:
    answer = api.client.get("/v1/events/newest", params=filters, headers=api.headers())
    assert answer.status_code == 422
    assert next(iter(filters)) in answer.text
