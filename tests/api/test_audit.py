"""``GET /v1/audit``: the chain by the page; an auditor reads all of it, a tenant what was done to its own."""

from itertools import pairwise
from typing import Any

import pytest

from control.core.sealer import seal_once, verify_audit
from tests.api.conftest import GOOD_JOB, Api


def read(api: Api, caller: str = "auditor", **filters: Any) -> dict[str, Any]:
    answer = api.client.get("/v1/audit", params=filters, headers=api.headers(caller))
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def submit(api: Api, actor: str = "tenant_member", **more: Any) -> str:
    answer = api.client.post("/v1/jobs", json={**GOOD_JOB, **more}, headers=api.headers(actor))
    return str(answer.json()["id"])


def cancel(api: Api, job_id: str, actor: str) -> None:
    answer = api.client.post(f"/v1/jobs/{job_id}/cancel", json={"reason": "enough"}, headers=api.headers(actor))
    assert answer.status_code == 200, answer.text


def test_the_newest_comes_first_with_what_did_what_why_and_from_where(api: Api) -> None:
    job_id = submit(api)
    cancel(api, job_id, "operator")
    last, before = read(api)["items"][:2]
    assert (last["action"], last["actor"], last["role"]) == ("job.cancel", "key:key-operator", "operator")
    assert (last["subject_type"], last["subject_id"], last["reason"]) == ("job", job_id, "enough")
    assert (last["address"], last["actor_key_id"]) == ("testclient", api.key_ids["operator"])
    assert (before["action"], before["tenant_id"]) == ("job.submit", api.fleet.tenant_id)


def test_position_and_hash_are_those_of_the_chain_once_an_entry_is_sealed(api: Api) -> None:
    assert {(item["position"], item["hash"]) for item in read(api)["items"]} == {(None, None)}
    while seal_once(api.units):
        pass
    items = read(api, limit=200)["items"]
    assert [item["position"] for item in items] == list(range(len(items), 0, -1))
    assert all(later["prev_hash"] == earlier["hash"] for later, earlier in pairwise(items))
    with api.units.read() as session:
        anchor = verify_audit(session).anchor
    assert (items[0]["position"], items[0]["hash"]) == (anchor.position, anchor.hash.hex())


def test_each_filter_narrows_and_pages_follow_one_another(api: Api) -> None:
    jobs = [submit(api, name=f"train-{number}") for number in range(3)]
    cancel(api, jobs[0], "operator")
    assert {item["action"] for item in read(api, subject=jobs[0])["items"]} == {"job.submit", "job.cancel"}
    assert [item["subject_id"] for item in read(api, action="job.submit")["items"]] == jobs[::-1]
    both: dict[str, Any] = {"action": ["job.submit", "job.cancel"], "actor": "key:key-tenant-member"}
    assert len(read(api, **both)["items"]) == 3
    assert read(api, actor="key:key")["items"] == read(api, subject="job")["items"] == []
    first = read(api, limit=2, **both)
    rest = read(api, limit=2, cursor=first["next_cursor"], **both)
    assert [item["subject_id"] for item in (*first["items"], *rest["items"])] == jobs[::-1]
    assert rest["next_cursor"] is None
    for who, other in (("auditor", {}), ("tenant_admin", both)):
        asked = {"cursor": first["next_cursor"], **other}
        answer = api.client.get("/v1/audit", params=asked, headers=api.headers(who))
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor"), "another reader, other filters"


def test_a_tenants_admin_reads_what_was_done_to_the_tenant_and_not_where_others_sat(api: Api) -> None:
    mine, other = submit(api), submit(api, "other_tenant", name="canary")
    cancel(api, mine, "operator")
    items = read(api, "tenant_admin")["items"]
    assert {item["tenant_id"] for item in items} == {api.fleet.tenant_id}
    assert other not in str(items)
    by_action = {item["action"]: item for item in items}
    assert by_action["job.cancel"]["actor"] == "key:key-operator"
    assert {by_action["job.cancel"][name] for name in ("address", "request_id", "actor_key_id")} == {None}
    assert by_action["job.submit"]["address"] == "testclient"
    assert read(api, "tenant_admin", subject=other)["items"] == []
    for who in ("tenant_member", "node"):
        assert api.client.get("/v1/audit", headers=api.headers(who)).status_code == 403


@pytest.mark.parametrize(
    "bad", [{"actor": ""}, {"actor": "a\x00"}, {"action": "Job Cancel"}, {"subject": "x" * 300}, {"limit": 201}]
)
def test_a_filter_that_means_nothing_is_refused_by_name(api: Api, bad: dict[str, Any]) -> None:
    answer = api.client.get("/v1/audit", params=bad, headers=api.headers("auditor"))
    assert answer.status_code == 422, answer.text
    assert next(iter(bad)) in answer.text
