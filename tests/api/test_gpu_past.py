"""What a GPU has been through, by REST: its attempts, its moves, its burn-ins next to the cohort's."""

from typing import Any

from tests.api.conftest import GOOD_JOB, Api
from tests.api.judged_fleet import GPU, act, fault
from tests.api.judged_fleet import api as api  # noqa: PLC0414  # the fixture
from tests.api.test_cohorts import measured


def pages(api: Api, what: str, uuid: str = GPU) -> list[dict[str, Any]]:
    """Every item, two a page."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        asked = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        answer = api.client.get(f"/v1/gpus/{uuid}/{what}", params=asked, headers=api.headers("auditor"))
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


def test_every_attempt_that_had_the_gpu_is_reported_with_why_it_ended(api: Api) -> None:
    api.fleet.beat()
    jobs = []
    for number in range(3):
        spec = {**GOOD_JOB, "name": f"train-{number}", "shape": {"nodes": 1, "gpus_per_node": 2}}
        jobs.append(api.fleet.submit(**spec))
        api.fleet.cycle()
        if number < 2:
            api.fleet.cancel(jobs[-1])
    found = pages(api, "jobs")
    assert [each["job_id"] for each in found] == jobs[::-1]
    assert [(each["cause"], each["state"]) for each in found] == [
        (None, "ASSIGNED"),
        ("cancelled", "RELEASED"),
        ("cancelled", "RELEASED"),
    ]
    assert found[1]["proof"] == "stopped before any host had claimed it"
    assert (found[0]["job_name"], found[0]["attempt_number"], found[0]["tenant_id"]) == (
        "train-2",
        1,
        api.fleet.tenant_id,
    )


def test_every_move_of_its_standing_is_reported(api: Api) -> None:
    fault(api)
    act(api, "retire")
    act(api, "reinstate")
    found = pages(api, "standings")
    assert [(each["from"], each["to"], each["cause"]) for each in found[:3]] == [
        ("RETIRED", "UNPROVEN", "reinstated"),
        ("QUARANTINED", "RETIRED", "retired"),
        ("HEALTHY", "QUARANTINED", "condemned"),
    ]
    assert found[-1]["reason"] == "enrolled"
    assert len(found[2]["evidence_ids"]) == 1
    assert (found[0]["reason"], found[0]["actor"]) == ("because", "key:key-operator")


def test_its_burn_ins_stand_next_to_the_cohorts_newest_figures(api: Api) -> None:
    for days_ago, tflops in ((3, 690.0), (2, 700.0), (0, 600.0)):
        measured(api, GPU, tflops, days_ago=days_ago)
    measured(api, "GPU-alpha-1", 700.0)
    found = pages(api, "burn-ins")
    (rate,) = found[0]["compared"]
    spread = {"measure": "gemm_bf16_tflops", "num_gpus": 2, "min": 600.0, "median": 650.0, "max": 700.0}
    assert (rate["value"], rate["cohort"], rate["is_outlier"]) == (600.0, spread, True)
    assert [each["compared"][0]["value"] for each in found] == [600.0, 700.0, 690.0]
    first = api.client.get(f"/v1/gpus/{GPU}/burn-ins", headers=api.headers("operator")).json()
    assert "|model=Simulated H100|" in first["cohort_key"]
    ordered = api.client.post("/v1/gpus/GPU-alpha-1/burn-in", json={"reason": "x"}, headers=api.headers("operator"))
    assert pages(api, "burn-ins", "GPU-alpha-1")[0]["compared"] == [], "not measured yet"
    assert ordered.json()["state"] == "ORDERED"


def test_a_gpu_that_is_not_there_has_no_past(api: Api) -> None:
    for what in ("jobs", "standings", "burn-ins"):
        for unknown in ("GPU-nowhere", "%00", "x" * 200):
            answer = api.client.get(f"/v1/gpus/{unknown}/{what}", headers=api.headers("operator"))
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), (what, unknown)
        for bad in ({"limit": 0}, {"limit": "many"}):
            answer = api.client.get(f"/v1/gpus/{GPU}/{what}", params=bad, headers=api.headers("operator"))
            assert (answer.status_code, "limit" in answer.text) == (422, True)
        answer = api.client.get(f"/v1/gpus/{GPU}/{what}", params={"cursor": "x"}, headers=api.headers("operator"))
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")
        assert api.client.get(f"/v1/gpus/{GPU}/{what}", headers=api.headers("tenant_admin")).status_code == 403
