"""Every list is in the order that is asked for, by pages of any size, and within the time that is asked for."""

from collections.abc import Iterator
from typing import Any

import pytest

from control.core.sequencer import sequence_once
from tests.api.conftest import GOOD_JOB, Api
from tests.api.lived_in import ids_of_a_lived_in_fleet
from tests.fleet_factory import enrol_host
from tools.openapi_document import described

DOCUMENT = described()
WITH_ROWS = {
    *("/v1/audit", "/v1/cordons", "/v1/events/newest", "/v1/gpus", "/v1/gpus/{uuid}/standings", "/v1/jobs"),
    *("/v1/keys", "/v1/nodes", "/v1/persons", "/v1/tenants"),
}
"""Lists with several rows in the fleet of these tests; of the others the orders are asked for, rows or not."""


def listed_in_orders() -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Yield each list that has an order, with its parameters by name."""
    for path, operations in DOCUMENT["paths"].items():
        parameters = {each["name"]: each for each in operations.get("get", {}).get("parameters", ())}
        if {"order", "cursor"} <= set(parameters):
            yield path, parameters


LISTS = dict(listed_in_orders())


def orders_of(parameters: dict[str, dict[str, Any]]) -> list[str]:
    schema = parameters["order"]["schema"]
    name = (schema.get("$ref") or "").rsplit("/", 1)[-1]
    values: list[str] = (DOCUMENT["components"]["schemas"][name] if name else schema)["enum"]
    return values


@pytest.fixture
def lived_in(api: Api) -> dict[str, str]:
    ids = ids_of_a_lived_in_fleet(api)
    for number, rack in enumerate(("r2", "r1", None)):
        enrol_host(api.units, f"beta-{number}", num_gpus=2, rack=rack)
    cordon = {"node_id": ids["node_id"], "reason": "inspected again"}
    more: list[tuple[str, dict[str, Any]]] = [
        ("/v1/tenants", {"name": "omega"}),
        ("/v1/persons", {"name": "ada", "role": "auditor"}),
        ("/v1/cordons", cordon),
        ("/v1/jobs", {**GOOD_JOB, "tenant_id": api.other_tenant}),
    ]
    for path, body in more:
        made = api.client.post(path, json=body, headers=api.headers("operator"))
        assert made.status_code == 201, made.text
    while sequence_once(api.units):
        pass
    return ids


def pages(api: Api, path: str, **asked: Any) -> list[dict[str, Any]]:
    """Return all items, page by page."""
    found, cursor = [], None
    for _ in range(500):
        given = {**asked, **({"cursor": cursor} if cursor else {})}
        answer = api.client.get(path, params=given, headers=api.headers("operator"))
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found
    raise AssertionError(f"{path} has no last page")


def test_the_lists_of_the_api_have_orders() -> None:
    """One that is added has one too, or stands here with the reason."""
    without = {
        path
        for path, operations in DOCUMENT["paths"].items()
        if {"cursor", "limit"} <= {each["name"] for each in operations.get("get", {}).get("parameters", ())}
    } - set(LISTS)
    assert without == {
        "/v1/health/rollups",  # by round, and in a round the worst first
        "/v1/quotas",  # by tenant and tier: a table, not a history
        "/v1/jobs/{job_id}/logs/lines",  # by attempt, host and place in the log
        "/v1/jobs/{job_id}/outputs",  # the newest first: few of one job
        "/v1/jobs/{job_id}/output-hosts",  # by attempt and host: few of one job
        "/v1/jobs/{job_id}/files",  # by collection, then in the order of its folder
    }


def test_every_order_gives_the_same_items_by_pages_of_any_size(api: Api, lived_in: dict[str, str]) -> None:
    compared = set[str]()
    for path, parameters in LISTS.items():
        address, by_order = path.format_map(lived_in), {}
        for order in orders_of(parameters):
            whole = pages(api, address, order=order)
            assert pages(api, address, order=order, limit=1) == whole, (path, order)
            by_order[order] = whole
        first, *others = by_order.values()
        if len(first) > 1:
            compared.add(path)
        for other in others:
            assert sorted(map(str, other)) == sorted(map(str, first)), path
        if {"newest", "oldest"} <= set(by_order):
            assert by_order["oldest"] == by_order["newest"][::-1], path
    assert compared >= WITH_ROWS


def test_a_cursor_belongs_to_the_order_and_the_time_that_it_was_given_for(api: Api, lived_in: dict[str, str]) -> None:
    operator = api.headers("operator")
    num_refused = 0
    for path, parameters in LISTS.items():
        address, (first, second, *_) = path.format_map(lived_in), orders_of(parameters)
        page = api.client.get(address, params={"order": first, "limit": 1}, headers=operator).json()
        if page["next_cursor"] is None:
            continue
        others: list[dict[str, Any]] = [{"order": second}]
        if "since" in parameters:
            others.append({"order": first, "since": "2020-01-01T00:00:00Z"})
        for other in others:
            asked = {**other, "cursor": page["next_cursor"]}
            answer = api.client.get(address, params=asked, headers=operator)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor"), (path, other)
            num_refused += 1
    assert num_refused >= 10


def test_a_list_within_a_time_has_what_was_then_and_nothing_else(api: Api, lived_in: dict[str, str]) -> None:
    bounded = {path for path, parameters in LISTS.items() if "since" in parameters}
    assert len(bounded) >= 14
    for path in bounded:
        address = path.format_map(lived_in)
        whole = pages(api, address)
        assert pages(api, address, since="2020-01-01T00:00:00Z", until="2200-01-01T00:00:00Z") == whole, path
        assert pages(api, address, until="2020-01-01T00:00:00Z") == [], path
        assert pages(api, address, since="2200-01-01T00:00:00Z") == [], path
        bad = api.client.get(address, params={"since": "yesterday"}, headers=api.headers("operator"))
        assert bad.status_code == 422, path
        assert "since" in bad.text, path


def test_the_bounds_are_those_of_the_shown_time(api: Api, lived_in: dict[str, str]) -> None:
    for path, field in (("/v1/audit", "at"), ("/v1/events/newest", "at")):
        whole = pages(api, path)
        middle = whole[len(whole) // 2][field]
        since, before = pages(api, path, since=middle), pages(api, path, until=middle)
        assert since + before == whole, path
        assert all(item[field] >= middle for item in since)
        assert before
        assert all(item[field] < middle for item in before)


def test_gpus_are_listed_by_score_and_nodes_by_rack(api: Api, lived_in: dict[str, str]) -> None:
    scores = [101 if item["score"] is None else item["score"] for item in pages(api, "/v1/gpus", order="score")]
    assert scores == sorted(scores)
    assert scores[0] < scores[-1], "a broken GPU comes first"
    racks = [item["rack"] or "" for item in pages(api, "/v1/nodes", order="rack")]
    assert racks == sorted(racks)
    assert {"r1", "r2"} <= set(racks)


def test_gpus_nodes_cordons_and_jobs_are_found_by_rack_label_and_holder(api: Api, lived_in: dict[str, str]) -> None:
    def names(path: str, field: str = "name", **asked: Any) -> set[str]:
        return {item[field] for item in pages(api, path, **asked)}

    operator, body = api.headers("operator"), {"labels": {"zone": "north"}, "reason": "the hall"}
    (beta,) = (item for item in pages(api, "/v1/nodes") if item["name"] == "beta-1")
    assert api.client.post(f"/v1/nodes/{beta['id']}/labels", json=body, headers=operator).status_code == 200
    cordon = {"node_id": beta["id"], "reason": "a new fan"}
    assert api.client.post("/v1/cordons", json=cordon, headers=operator).status_code == 201
    for asked in ({"rack": "r1"}, {"label": "zone"}, {"label": "zone=north"}, {"label": ["zone", "zone=north"]}):
        assert names("/v1/nodes", **asked) == {"beta-1"}
        assert names("/v1/gpus", "uuid", **asked) == {"GPU-beta-1-0", "GPU-beta-1-1"}
        assert names("/v1/cordons", "node_id", **asked) == {beta["id"]}
    for none in ({"rack": "r9"}, {"label": "zone=south"}):
        assert names("/v1/nodes", **none) == names("/v1/gpus", "uuid", **none) == set()
        assert names("/v1/cordons", "id", **none) == set()
    assert names("/v1/jobs", rack="r9") == set()
    job = api.client.get(f"/v1/jobs/{lived_in['job_id']}", headers=operator).json()
    held = {gpu for host in job["attempts"][-1]["hosts"] for gpu in host["gpus"]}
    for asked in ({"tenant_id": job["tenant_id"]}, {"tier": job["tier"]}):
        assert names("/v1/gpus", "uuid", **asked) == held
        assert names("/v1/nodes", **asked) == {"alpha"}
    assert names("/v1/gpus", "uuid", job_id=job["id"]) == held
    assert names("/v1/gpus", "uuid", tenant_id=api.other_tenant) == set()
