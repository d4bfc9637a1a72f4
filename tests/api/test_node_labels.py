"""``POST /v1/nodes/{node_id}/labels``: tried, done, shown, refused."""

from typing import Any

import pytest

from tests.api.conftest import Api


def label(api: Api, status: int = 200, *, query: str = "", node: str = "alpha", **body: Any) -> dict[str, Any]:
    wanted = {"reason": "moved", **body}
    answer = api.client.post(f"/v1/nodes/{node}/labels{query}", json=wanted, headers=api.headers("operator"))
    assert answer.status_code == status, answer.text
    document: dict[str, Any] = answer.json()
    return document


def shown(api: Api) -> dict[str, Any]:
    document: dict[str, Any] = api.client.get("/v1/nodes/alpha", headers=api.headers("auditor")).json()
    return document


def test_it_is_tried_done_and_shown(api: Api) -> None:
    tried = label(api, query="?dry_run=true", labels={"site": "ams"})
    assert tried["labels"] == {"site": "ams"}
    assert shown(api)["labels"] == {}
    assert label(api, labels={"site": "ams", "generation": "new"})["labels"] == {"generation": "new", "site": "ams"}
    assert label(api, labels={"site": "fra"}, remove=["generation"])["labels"] == {"site": "fra"}
    assert shown(api)["labels"] == {"site": "fra"}


def test_the_place_of_a_host_is_reported_by_the_policys_levels(api: Api) -> None:
    label(api, labels={"site": "ams"})
    assert "site" not in {each["level"] for each in shown(api)["path"]}
    policy = {"placement": {"levels": ["site", "rack"]}}
    body = {"document": policy, "reason": "a second site"}
    created = api.client.post("/v1/policies", json=body, headers=api.headers("operator"))
    assert created.status_code < 300, created.text
    assert {"level": "site", "name": "ams"} in shown(api)["path"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"labels": {"Site": "ams"}}, "/labels"),
        ({"labels": {"site": ""}}, "/labels/site"),
        ({"labels": {"site": 3}}, "/labels/site"),
        ({"labels": {"site": "ams"}, "remove": ["site"]}, "/remove"),
        ({"labels": {"site": "ams"}, "reason": " "}, "/reason"),
    ],
)
def test_what_is_no_label_is_refused_by_its_field(api: Api, body: dict[str, Any], word: str) -> None:
    assert word in str(label(api, 422, **body))


def test_a_node_that_is_not_there_is_not_labelled(api: Api) -> None:
    label(api, 404, node="nobody", labels={"site": "ams"})
