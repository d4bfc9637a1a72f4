"""One GPU by REST: what is shown of it, and what persons do about it."""

from typing import Any

import pytest
from sqlalchemy import select

from control.health.judge import judge_once
from control.policy.policies import ACTIVATE
from muster.db.models import AuditEntry, Event, EvidenceRow, Gpu, GpuStandingChange, Repair
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing
from tests.api.conftest import GOOD_JOB, Api
from tests.api.judged_fleet import GPU, JUDGE, OTHER, act, fault, rows, show
from tests.api.judged_fleet import api as api  # noqa: PLC0414  # the fixture
from tests.stored_signals import add_signal


def test_a_gpu_reports_its_score_its_evidence_and_what_would_bring_it_back(api: Api) -> None:
    api.fleet.beat()
    fault(api, code=63)
    fault(api)
    found = show(api)
    assert (found["standing"], found["score"], found["score_band"]) == ("QUARANTINED", 0.0, "bad")
    assert found["standing_since"] == found["moves"][0]["at"]
    by_fault = {each["fault_key"]: each for each in found["evidence"]}
    condemning, watched = by_fault["xid:95"], by_fault["xid:63"]
    assert (condemning["is_condemning"], condemning["points"], condemning["trust"]) == (True, 100.0, "measured")
    assert condemning["sources"] == ["nvml"]
    assert not watched["is_condemning"]
    assert 7.9 < watched["points"] <= 8.0
    by_burn_in, by_dismissal = ways_to(found, "spot")
    assert [each["kind"] for each in by_burn_in] == ["burn_in"]
    assert [(each["kind"], each["subject_id"]) for each in by_dismissal] == [("dismissal", condemning["id"])]


def ways_to(found: dict[str, Any], tier: str) -> list[list[dict[str, Any]]]:
    """What would bring it back to ``tier``, each way as its conditions."""
    (admission,) = [each for each in found["admission"] if each["tier"] == tier]
    return [way["conditions"] for way in admission["recovery_paths"]]


def test_its_health_alone_states_why_it_stands_where_it_does(api: Api) -> None:
    api.fleet.beat()
    fault(api)
    whole = show(api)
    found = api.client.get(f"/v1/gpus/{GPU}/health", headers=api.headers("auditor")).json()
    assert found == {name: whole[name] for name in found}
    assert {"score", "evidence", "admission", "moves", "proposed"} <= set(found)
    by_tier = {each["tier"]: each for each in found["admission"]}
    assert set(by_tier) == {"reserved", "on_demand", "spot"}
    assert [each["reason"] for each in by_tier["spot"]["refusals"]] == ["standing"]
    assert "QUARANTINED" in by_tier["spot"]["refusals"][0]["text"]
    missing = api.client.get("/v1/gpus/GPU-none/health", headers=api.headers("auditor"))
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_a_healthy_gpu_has_nothing_to_get_over_and_names_what_holds_it(api: Api) -> None:
    api.fleet.beat()
    job = api.fleet.submit(**{**GOOD_JOB, "shape": {"nodes": 1, "gpus_per_node": 2}})
    api.fleet.cycle()
    found = show(api)
    assert (found["score"], found["contact"]) == (100.0, "LIVE")
    assert all(each["recovery_paths"] == [] for each in found["admission"])
    assert {tuple(refused["reason"] for refused in each["refusals"]) for each in found["admission"]} == {("assigned",)}
    assert all(each["is_admitted"] for each in found["admission"]), "it is busy, and nothing is wrong with it"
    assert found["job"]["job_id"] == job
    assert found["overrides"][0]["standing"] == found["override"] == "HEALTHY"
    cordon = {"gpu_uuid": GPU, "reason": "fan"}
    made = api.client.post("/v1/cordons", json=cordon, headers=api.headers("operator")).json()
    assert [each["id"] for each in show(api)["cordons"]] == [made["id"]]


def test_a_suspect_gpu_states_when_it_comes_back(api: Api) -> None:
    with api.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        for gpu in unit.session.scalars(select(Gpu).where(Gpu.uuid == GPU)):
            gpu.standing, gpu.origin_standing = Standing.SUSPECT, Standing.HEALTHY
            unit.session.add(
                GpuStandingChange(gpu_uuid=GPU, target=Standing.SUSPECT, at=unit.now, reason="test", actor="test")
            )
    api.fleet.beat()
    act(api, "override/release")
    first = ways_to(show(api), "reserved")[0]
    assert [each["kind"] for each in first] == ["time"]
    assert first[0]["at"] > show(api)["standing_since"]


def test_evidence_is_paged(api: Api) -> None:
    for code in (63, 92, 94):
        fault(api, code=code)
    path = f"/v1/gpus/{GPU}/evidence?limit=2"
    first = api.client.get(path, headers=api.headers("auditor")).json()
    second = api.client.get(f"{path}&cursor={first['next_cursor']}", headers=api.headers("auditor")).json()
    seen = [each["fault_key"] for each in (*first["items"], *second["items"])]
    assert seen == ["xid:94", "xid:92", "xid:63"]
    assert second["next_cursor"] is None
    elsewhere = api.client.get(
        f"/v1/gpus/{OTHER}/evidence?cursor={first['next_cursor']}", headers=api.headers("auditor")
    )
    assert elsewhere.json()["code"] == "invalid_cursor"


def test_evidence_shows_its_state_and_reasons_apart_from_its_readings(api: Api) -> None:
    with api.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        add_signal(unit, GPU, code=74, source="nvml", at=unit.now)
        add_signal(unit, GPU, code=149, source="nvml", at=unit.now, values={"since_boot_s": 1.0})
    judge_once(api.units, JUDGE)
    found = {each["fault_key"]: each for each in show(api)["evidence"]}
    waits, trained = found["xid:74"], found["xid:149"]
    assert (waits["state"], waits["suppressed_by"], waits["values"]) == ("PENDING", [], {"code": 74.0})
    assert waits["weighs_from_at"] > waits["onset_at"]
    assert (trained["state"], trained["suppressed_by"], trained["weighs_from_at"]) == ("SUPPRESSED", ["warm_up"], None)
    assert (trained["values"], trained["closed_at"]) == ({"code": 149.0}, None)
    act(api, f"evidence/{waits['id']}/dismiss")
    after = {each["fault_key"]: each["state"] for each in show(api)["evidence"]}
    assert after == {"xid:74": "DISMISSED", "xid:149": "SUPPRESSED"}


def test_dismissing_what_condemns_brings_it_back_with_event_and_audit_entry(api: Api) -> None:
    fault(api)
    before = show(api)
    (evidence,) = before["evidence"]
    after = act(api, f"evidence/{evidence['id']}/dismiss")
    assert (after["standing"], after["score"]) == ("HEALTHY", 100.0)
    assert after["evidence"][0]["dismiss_reason"] == "because"
    assert after["moves"][0]["cause"] == "dismissed"
    assert [row.action for row in rows(api, AuditEntry)].count("evidence.dismiss") == 1
    assert "evidence.dismissed" in [row.kind for row in rows(api, Event)]
    judge_once(api.units, JUDGE)
    assert show(api)["standing"] == "HEALTHY", "the judge lets it stand"
    again = act(api, f"evidence/{evidence['id']}/dismiss")
    assert again["version"] == show(api)["version"], "twice is the same as once"


def test_a_dry_run_reports_and_changes_nothing(api: Api) -> None:
    fault(api)
    (evidence,) = show(api)["evidence"]
    tried = act(api, f"evidence/{evidence['id']}/dismiss", query="?dry_run=true")
    assert tried["dry_run"]
    assert {item["kind"] for item in tried["consequences"] if "kind" in item} >= {"evidence.dismissed", "gpu.healthy"}
    assert show(api)["standing"] == "QUARANTINED"
    assert rows(api, EvidenceRow)[0].dismissed_at is None


def test_a_repair_runs_its_course(api: Api) -> None:
    fault(api, kind="gpu_lost")
    begun = act(api, "repair", action="reboot")
    assert begun["standing"] == "REPAIR"
    (repair,) = begun["repairs"]
    assert (repair["action"], repair["fault_group"], repair["outcome"]) == ("reboot", "bus", None)
    refused = act(api, "repair/finish", 409)
    assert "still has the faults under repair" in refused["detail"]
    fault(api, kind="gpu_found")
    done = act(api, "repair/finish")
    assert (done["standing"], done["repairs"][0]["outcome"]) == ("UNPROVEN", "done")
    judge_once(api.units, JUDGE)
    found = show(api)
    assert found["standing"] == "UNPROVEN", "a repaired fault condemns no more"
    assert not found["evidence"][0]["is_condemning"]
    fault(api)
    assert show(api)["standing"] == "QUARANTINED", "a new fault does"


def test_health_states_which_remedy_is_due_and_by_whose_word(api: Api) -> None:
    def health() -> dict[str, Any]:
        found = api.client.get(f"/v1/gpus/{GPU}/health", headers=api.headers("auditor"))
        document: dict[str, Any] = found.json()
        return document

    assert health()["remedy"] is None
    fault(api)
    (evidence,) = health()["evidence"]
    remedy = health()["remedy"]
    text = remedy.pop("text")
    assert text == f"reset by {remedy['actor']}: {evidence['summary']} (NVIDIA's XID catalogue asks for it)"
    assert remedy == {
        "action": "reset",
        "requested_by": "catalogue",
        "by": "person",
        "verb": None,
        "actor": "a person, since its host does not allow its agent gpu_reset",
        "why": evidence["summary"],
        "fault_group": "memory",
        "evidence_ids": [evidence["id"]],
        "attempt": 1,
        "attempts_max": 3,
        "then": ["reboot", "field_diagnosis", "swap"],
    }
    begun = act(api, "repair")
    assert (begun["repairs"][0]["action"], begun["remedy"]) == ("reset", None)


def test_where_nothing_is_due_an_action_has_to_be_named(api: Api) -> None:
    refused = act(api, "repair", 409)
    assert "no remedy is due" in refused["detail"]
    assert "field_diagnosis" in refused["suggestion"]


def test_a_repair_that_failed_goes_back(api: Api) -> None:
    fault(api)
    act(api, "repair", action="swap", fault_group="board")
    failed = act(api, "repair/fail")
    assert (failed["standing"], failed["repairs"][0]["outcome"]) == ("QUARANTINED", "failed")
    assert rows(api, Repair)[0].fault_group == "board"


def test_a_new_fault_ends_the_repair(api: Api) -> None:
    fault(api)
    act(api, "repair", action="reset")
    fault(api, code=64)
    found = show(api)
    assert (found["standing"], found["repairs"][0]["outcome"]) == ("QUARANTINED", "condemned")


def test_a_gpu_that_a_job_holds_is_not_repaired(api: Api) -> None:
    api.fleet.beat()
    job = api.fleet.submit(**{**GOOD_JOB, "shape": {"nodes": 1, "gpus_per_node": 2}})
    api.fleet.cycle()
    fault(api)
    refused = act(api, "repair", 409, action="reset")
    assert refused["job_id"] == job


def test_retired_and_reinstated(api: Api) -> None:
    assert act(api, "reinstate", 409)["code"] == "conflict"
    assert act(api, "retire")["standing"] == "RETIRED"
    assert act(api, "retire", 409)["detail"] == f"{GPU} is RETIRED: it cannot become RETIRED"
    found = act(api, "reinstate")
    assert found["standing"] == "UNPROVEN"
    assert [move["actor"] for move in found["moves"][:2]] == ["key:key-operator"] * 2


def test_a_move_is_made_of_the_version_that_was_read(api: Api) -> None:
    version = show(api)["version"]
    stale = act(api, "retire", 412, headers={"If-Match": f'"v{version + 7}"'})
    assert stale["current_version"] == version
    assert act(api, "retire", headers={"If-Match": f'"v{version}"'})["standing"] == "RETIRED"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("retire", {"reason": ""}, 422),
        ("retire", {"reason": "   "}, 422),
        ("retire", {}, 422),
        ("repair", {"reason": "x", "action": "hammer"}, 422),
        ("repair", {"reason": "x", "action": "reset", "fault_group": "A B"}, 422),
        ("evidence/nothing/dismiss", {"reason": "x"}, 404),
        ("evidence/ev_00000000000000000000000000/dismiss", {"reason": "x"}, 404),
        ("repair/finish", {"reason": "x"}, 409),
    ],
)
def test_what_cannot_be_is_stated(api: Api, path: str, body: dict[str, Any], status: int) -> None:
    answer = api.client.post(f"/v1/gpus/{GPU}/{path}", json=body, headers=api.headers("operator"))
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_another_gpus_evidence_is_not_dismissed(api: Api) -> None:
    fault(api)
    (evidence,) = show(api)["evidence"]
    act(api, f"evidence/{evidence['id']}/dismiss", 404, uuid=OTHER)
    act(api, "retire", 404, uuid=GpuUuid("GPU-nowhere"))
    assert api.client.get("/v1/gpus/%00", headers=api.headers("operator")).status_code == 404
