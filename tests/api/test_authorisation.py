"""Undeclared routes stop the start; what operations, problems and figures say. Callers: tests/authorisation."""

import pytest
from fastapi import FastAPI, WebSocket

from api.permissions import UndeclaredRouteError, declared_routes
from control.core.sequencer import sequence_once
from muster.domain.errors import REGISTRY
from tests.api.conftest import GOOD_JOB, Api


def test_a_route_a_websocket_or_a_mount_without_a_declaration_stops_the_start() -> None:
    async def naked() -> None:
        """Nothing."""

    async def socket(_socket: WebSocket) -> None:
        """Nothing."""

    apps = [FastAPI(openapi_url=None, docs_url=None, redoc_url=None) for _ in range(3)]
    apps[0].add_api_route("/naked", naked)
    apps[1].add_api_websocket_route("/socket", socket)
    apps[2].mount("/mounted", FastAPI())
    for app in apps:
        with pytest.raises(UndeclaredRouteError):
            tuple(declared_routes(app))


def test_every_operation_documents_its_problems_and_permission(api: Api) -> None:
    document = api.client.get("/v1/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            words, statuses = operation["x-permission"], set(operation["responses"])
            assert words, (method, path)
            assert {"400", "500"} <= statuses, (method, path)
            assert words.startswith("public") or {"401", "503"} <= statuses, (method, path)
            assert ("403" in statuses) == (":" in words) or words.startswith("public"), (method, path)


def test_the_documents_page_needs_nothing_from_elsewhere(api: Api) -> None:
    page = api.client.get("/v1/docs").text
    assert "/v1/jobs/{job_id}/cancel" in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page


@pytest.mark.parametrize("code", sorted(REGISTRY))
def test_every_problem_has_its_page(api: Api, code: str) -> None:
    page = api.client.get(f"/v1/problems/{code}").json()
    assert page["suggestion"]


def test_figures_name_routes_and_never_ids(api: Api) -> None:
    job_id = api.client.post("/v1/jobs", json=GOOD_JOB, headers=api.headers()).json()["id"]
    api.client.get(f"/v1/jobs/{job_id}", headers=api.headers())
    figures = api.client.get("/metrics", headers=api.headers("operator")).text
    assert 'route="/v1/jobs/{job_id}"' in figures
    assert job_id not in figures


def test_a_tenant_reads_its_own_events_in_order(api: Api) -> None:
    api.client.post("/v1/jobs", json=GOOD_JOB, headers=api.headers())
    api.client.post("/v1/jobs", json={**GOOD_JOB, "name": "canary"}, headers=api.headers("other_tenant"))
    sequence_once(api.units)
    page = api.client.get("/v1/events", headers=api.headers()).json()
    positions = [event["position"] for event in page["items"]]
    assert positions == sorted(positions)
    assert {event["tenant_id"] for event in page["items"]} == {api.fleet.tenant_id}
    assert "job.queued" in {event["kind"] for event in page["items"]}
    assert api.client.get(f"/v1/events?after={positions[-1]}", headers=api.headers()).json()["items"] == []


def test_health_and_readiness_need_no_key(api: Api) -> None:
    assert api.client.get("/healthz").json()["status"] == "ok"
    assert api.client.get("/readyz").json()["status"] == "ready"
