"""Incidents by REST: read by filters and pages, closed by a person where no rule does it."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select

from control.incidents.incidents import CLOSE, open_incident
from muster.db.models import AuditEntry, Event
from muster.domain.evidence.incidents import CLOSED_BY_RULE, IncidentKind
from tests.api.conftest import Api
from tests.api.judged_fleet import JUDGE

GPU = "GPU-alpha-0"
UNKNOWN = "inc_00000000000000000000000000"


def opened(api: Api, kind: IncidentKind = IncidentKind.BURN_IN_ABANDONED, subject_id: str = GPU) -> str:
    with api.units.begin(JUDGE, CLOSE) as unit:
        return open_incident(unit, kind, "gpu", subject_id, f"{subject_id} needs attention", {"tries": 3}).id


def listed(api: Api, **filters: Any) -> list[str]:
    answer = api.client.get("/v1/incidents", params=filters, headers=api.headers("auditor"))
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


def close(api: Api, incident_id: str, status: int = 200, query: str = "", **body: Any) -> dict[str, Any]:
    url = f"/v1/incidents/{incident_id}/close{query}"
    answer = api.client.post(url, json=body or {"reason": "cable exchanged"}, headers=api.headers("operator"))
    assert answer.status_code == status, answer.text
    document: dict[str, Any] = answer.json()
    return document


def about(api: Api, table: type[Any], incident_id: str) -> Sequence[Any]:
    with api.units.read() as session:
        return session.scalars(select(table).where(table.subject_id == incident_id).order_by(table.id)).all()


def test_an_incident_is_read_with_what_it_is_about(api: Api) -> None:
    incident_id = opened(api)
    shown = api.client.get(f"/v1/incidents/{incident_id}", headers=api.headers("operator")).json()
    assert (shown["kind"], shown["state"], shown["closes"]) == ("burn_in_abandoned", "open", None)
    assert (shown["subject_type"], shown["subject_id"], shown["details"]) == ("gpu", GPU, {"tries": 3})
    for unknown in (UNKNOWN, "inc_x", GPU):
        assert api.client.get(f"/v1/incidents/{unknown}", headers=api.headers("operator")).status_code == 404


def test_lists_are_filtered(api: Api) -> None:
    mine, other = opened(api), opened(api, IncidentKind.JUDGE_FAILED, "GPU-alpha-1")
    assert listed(api) == sorted([mine, other], reverse=True)
    close(api, mine)
    assert listed(api, state="open") == listed(api, subject="GPU-alpha-1") == [other]
    assert listed(api, state="closed") == listed(api, kind="burn_in_abandoned") == [mine]
    assert listed(api, kind=["burn_in_abandoned", "judge_failed"], state="closed", subject=GPU) == [mine]
    assert listed(api, subject="GPU-nowhere") == []


@pytest.mark.parametrize("bad", [{"state": "ajar"}, {"kind": "storm"}, {"subject": "a\x00b"}, {"limit": 0}])
def test_a_filter_that_means_nothing_is_refused_by_name(api: Api, bad: dict[str, Any]) -> None:
    answer = api.client.get("/v1/incidents", params=bad, headers=api.headers("operator"))
    assert answer.status_code == 422
    assert next(iter(bad)) in answer.text


def test_pages_follow_one_another_and_a_cursor_is_good_for_its_filters_alone(api: Api) -> None:
    every = {opened(api, subject_id=f"GPU-{number}") for number in range(5)}
    found, cursor = [], None
    while True:
        asked = {"limit": 2, "state": "open", **({"cursor": cursor} if cursor else {})}
        page = api.client.get("/v1/incidents", params=asked, headers=api.headers("operator")).json()
        found += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
    assert found == sorted(every, reverse=True)
    answer = api.client.get("/v1/incidents", params={"cursor": cursor}, headers=api.headers("operator"))
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


def test_a_person_closes_one_with_a_reason_and_twice_is_the_same_as_once(api: Api) -> None:
    incident_id = opened(api)
    tried = close(api, incident_id, query="?dry_run=true")
    assert [each["kind"] for each in tried["consequences"]] == ["incident.closed"]
    assert listed(api, state="open") == [incident_id]
    closed = close(api, incident_id)
    assert (closed["state"], closed["close_reason"]) == ("closed", "cable exchanged")
    assert close(api, incident_id, reason="again") == closed
    (entry,) = about(api, AuditEntry, incident_id)
    assert (entry.action, entry.reason) == ("incident.close", "cable exchanged")
    assert [event.kind for event in about(api, Event, incident_id)] == ["incident.opened", "incident.closed"]
    close(api, UNKNOWN, 404)


@pytest.mark.parametrize("body", [{"reason": ""}, {"reason": "  "}, {"reason": None}, {"because": "x"}])
def test_a_reason_is_needed(api: Api, body: dict[str, Any]) -> None:
    incident_id = opened(api)
    assert "/reason" in str(close(api, incident_id, 422, **body))
    assert listed(api, state="open") == [incident_id]


@pytest.mark.parametrize("kind", sorted(CLOSED_BY_RULE))
def test_what_a_rule_closes_no_person_closes_and_is_reported_the_way(api: Api, kind: str) -> None:
    incident_id = opened(api, IncidentKind(kind))
    refused = close(api, incident_id, 409)
    assert refused["suggestion"] == CLOSED_BY_RULE[kind]
    shown = api.client.get(f"/v1/incidents/{incident_id}", headers=api.headers("auditor")).json()
    assert (shown["state"], shown["closes"]) == ("open", CLOSED_BY_RULE[kind])


def test_only_operators_close(api: Api) -> None:
    incident_id = opened(api)
    for who in ("tenant_admin", "auditor", "node"):
        answer = api.client.post(f"/v1/incidents/{incident_id}/close", json={"reason": "x"}, headers=api.headers(who))
        assert answer.status_code == 403
    assert listed(api, state="open") == [incident_id]
