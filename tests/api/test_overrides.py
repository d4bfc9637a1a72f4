"""The operator's quarantine and release by REST: a standing over the GPU's own, with a reason and an end."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muster.db.models import AuditEntry, GpuOverride
from tests.api.conftest import GOOD_JOB, Api
from tests.api.judged_fleet import GPU, act, fault, rows, show
from tests.api.judged_fleet import api as api  # noqa: PLC0414  # the fixture


def at(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def quarantine(api: Api, status: int = 200, **body: Any) -> dict[str, Any]:
    return act(api, "override", status, **{"standing": "QUARANTINED", "until": at(1), **body})


def test_a_person_takes_a_gpu_out_and_releases_it_with_reason_and_trace(api: Api) -> None:
    api.fleet.beat()
    found = quarantine(api)
    (standing,) = found["overrides"]
    assert (found["standing"], found["override"], standing["reason"]) == ("HEALTHY", "QUARANTINED", "because")
    assert standing["actor"] == "key:key-operator"
    ((way,),) = [each["recovery_paths"] for each in found["admission"] if each["tier"] == "reserved"]
    (condition,) = way["conditions"]
    assert (condition["kind"], condition["subject_id"]) == ("override", standing["id"])
    assert way["at"][:19] == condition["at"][:19] == standing["until"][:19]
    released = act(api, "override/release")
    assert (released["override"], released["overrides"]) == (None, [])
    assert all(each["is_admitted"] for each in released["admission"])
    assert act(api, "override/release") == released, "twice is the same as once"
    actions = [row.action for row in rows(api, AuditEntry) if row.subject_id == GPU][-2:]
    assert actions == ["gpu.override", "gpu.override.release"]


def test_a_dry_run_names_the_job_that_would_leave(api: Api) -> None:
    api.fleet.beat()
    job = api.fleet.submit(**{**GOOD_JOB, "shape": {"nodes": 1, "gpus_per_node": 2}})
    api.fleet.cycle()
    tried = act(api, "override", query="?dry_run=true", standing="QUARANTINED", until=at(1))
    (event,) = [each for each in tried["consequences"] if each.get("kind") == "gpu.overridden"]
    assert (event["payload"]["evacuates"], tried["job"]["job_id"]) == (job, job)
    assert show(api)["override"] == "HEALTHY", "as it was"


def test_a_new_one_stands_instead_of_the_one_before(api: Api) -> None:
    quarantine(api)
    found = act(api, "override", standing="SUSPECT", until=at(2))
    assert [each["standing"] for each in found["overrides"]] == ["SUSPECT"]
    assert len([row for row in rows(api, GpuOverride) if row.ended_at is None]) == 2, "this one, and the other GPU's"


@pytest.mark.parametrize("standing", ["HEALTHY", "PROBATION", "SUSPECT"])
def test_no_override_brings_back_what_is_quarantined(api: Api, standing: str) -> None:
    fault(api)
    refused = act(api, "override", 409, standing=standing, until=at(1))
    assert "QUARANTINED" in refused["detail"]
    assert "burn-in" in refused["detail"]
    assert quarantine(api)["override"] == "QUARANTINED", "to keep it out is no return to service"


def test_evidence_goes_on_to_be_judged_beneath_it(api: Api) -> None:
    quarantine(api)
    fault(api)
    found = show(api)
    assert (found["standing"], found["override"], found["score"]) == ("QUARANTINED", "QUARANTINED", 0.0)
    assert act(api, "override/release")["standing"] == "QUARANTINED", "a release hides no evidence"


def test_a_repair_of_what_a_person_took_out_is_begun_at_once(api: Api) -> None:
    quarantine(api)
    found = act(api, "repair", action="reset")
    assert (found["standing"], found["overrides"]) == ("REPAIR", [])
    assert [move["cause"] for move in found["moves"][:2]] == ["repair_started", "taken_out"]


def test_it_is_made_of_the_version_that_was_read(api: Api) -> None:
    version = show(api)["version"]
    assert quarantine(api, 412, headers={"If-Match": f'"v{version + 7}"'})["current_version"] == version
    quarantine(api, headers={"If-Match": f'"v{version}"'})


def test_one_key_has_one_effect_and_another_body_under_it_is_refused(api: Api) -> None:
    body: dict[str, Any] = {"until": at(1), "headers": {"Idempotency-Key": "again"}}
    assert quarantine(api, **body) == quarantine(api, **body)
    assert quarantine(api, 422, reason="another", **body)["code"] == "idempotency_key_reused"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"standing": "RETIRED"}, "/standing"),
        ({"standing": "UNPROVEN"}, "/standing"),
        ({"standing": "quarantined"}, "/standing"),
        ({"until": None}, "/until"),
        ({"until": at(-1)}, "/until"),
        ({"until": at(24 * 400)}, "/until"),
        ({"until": "2099-01-01T00:00:00"}, "/until"),
        ({"until": "soon"}, "/until"),
        ({"reason": " "}, "/reason"),
        ({"for_s": 5}, "/for_s"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(api: Api, body: dict[str, Any], word: str) -> None:
    assert word in quarantine(api, 422, **body)["detail"]
    assert show(api)["override"] == "HEALTHY", "as it was"


def test_only_an_operator_does_and_only_to_a_gpu_that_is_there(api: Api) -> None:
    body = {"standing": "QUARANTINED", "reason": "x", "until": at(1)}
    for who in ("auditor", "tenant_admin", "node"):
        answer = api.client.post(f"/v1/gpus/{GPU}/override", json=body, headers=api.headers(who))
        assert answer.status_code == 403
    for unknown in ("GPU-nowhere", "%00"):
        answer = api.client.post(f"/v1/gpus/{unknown}/override", json=body, headers=api.headers("operator"))
        assert answer.status_code == 404
