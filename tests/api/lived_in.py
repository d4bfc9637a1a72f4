"""A fleet that has been through something: an id of each kind that a path may name, so that requests reach far."""

from tests.api.conftest import GOOD_JOB, Api
from tests.api.judged_fleet import GPU, fault, show


def ids_of_a_lived_in_fleet(api: Api) -> dict[str, str]:
    """Path parameter → an object that is there: a running job, a quarantined GPU with its evidence, and so on."""
    operator = api.headers("operator")

    def made(path: str, actor: str = "operator", **body: object) -> dict[str, str]:
        answer = api.client.post(path, json=body, headers=api.headers(actor))
        assert answer.status_code in {200, 201}, answer.text
        found: dict[str, str] = answer.json()
        return found

    api.fleet.beat()
    job = made("/v1/jobs", "tenant_member", **GOOD_JOB)
    api.fleet.cycle()
    fault(api)
    incidents = api.client.get("/v1/incidents", headers=operator).json()["items"]
    attempts = api.client.get(f"/v1/jobs/{job['id']}", headers=operator).json()["attempts"]
    target = {"kind": "webhook", "url": "https://r.example"}
    return {
        "route_id": made("/v1/notification-routes", name="hook", target=target)["id"],
        "notification_id": "ntf_00000000000000000000000000",
        "job_id": job["id"],
        "attempt_id": attempts[0]["id"],
        "key_id": made("/v1/keys", name="spare", role="auditor")["id"],
        "person_id": made("/v1/persons", name="grace", role="operator")["id"],
        "cordon_id": made("/v1/cordons", node_id=api.fleet.node_id, reason="inspected")["id"],
        "incident_id": incidents[0]["id"] if incidents else "inc_00000000000000000000000000",
        "burn_in_id": made(f"/v1/gpus/{GPU}/burn-in", reason="the return to service")["id"],
        "evidence_id": show(api)["evidence"][0]["id"],
        "reclaim_id": "rcl_00000000000000000000000000",
        "tenant_id": api.fleet.tenant_id,
        "node_id": api.fleet.node_id,
        "uuid": GPU,
        "tier": "spot",
        "name": "quarantine",
        "code": "not_found",
        "version": "1",
        "key": api.client.get("/v1/cohorts", headers=operator).json()["items"][0]["key"],
    }
