"""The circuit breaker by REST."""

from typing import Any

from control.health.judge import judge_once
from muster.db.models import Breaker, Incident
from tests.api.conftest import Api
from tests.api.judged_fleet import JUDGE, OTHER, act, fault, rows, show, trip
from tests.api.judged_fleet import api as api  # noqa: PLC0414  # the fixture


def breaker(api: Api) -> dict[str, Any]:
    (found,) = api.client.get("/v1/breakers", headers=api.headers("auditor")).json()["items"]
    document: dict[str, Any] = found
    return document


def close(api: Api, scope: str, status: int = 200) -> dict[str, Any]:
    body = {"scope": scope, "reason": "inspected it"}
    answer = api.client.post("/v1/breakers/quarantine/close", json=body, headers=api.headers("operator"))
    assert answer.status_code == status, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_an_open_breaker_is_reported_and_closed_by_a_person(api: Api) -> None:
    assert not breaker(api)["is_open"]
    trip(api)
    found = breaker(api)
    open_scopes = [each["scope"] for each in found["scopes"] if each["is_open"]]
    assert found["is_open"]
    assert "fleet_window" in open_scopes
    full = next(each for each in found["scopes"] if each["scope"] == "fleet_window")
    assert (full["num_quarantined"], full["cap"]) == (1, 1)
    waiting = show(api, OTHER)
    assert (waiting["standing"], waiting["proposed"]["to_standing"]) == ("HEALTHY", "QUARANTINED")
    assert show(api)["proposed"] is None
    for scope in open_scopes:
        assert not any(row.closed_at for row in rows(api, Incident)), "the incident lasts as long as a scope is open"
        close(api, scope)
    assert not breaker(api)["is_open"]
    assert all(row.closed_at for row in rows(api, Incident))
    judge_once(api.units, JUDGE)
    assert show(api, OTHER)["standing"] == "QUARANTINED", "what waited for the breaker is judged at once"


def test_a_dry_run_of_the_last_close_states_which_gpu_then_leaves_service(api: Api) -> None:
    api.fleet.beat()
    trip(api)
    *others, last = [each["scope"] for each in breaker(api)["scopes"] if each["is_open"]]
    for scope in others:
        close(api, scope)
    body = {"scope": last, "reason": "inspected it"}
    path = "/v1/breakers/quarantine/close?dry_run=true"
    effect = api.client.post(path, json=body, headers=api.headers("operator")).json()["effect"]
    assert f"GPU {OTHER} moves from HEALTHY to QUARANTINED" in effect["changes"]
    assert show(api, OTHER)["standing"] == "HEALTHY"
    close(api, last)
    judge_once(api.units, JUDGE)
    assert show(api, OTHER)["standing"] == "QUARANTINED"


def test_a_scope_that_is_not_open_is_not_closed(api: Api) -> None:
    refused = close(api, "fleet", 409)
    assert refused["open_scopes"] == []
    missing = api.client.post(
        "/v1/breakers/none/close", json={"scope": "fleet", "reason": "x"}, headers=api.headers("operator")
    )
    assert missing.status_code == 404


def test_a_gpu_that_a_person_brought_back_counts_no_more_for_the_breaker_at_large(api: Api) -> None:
    fault(api)
    (evidence,) = show(api)["evidence"]
    scopes = {each["scope"]: each["num_quarantined"] for each in breaker(api)["scopes"]}
    assert scopes["fleet"] == 1
    act(api, f"evidence/{evidence['id']}/dismiss")
    assert [each["is_out"] for each in rows(api, Breaker)[0].state["quarantined"]] == [False]
