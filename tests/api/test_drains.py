"""``POST /v1/nodes/{node_id}/drain``: tried, done, watched, undone."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.api.conftest import GOOD_JOB, Api


def drain(api: Api, node: str = "alpha", status: int = 200, *, query: str = "", **body: Any) -> dict[str, Any]:
    wanted = {"reason": "new fans", **body}
    answer = api.client.post(f"/v1/nodes/{node}/drain{query}", json=wanted, headers=api.headers("operator"))
    assert answer.status_code == status, answer.text
    document: dict[str, Any] = answer.json()
    return document


def show(api: Api) -> dict[str, Any]:
    document: dict[str, Any] = api.client.get("/v1/nodes/alpha", headers=api.headers("auditor")).json()
    return document


def test_it_is_tried_done_watched_and_undone(api: Api) -> None:
    api.fleet.beat()
    job = api.fleet.submit(**GOOD_JOB)
    api.fleet.cycle()
    tried = drain(api, query="?dry_run=true")
    (event,) = [each for each in tried["consequences"] if each.get("kind") == "node.draining"]
    assert event["payload"]["jobs"] == [job]
    assert (show(api)["drain"], show(api)["num_cordons"]) == (None, 0)
    drained = drain(api, api.fleet.node_id)["drain"]
    assert (drained["reason"], drained["owner"], drained["until"]) == ("new fans", "key:key-operator", None)
    watched = show(api)["drain"]
    assert (watched["is_done"], watched["jobs_left"]) == (True, []), "it was not claimed yet, so it has left already"
    refused = drain(api, status=409)
    assert refused["cordon_id"] == drained["cordon_id"]
    path = f"/v1/cordons/{drained['cordon_id']}/release"
    assert api.client.post(path, json={"reason": "done"}, headers=api.headers("operator")).status_code == 200
    assert show(api)["drain"] is None


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"reason": ""}, "/reason"),
        ({"deadline_s": 0}, "/deadline_s"),
        ({"deadline_s": 1}, "at least 120"),
        ({"deadline_s": 1e9}, "/deadline_s"),
        ({"deadline_s": "60"}, "/deadline_s"),
        ({"until": "2020-01-01T00:00:00Z"}, "/until"),
        ({"until": "2099-01-01T00:00:00"}, "/until"),
        ({"force": True}, "/force"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(api: Api, body: dict[str, Any], word: str) -> None:
    assert word in drain(api, status=422, **body)["detail"]
    assert show(api)["drain"] is None


def test_only_an_operator_does_and_only_to_a_node_that_is_there(api: Api) -> None:
    for unknown in ("gamma", "node_00000000000000000000000000", "%00"):
        drain(api, unknown, 404)
    for who in ("auditor", "tenant_admin", "node"):
        answer = api.client.post("/v1/nodes/alpha/drain", json={"reason": "x"}, headers=api.headers(who))
        assert answer.status_code == 403


def test_a_maintenance_window_is_tried_declared_shown_and_cancelled(api: Api) -> None:
    now = api.units.clock()
    body = {"reason": "new optics", "until": (now + timedelta(hours=2)).isoformat()}
    path, headers = "/v1/nodes/alpha/maintenance", api.headers("operator")
    tried = api.client.post(f"{path}?dry_run=true", json=body, headers=headers)
    assert (tried.status_code, show(api)["num_cordons"]) == (200, 0), tried.text
    later = {**body, "starts_at": (now + timedelta(hours=1)).isoformat()}
    declared = api.client.post(path, json=later, headers=headers)
    assert declared.status_code == 201, declared.text
    assert (declared.json()["reason_code"], show(api)["num_cordons"]) == ("maintenance", 0), "it has not begun"
    begun = api.client.post(path, json=body, headers=headers).json()
    assert show(api)["num_cordons"] == 1
    assert begun["starts_at"] is not None
    for cordon_id in (begun["id"], declared.json()["id"]):
        released = api.client.post(f"/v1/cordons/{cordon_id}/release", json={"reason": "done"}, headers=headers)
        assert released.status_code == 200
    assert show(api)["num_cordons"] == 0
    lead = {**later, "evacuate_lead_s": 600}
    empty = api.client.post(path, json=lead, headers=headers).json()
    starts_at, evacuate_at = (datetime.fromisoformat(empty[name]) for name in ("starts_at", "evacuate_at"))
    assert starts_at - evacuate_at == timedelta(seconds=600)
    short = api.client.post(path, json={**lead, "evacuate_lead_s": 1}, headers=headers)
    assert (short.status_code, "/evacuate_lead_s" in short.json()["detail"]) == (422, True)
    refused = api.client.post(path, json={"reason": "x", "until": "2020-01-01T00:00:00Z"}, headers=headers)
    assert (refused.status_code, "/until" in refused.json()["detail"]) == (422, True)
