"""The policy by REST: what is active and since when, a candidate against it, and making one active."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from control.policy import policies
from muster.db.models import AuditEntry, PolicyVersion
from muster.domain.policy.document import DEFAULT_POLICY
from tests.api.conftest import GOOD_JOB, Api
from tests.api.judged_fleet import JUDGE, rows

QUICK = {"contact": {"heartbeat_s": 5}}
NO_SPOT = {"tiers": {"reserved": {"priority": 300}, "on_demand": {"priority": 200}}}


def get(api: Api, path: str, status: int = 200, actor: str = "auditor") -> dict[str, Any]:
    answer = api.client.get(path, headers=api.headers(actor))
    assert answer.status_code == status, answer.text
    document: dict[str, Any] = answer.json()
    return document


def check(api: Api, document: Any, status: int = 200) -> dict[str, Any]:
    answer = api.client.post("/v1/policy/check", json={"document": document}, headers=api.headers("auditor"))
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def activate(
    api: Api, document: Any, status: int = 201, *, query: str = "", headers: dict[str, str] | None = None
) -> dict[str, Any]:
    body = {"document": document, "reason": "to be quicker"}
    answer = api.client.post(f"/v1/policies{query}", json=body, headers={**api.headers("operator"), **(headers or {})})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_until_one_is_stored_the_built_in_policy_is_in_force(api: Api) -> None:
    found = get(api, "/v1/policy")
    assert (found["version"], found["created_at"], found["is_usable"]) == (None, None, True)
    assert found["document"] == DEFAULT_POLICY.model_dump(mode="json")
    assert get(api, "/v1/policies")["items"] == []


def test_a_candidate_is_reported_what_it_would_change_and_nothing_is_stored(api: Api) -> None:
    found = check(api, QUICK)
    assert (found["is_valid"], found["errors"], found["obstacles"]) == (True, [], [])
    assert found["differences"] == [{"path": "/contact/heartbeat_s", "from": 10.0, "to": 5.0}]
    assert check(api, {})["differences"] == []
    assert rows(api, PolicyVersion) == []


BAD: dict[str, tuple[Any, str]] = {
    "an unknown field": ({"contact": {"heartbeats": 1}}, "/contact/heartbeats"),
    "a text for a number": ({"limits": {"page_items": "5"}}, "/limits/page_items"),
    "out of its bounds": ({"limits": {"page_items": 0}}, "/limits/page_items"),
    "lines out of order": ({"health": {"score": {"raise_line": 10}}}, "/health/score"),
    "leases that are not safe": ({"contact": {"kill_grace_s": 100}}, "/contact"),
    "no tier": ({"tiers": {}}, "/tiers"),
    "a part that is a list": ({"health": []}, "/health"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_fault_of_a_candidate_is_named_by_its_field(api: Api, name: str) -> None:
    document, pointer = BAD[name]
    found = check(api, document)
    assert not found["is_valid"]
    (fault,) = found["errors"]
    assert fault["pointer"] == pointer
    assert fault["detail"]
    refused = activate(api, document, 422)
    assert [each["pointer"] for each in refused["errors"]] == [f"/document{pointer}"]
    assert get(api, "/v1/policies")["items"] == []


def test_fields_that_are_wrong_and_rules_that_are_broken_are_reported_at_once(api: Api) -> None:
    caps = {"fleet_share": 0.05, "fleet_window_share": 0.5, "rack_share": "5%", "cohort_share": 1.2}
    document = {"health": {"breaker": caps, "score": {"raise_line": 10}}, "helth": {}}
    wrong = {
        "/health/breaker/rack_share",
        "/health/breaker/cohort_share",
        "/health/breaker",
        "/health/score",
        "/helth",
    }
    found = check(api, document)["errors"]
    assert {fault["pointer"] for fault in found} == wrong
    assert len(found) == len(wrong)
    refused = activate(api, document, 422)
    assert {fault["pointer"] for fault in refused["errors"]} == {f"/document{pointer}" for pointer in wrong}
    assert get(api, "/v1/policies")["items"] == [], "the old one stays"


def test_a_rule_is_not_stated_to_be_broken_by_a_field_that_was_not_taken(api: Api) -> None:
    document = {"health": {"breaker": {"fleet_share": 1.2, "fleet_window_share": 0.5}}}
    (fault,) = check(api, document)["errors"]
    assert fault["pointer"] == "/health/breaker/fleet_share"


@pytest.mark.parametrize("document", ["a text", None, ["a", "list"], 5])
def test_what_is_no_document_is_refused(api: Api, document: Any) -> None:
    assert check(api, document, 422)["errors"][0]["pointer"] == "/document"


def test_one_is_made_active_with_what_when_and_why(api: Api) -> None:
    tried = activate(api, QUICK, 200, query="?dry_run=true")
    assert [each["kind"] for each in tried["consequences"]] == ["policy.activated"]
    assert rows(api, PolicyVersion) == []
    made = activate(api, QUICK)
    assert made["differences"] == tried["differences"] != []
    found = get(api, "/v1/policy")
    assert (found["created_by"], found["reason"]) == ("key:key-operator", "to be quicker")
    assert (found["version"], found["document"]["contact"]["heartbeat_s"]) == (made["version"], 5.0)
    (entry,) = [row for row in rows(api, AuditEntry) if row.action == "policy.activate"]
    assert (entry.reason, entry.subject_id) == ("to be quicker", str(made["version"]))
    with api.units.read() as session:
        assert policies.active_policy(session).contact.heartbeat_s == 5.0


def test_versions_are_listed_the_newest_first_and_each_keeps_its_document(api: Api) -> None:
    made = [activate(api, {"contact": {"heartbeat_s": seconds}})["version"] for seconds in (5, 6, 7)]
    first = get(api, "/v1/policies?limit=2")
    rest = get(api, f"/v1/policies?limit=2&cursor={first['next_cursor']}")
    items = [*first["items"], *rest["items"]]
    assert [(item["version"], item["is_active"]) for item in items] == [
        (made[2], True),
        (made[1], False),
        (made[0], False),
    ]
    assert get(api, f"/v1/policies/{made[0]}")["document"]["contact"]["heartbeat_s"] == 5.0
    for unknown in ("0", "99", "x", "1e3", "9" * 30, "-1", "\u0663"):
        get(api, f"/v1/policies/{unknown}", 404)


def test_it_is_made_of_the_version_that_was_read(api: Api) -> None:
    refused = activate(api, QUICK, 412, headers={"If-Match": '"v1"'})
    assert refused["current_version"] is None
    version = activate(api, QUICK)["version"]
    activate(api, {}, 412, headers={"If-Match": f'"v{version + 1}"'})
    assert activate(api, {}, headers={"If-Match": f'"v{version}"'})["differences"][0]["to"] == 10.0


def test_one_key_makes_one_version(api: Api) -> None:
    first = activate(api, QUICK, headers={"Idempotency-Key": "again"})
    assert activate(api, QUICK, headers={"Idempotency-Key": "again"}) == first
    assert len(rows(api, PolicyVersion)) == 1


def test_a_tier_in_which_a_job_waits_is_not_taken_away(api: Api) -> None:
    job_id = api.fleet.submit(**{**GOOD_JOB, "tier": "spot"})
    (obstacle,) = check(api, NO_SPOT)["obstacles"]
    assert (obstacle["pointer"], obstacle["code"]) == ("/tiers/spot", "tier_in_use")
    refused = activate(api, NO_SPOT, 409)
    assert "1 jobs of the tier spot" in refused["detail"]
    api.fleet.cancel(job_id)
    assert check(api, NO_SPOT)["obstacles"] == []
    activate(api, NO_SPOT)


def test_two_at_once_are_one_after_the_other(api: Api) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda seconds: activate(api, {"contact": {"heartbeat_s": seconds}}), range(4, 8)))
    assert len({each["version"] for each in made}) == 4
    assert [row.is_active for row in rows(api, PolicyVersion)] == [False] * 3 + [True]


def test_a_stored_document_that_no_longer_validates_reports_it(api: Api) -> None:
    broken = {"contact": {"of_an_older_release": 1}}
    with api.units.begin(JUDGE, policies.ACTIVATE, quiet=True) as unit:
        unit.session.add(
            PolicyVersion(document=broken, is_active=True, created_at=unit.now, created_by="test", reason="test")
        )
    found = get(api, "/v1/policy")
    assert (found["is_active"], found["is_usable"], found["document"]) == (True, False, broken)
    assert check(api, {})["differences"] == [], "the built-in policy is in force"


def test_a_tenant_reads_no_policy_and_an_auditor_makes_none(api: Api) -> None:
    for path in ("/v1/policy", "/v1/policies", "/v1/policies/1"):
        get(api, path, 403, actor="tenant_admin")
    for who in ("auditor", "tenant_admin"):
        body = {"document": {}, "reason": "x"}
        assert api.client.post("/v1/policies", json=body, headers=api.headers(who)).status_code == 403
