"""Reads that ask for the key and the rows at once: the declared document, the same refusals, one statement each."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter
from sqlalchemy import Engine
from starlette.routing import Match, Route

from api.app import create_inner_app
from api.dependencies import AppDependencies
from control.policy.policies import stored_policy
from muster import documents
from muster.domain.policy.document import DEFAULT_POLICY
from tests.api.conftest import GOOD_JOB, Api
from tests.api.judged_fleet import GPU, OTHER
from tests.api.judged_fleet import api as api  # noqa: PLC0414  # the fixture
from tests.api.lived_in import ids_of_a_lived_in_fleet
from tests.sent_statements import statements_of

TOKEN_OF_NONE = "mst_0000000000" + "0" * 30  # opens nothing


@pytest.fixture
def statements(engine: Engine) -> Iterator[list[str]]:
    """What SQLAlchemy itself sends; a question with its key passes it by."""
    with statements_of(engine) as sent:
        yield sent


def reads(ids: dict[str, str]) -> dict[str, Any]:
    return {
        "/v1/whoami": documents.Whoami,
        "/v1/jobs?limit=1": documents.JobPage,
        f"/v1/jobs?state=QUEUED&state=ACTIVE&name=train&tenant_id={ids['tenant_id']}": documents.JobPage,
        f"/v1/jobs/{ids['job_id']}": documents.JobDetail,
        f"/v1/nodes/{ids['node_id']}": documents.NodeDetail,
        "/v1/nodes/alpha": documents.NodeDetail,
        f"/v1/gpus/{GPU}": documents.GpuDetail,
        f"/v1/gpus/{OTHER}": documents.GpuDetail,
    }


def test_what_is_read_is_the_declared_document_and_sqlalchemy_sends_nothing_for_it(
    api: Api, statements: list[str]
) -> None:
    ids = ids_of_a_lived_in_fleet(api)
    for path, document in reads(ids).items():
        api.client.get("/v1/whoami", headers=api.headers("operator"))  # notes the key's use, once a minute
        statements.clear()
        found = api.client.get(path, headers=api.headers("operator"))
        assert (found.status_code, statements) == (200, []), path
        assert found.headers["content-type"] == "application/json"
        TypeAdapter(document).validate_json(found.content, extra="forbid")


def test_a_rich_past_is_reported_whole(api: Api) -> None:
    ids = ids_of_a_lived_in_fleet(api)
    operator = api.headers("operator")
    gpu = api.client.get(f"/v1/gpus/{GPU}", headers=operator).json()
    assert all(gpu[name] for name in ("evidence", "moves", "cordons", "admission", "overrides", "job")), gpu
    node = api.client.get("/v1/nodes/alpha", headers=operator).json()
    assert [each["job_id"] for each in node["jobs"]] == [ids["job_id"]]
    assert (node["num_assigned_gpus"], node["num_cordons"]) == (sum(len(each["gpus"]) for each in node["jobs"]), 1)
    assert sum(node["standings"].values()) == len(node["gpus"])
    job = api.client.get(f"/v1/jobs/{ids['job_id']}", headers=operator).json()
    (host,) = job["attempts"][0]["hosts"]
    assert (host["node_name"], host["gpus"]) == ("alpha", node["jobs"][0]["gpus"])


@pytest.mark.parametrize("path", ["/v1/jobs?limit=0", "/v1/jobs?state=NOWHERE", "/v1/jobs/%00", "/v1/gpus/%20"])
def test_a_caller_that_may_not_ask_receives_that_before_any_fault_of_what_they_ask(api: Api, path: str) -> None:
    assert api.client.get(path).status_code == 401
    assert api.client.get(path, headers={"Authorization": f"Bearer {TOKEN_OF_NONE}"}).status_code == 401
    assert api.client.get(path, headers=api.headers("node")).status_code == 403
    assert api.client.get(path, headers=api.headers("operator")).status_code in {404, 422}


def test_a_page_of_a_tenant_is_its_own_and_its_cursor_is_no_other_tenants(api: Api) -> None:
    for _ in range(2):
        api.client.post("/v1/jobs", json=GOOD_JOB, headers=api.headers())
    page = api.client.get("/v1/jobs?limit=1", headers=api.headers()).json()
    assert len(page["items"]) == 1
    following = f"/v1/jobs?limit=1&cursor={page['next_cursor']}"
    assert len(api.client.get(following, headers=api.headers()).json()["items"]) == 1
    assert api.client.get(following, headers=api.headers("other_tenant")).json()["code"] == "invalid_cursor"
    assert api.client.get("/v1/jobs", headers=api.headers("other_tenant")).json()["items"] == []


def test_routes_that_stand_in_turn_hide_none_behind_another(api: Api) -> None:
    routes = [
        route
        for route in create_inner_app(AppDependencies(units=api.units, secret_key=b"x" * 32)).routes
        if isinstance(route, Route)
    ]
    assert len(routes) > 50
    for route in routes:
        for method in route.methods or ():
            path = re.sub(r"\{[^}]*\}", "x", route.path)
            asked = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
            assert next(each for each in routes if each.matches(asked)[0] is Match.FULL) is route


def test_a_policy_is_validated_once_for_each_text_and_an_unusable_one_is_passed_by() -> None:
    text = DEFAULT_POLICY.model_dump_json()
    assert stored_policy(1, text) is stored_policy(2, text)
    assert stored_policy(1, text) == DEFAULT_POLICY
    other = DEFAULT_POLICY.model_copy(update={"limits": DEFAULT_POLICY.limits.model_copy(update={"joining_burst": 7})})
    assert stored_policy(1, other.model_dump_json()).limits.joining_burst == 7
    assert stored_policy(1, '{"health": 3}') is DEFAULT_POLICY
