"""A tenant's residency rule by API and command: tried, set, shown, applied from a file, lifted, refused."""

from typing import Any

import pytest

from muster.cli.framework.exits import Exit
from muster.domain.ids import TenantId
from tests.api.conftest import Api
from tests.api.typed import Typed
from tests.api.typed import typed as typed  # noqa: PLC0414  # a fixture

RULE: dict[str, Any] = {"sites": ["ams"], "stores": ["main", "s3://acme-ams"]}
DOCUMENT = """\
kind: tenant
version: 1
name: NAME
residency: {sites: [ams], stores: [main]}
"""


def own(api: Api) -> str:
    tenant_id = api.fleet.tenant.tenant_id
    assert tenant_id is not None
    return tenant_id


def set_rule(api: Api, status: int = 200, *, query: str = "", tenant: str = "", **body: Any) -> Any:
    path = f"/v1/tenants/{tenant or own(api)}/residency{query}"
    answer = api.client.put(path, json={"reason": "contract", **body}, headers=api.headers("operator"))
    assert answer.status_code == status, answer.text
    return answer.json()


def shown(api: Api, actor: str = "operator", status: int = 200, tenant: TenantId | None = None) -> Any:
    path = f"/v1/tenants/{tenant or own(api)}/residency"
    answer = api.client.get(path, headers=api.headers(actor))
    assert answer.status_code == status, answer.text
    return answer.json()


def name_of(api: Api) -> str:
    name: str = shown(api)["name"]
    return name


def test_it_is_tried_set_shown_to_its_tenant_and_lifted(api: Api) -> None:
    tried = set_rule(api, query="?dry_run=true", **RULE)
    assert tried["residency"] == RULE
    sentence = "becomes: jobs at the site ams and data in the store main or s3://acme-ams only; it was: any site"
    assert sentence in " ".join(tried["effect"]["changes"])
    assert shown(api)["residency"] is None
    found = set_rule(api, **RULE)
    assert (found["residency"], found["holds"], found["outside"]) == (RULE, RULE, [])
    assert (found["num_hosts"], found["num_fleet_hosts"]) == (0, 1)
    listed = api.client.get("/v1/tenants", headers=api.headers("operator")).json()["items"]
    assert {each["id"]: each["residency"] for each in listed}[own(api)] == RULE
    assert shown(api, "tenant_member")["holds"] == RULE
    shown(api, "tenant_member", 404, api.other_tenant)
    assert set_rule(api)["residency"] is None, "no site and no store: no rule"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"sites": []}, "/sites"),
        ({"sites": [""]}, "/sites/0"),
        ({"sites": "ams"}, "/sites"),
        ({"stores": ["Main Store"]}, "/stores/0"),
        ({"stores": ["s3://"]}, "/stores/0"),
        ({"stores": ["other"]}, "/stores"),
        ({"sites": ["ams"]}, "/sites"),
        ({"sites": ["ams"], "reason": ""}, "/reason"),
        ({"site": ["ams"]}, "/site"),
    ],
)
def test_what_is_no_rule_or_excludes_the_content_store_is_refused_by_its_field(
    api: Api, body: dict[str, Any], pointer: str
) -> None:
    errors = set_rule(api, 422, **body)["errors"]
    assert [each["pointer"] for each in errors] == [pointer]
    assert shown(api)["residency"] is None


def test_a_job_outside_its_tenants_rule_is_refused_at_its_submission_by_the_field(api: Api) -> None:
    set_rule(api, **RULE)
    job = {"name": "j", "program": {"script": "/srv/train.py"}, "checkpoint": {"store": "s3://elsewhere/runs"}}
    for path in ("/v1/jobs", "/v1/job-plans"):
        answer = api.client.post(path, json=job, headers=api.headers("tenant_member"))
        assert answer.status_code == 422
        (fault,) = answer.json()["errors"]
        assert (fault["pointer"], fault["code"]) == ("/checkpoint/store", "outside_residency")


def test_a_job_within_the_rule_is_tried_again_with_the_same_store(api: Api) -> None:
    set_rule(api, **RULE)
    job = {"name": "j", "program": {"script": "/srv/train.py"}, "outputs": ["model"]}
    made = api.client.post("/v1/jobs", json=job, headers=api.headers("tenant_member"))
    assert made.status_code == 201, made.text
    path = f"/v1/jobs/{made.json()['id']}/cancel"
    assert api.client.post(path, json={}, headers=api.headers("tenant_member")).status_code == 200
    again = {"selector": {"name": "j"}, "reason": "again", "expected": 1}
    found = api.client.post("/v1/jobs/retry", json=again, headers=api.headers("tenant_member")).json()
    assert [(each["outcome"], each["why"]) for each in found["items"]] == [("changed", None)]


def test_the_commands_set_show_and_lift_it_and_name_what_to_do(typed: Typed, api: Api) -> None:
    name, why = name_of(api), ("--reason", "contract")
    words = typed.run(
        "tenant", "residency", "set", name, "--site", "ams", "--store", "main", *why, actor="operator"
    ).stdout
    assert words.startswith(f"{name}: jobs at ams only, data in main only\n0 of 1 hosts are at its sites\n")
    assert "no job of it can start: label hosts with `muster node label HOST site=NAME`" in words
    typed.run("node", "label", "alpha", "site=ams", *why, actor="operator")
    tried = typed.run("tenant", "residency", "lift", name, *why, "--dry-run", actor="operator").stdout
    assert f"the residency rule of {name} becomes: any site and any store" in " ".join(tried.split())
    seen = typed.run("tenant", "show", name, actor="operator").stdout
    assert f"{name}: jobs at ams only, data in main only\n1 of 1 hosts are at its sites\n" in seen
    bare = typed.run("tenant", "residency", "set", name, *why, actor="operator", code=Exit.USAGE)
    assert "name a --site or a --store" in bare.stderr
    refused = typed.run("tenant", "residency", "set", name, "--site", "ams", *why, actor="operator", code=Exit.INVALID)
    assert "the content store main has no site" in refused.stderr
    assert "no residency rule" in typed.run("tenant", "residency", "lift", name, *why, actor="operator").stdout


def test_a_document_is_the_whole_tenant_its_rule_too(typed: Typed, api: Api) -> None:
    document = DOCUMENT.replace("NAME", name_of(api))
    again = ("apply", "-f", "-", "--reason", "as the file says", "--yes")
    words = typed.run(*again, actor="operator", stdin=document).stdout
    assert '  residency: {"sites": ["ams"], "stores": ["main"]}\n' in words
    assert shown(api)["residency"] == {"sites": ["ams"], "stores": ["main"]}
    assert "no changes" in typed.run(*again, actor="operator", stdin=document).stdout
    without = "".join(line for line in document.splitlines(keepends=True) if "residency" not in line)
    assert '"stores": ["main"]} → none\n' in typed.run(*again, actor="operator", stdin=without).stdout
    assert shown(api)["residency"] is None
    made = document.replace(name_of(api), "fresh")
    typed.run(*again, actor="operator", stdin=made)
    listed = api.client.get("/v1/tenants", headers=api.headers("operator")).json()["items"]
    assert {each["name"]: each["residency"] for each in listed}["fresh"] == {"sites": ["ams"], "stores": ["main"]}
