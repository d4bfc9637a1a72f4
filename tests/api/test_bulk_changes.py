"""Changes by a selector: tried first, made only for the number that was shown, and each like the change of one."""

from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import undefer

from control.fleet import cordons
from control.fleet.inventory import OVERRIDE
from muster.db.models import AuditEntry, Cordon, Event, Job
from muster.domain.states import TERMINAL_JOB_STATES, JobState
from tests.api.conftest import GOOD_JOB, Api
from tests.fleet_factory import OPERATOR, enrol_host


def requested(
    api: Api, path: str, selector: dict[str, Any], actor: str = "operator", *, dry_run: bool = False, **more: Any
) -> tuple[int, dict[str, Any]]:
    body = {"selector": selector, "reason": "new switch", **more}
    params = {"dry_run": "true"} if dry_run else {}
    answer = api.client.post(path, json=body, params=params, headers=api.headers(actor))
    found: dict[str, Any] = answer.json()
    return answer.status_code, found


def made(api: Api, path: str, selector: dict[str, Any], actor: str = "operator", **more: Any) -> dict[str, Any]:
    status, found = requested(api, path, selector, actor, **more)
    assert status == 200, found
    return found


def outcomes(found: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["outcome"] for item in found["items"]}


def standing_on(api: Api) -> dict[str, int]:
    nodes = api.client.get("/v1/nodes", headers=api.headers("operator")).json()["items"]
    return {node["name"]: node["num_cordons"] for node in nodes}


@pytest.fixture
def racks(api: Api) -> Api:
    for name, rack in (("beta-1", "r1"), ("beta-2", "r1"), ("beta-3", "r1"), ("gamma-1", "r2")):
        enrol_host(api.units, name, num_gpus=2, rack=rack)
    return api


def test_a_rack_is_cordoned_as_its_dry_run_showed(racks: Api) -> None:
    rack = {"rack": "r1"}
    tried = made(racks, "/v1/nodes/cordon", rack, dry_run=True)
    assert (tried["num_matched"], tried["num_unchanged"], tried["dry_run"]) == (3, 0, True)
    assert outcomes(tried) == {"beta-1": "changed", "beta-2": "changed", "beta-3": "changed"}
    assert set(standing_on(racks).values()) == {0}, "nothing has happened"

    done = made(racks, "/v1/nodes/cordon", rack, expected=tried["num_matched"])
    assert (done["num_changed"], done["num_refused"], done["num_left"], done["next_after"]) == (3, 0, 0, None)
    assert standing_on(racks) == {"alpha": 0, "beta-1": 1, "beta-2": 1, "beta-3": 1, "gamma-1": 0}
    again = made(racks, "/v1/nodes/cordon", rack, expected=0)
    assert (again["num_matched"], again["num_unchanged"], again["items"]) == (0, 3, [])


def test_each_object_has_the_audit_entry_and_the_event_of_a_single_change(racks: Api) -> None:
    one = {"node_id": racks.fleet.node_id, "reason": "new switch"}
    assert racks.client.post("/v1/cordons", json=one, headers=racks.headers("operator")).status_code == 201
    made(racks, "/v1/nodes/cordon", {"rack": "r1"}, expected=3)
    with racks.units.read() as session:
        entries = session.execute(
            select(AuditEntry.subject_type, AuditEntry.reason, AuditEntry.actor).where(
                AuditEntry.action == "cordon.create"
            )
        ).all()
        events = session.scalars(select(Event.subject_id).where(Event.kind == "node.cordoned")).all()
    assert len(entries) == len(events) == 4
    assert len(set(entries)) == 1, "the entry of a single one is like the others"


def test_another_number_than_the_expected_one_is_refused_and_nothing_is_changed(racks: Api) -> None:
    status, found = requested(racks, "/v1/nodes/cordon", {"rack": "r1"}, expected=2)
    assert (status, found["code"], found["num_matched"]) == (409, "conflict", 3)
    assert set(standing_on(racks).values()) == {0}
    status, found = requested(racks, "/v1/nodes/cordon", {"rack": "r1"})
    assert status == 422
    assert "/expected" in str(found)


@pytest.mark.parametrize(
    "path", ["/v1/nodes/cordon", "/v1/nodes/uncordon", "/v1/nodes/drain", "/v1/jobs/cancel", "/v1/jobs/retry"]
)
def test_an_empty_selector_selects_nothing(racks: Api, path: str) -> None:
    status, found = requested(racks, path, {}, expected=0)
    assert status == 422
    assert "an empty selector selects nothing" in str(found)


def test_a_request_is_bounded_and_the_next_one_continues(racks: Api) -> None:
    rack = {"rack": "r1"}
    first = made(racks, "/v1/nodes/cordon", rack, expected=3, limit=2)
    assert (first["num_changed"], first["num_left"]) == (2, 1)
    rest = made(racks, "/v1/nodes/cordon", rack, expected=first["num_left"], after=first["next_after"], limit=2)
    assert (rest["num_changed"], rest["num_left"], rest["next_after"]) == (1, 0, None)
    assert outcomes(first).keys() | outcomes(rest).keys() == {"beta-1", "beta-2", "beta-3"}
    assert requested(racks, "/v1/nodes/cordon", rack, expected=0, limit=101)[0] == 422


def test_a_refused_object_has_its_reason_and_the_others_are_changed(racks: Api) -> None:
    operator = racks.headers("operator")
    too_short = made(racks, "/v1/nodes/drain", {"rack": "r1"}, expected=3, deadline_s=0.5)
    assert set(outcomes(too_short).values()) == {"refused"}
    assert all("the policy gives a job that long" in item["why"] for item in too_short["items"])
    assert set(standing_on(racks).values()) == {0}
    racks.client.post("/v1/nodes/beta-2/drain", json={"reason": "its fan"}, headers=operator)
    drained = made(racks, "/v1/nodes/drain", {"rack": "r1"}, expected=2)
    assert outcomes(drained) == {"beta-1": "changed", "beta-3": "changed"}
    assert drained["num_unchanged"] == 1
    assert {name for name, num in standing_on(racks).items() if num} == {"beta-1", "beta-2", "beta-3"}


def test_uncordon_ends_what_persons_set_and_leaves_what_a_rule_set(racks: Api) -> None:
    made(racks, "/v1/nodes/cordon", {"rack": "r1"}, expected=3)
    made(racks, "/v1/nodes/drain", {"name": "beta-1"}, expected=1)
    with racks.units.begin(OPERATOR, OVERRIDE) as unit:
        (node_id,) = unit.session.scalars(
            select(Cordon.node_id).where(Cordon.reason_code == "drain", Cordon.released_at.is_(None))
        )
        cordons.stand(unit, "of_a_rule", "the rule's own", node_id=node_id)
        unit.audit("node.label", "node", str(node_id), reason="a test")
    assert standing_on(racks)["beta-1"] == 3
    done = made(racks, "/v1/nodes/uncordon", {"rack": "r1"}, expected=3)
    assert set(outcomes(done).values()) == {"changed"}
    assert standing_on(racks) == {"alpha": 0, "beta-1": 1, "beta-2": 0, "beta-3": 0, "gamma-1": 0}


def test_jobs_are_cancelled_by_their_label_and_of_a_tenant_its_own_alone(api: Api) -> None:
    def submitted(actor: str, **labels: str) -> str:
        body = {**GOOD_JOB, "labels": labels}
        return str(api.client.post("/v1/jobs", json=body, headers=api.headers(actor)).json()["id"])

    mine = {submitted("tenant_member", sweep="7"), submitted("tenant_member", sweep="7")}
    other, foreign = submitted("tenant_member", sweep="8"), submitted("other_tenant", sweep="7")
    selector = {"label": ["sweep=7"]}
    tried = made(api, "/v1/jobs/cancel", selector, "tenant_member", dry_run=True)
    assert {item["id"] for item in tried["items"]} == mine
    done = made(api, "/v1/jobs/cancel", selector, "tenant_member", expected=2)
    assert done["num_changed"] == 2

    def state(job_id: str) -> str:
        return str(api.client.get(f"/v1/jobs/{job_id}", headers=api.headers("operator")).json()["state"])

    assert {state(job_id) for job_id in mine} == {"CANCELLED"}
    assert (state(other), state(foreign)) == ("QUEUED", "QUEUED")
    assert made(api, "/v1/jobs/cancel", selector, "operator", dry_run=True)["num_matched"] == 1


def test_jobs_that_wait_for_a_person_are_released_and_others_of_the_selector_stay(api: Api) -> None:
    ids = [
        api.client.post("/v1/jobs", json={**GOOD_JOB, "name": name}, headers=api.headers()).json()["id"]
        for name in ("one", "two", "three")
    ]
    with api.units.begin(OPERATOR, OVERRIDE, quiet=True) as unit:
        unit.session.execute(update(Job).where(Job.id.in_(ids[:2])).values(state=JobState.HELD))
    tenant = {"tenant_id": api.fleet.tenant_id}
    done = made(api, "/v1/jobs/release", tenant, "tenant_member", expected=2)
    assert (done["num_changed"], done["num_unchanged"]) == (2, 1)
    states = {api.client.get(f"/v1/jobs/{job_id}", headers=api.headers()).json()["state"] for job_id in ids}
    assert states == {"QUEUED"}


def job_of(api: Api, job_id: str, actor: str = "tenant_member") -> dict[str, Any]:
    found: dict[str, Any] = api.client.get(f"/v1/jobs/{job_id}", headers=api.headers(actor)).json()
    return found


def submitted(api: Api, actor: str = "tenant_member", **spec: Any) -> str:
    return str(api.client.post("/v1/jobs", json={**GOOD_JOB, **spec}, headers=api.headers(actor)).json()["id"])


def put_into(api: Api, state: JobState, *job_ids: str) -> None:
    with api.units.begin(OPERATOR, OVERRIDE, quiet=True) as unit:
        ended = unit.now if state in TERMINAL_JOB_STATES else None
        unit.session.execute(update(Job).where(Job.id.in_(job_ids)).values(state=state, finished_at=ended))


def test_jobs_that_wait_are_on_hold_until_they_are_released_and_those_with_gpus_stay(api: Api) -> None:
    mine = [submitted(api, labels={"sweep": "7"}) for _ in range(2)]
    running, foreign = submitted(api, labels={"sweep": "7"}), submitted(api, "other_tenant", labels={"sweep": "7"})
    put_into(api, JobState.ACTIVE, running)
    selector = {"label": ["sweep=7"]}
    tried = made(api, "/v1/jobs/hold", selector, "tenant_member", dry_run=True)
    assert ({item["id"] for item in tried["items"]}, tried["num_unchanged"]) == (set(mine), 1)
    assert job_of(api, mine[0])["state"] == "QUEUED", "a dry run changes nothing"
    assert made(api, "/v1/jobs/hold", selector, "tenant_member", expected=2)["num_changed"] == 2
    first = job_of(api, mine[0])
    assert (first["state"], first["state_reason"]) == ("HELD", "held by request: new switch")
    assert (job_of(api, running)["state"], job_of(api, foreign, "operator")["state"]) == ("ACTIVE", "QUEUED")
    assert made(api, "/v1/jobs/release", selector, "tenant_member", expected=2)["num_changed"] == 2
    assert job_of(api, mine[0])["state"] == "QUEUED"


def test_one_job_is_put_on_hold_while_it_waits_and_twice_is_once(api: Api) -> None:
    job_id = submitted(api)
    path, body = f"/v1/jobs/{job_id}/hold", {"reason": "its data is being replaced"}
    assert api.client.post(path, json=body, headers=api.headers("other_tenant")).status_code == 404
    assert api.client.post(path, json=body, headers=api.headers("auditor")).status_code == 403
    first = api.client.post(path, json=body, headers=api.headers())
    assert (first.status_code, first.json()["state"]) == (200, "HELD")
    again = api.client.post(path, json={}, headers=api.headers())
    assert (again.status_code, again.json()["version"]) == (200, first.json()["version"])
    running, ended = submitted(api), submitted(api)
    put_into(api, JobState.ACTIVE, running)
    refused = api.client.post(f"/v1/jobs/{running}/hold", json={}, headers=api.headers())
    assert (refused.status_code, "only one that waits for GPUs is held" in refused.text) == (409, True)
    put_into(api, JobState.CANCELLED, ended)
    assert "has ended already" in api.client.post(f"/v1/jobs/{ended}/hold", json={}, headers=api.headers()).text


def test_jobs_that_failed_are_submitted_again_once_with_a_link_to_them(api: Api) -> None:
    failed, cancelled, waiting = (submitted(api, name=name) for name in ("one", "two", "three"))
    put_into(api, JobState.FAILED, failed)
    put_into(api, JobState.CANCELLED, cancelled)
    tenant = {"tenant_id": api.fleet.tenant_id}
    tried = made(api, "/v1/jobs/retry", tenant, dry_run=True)
    assert ({item["id"] for item in tried["items"]}, tried["num_unchanged"]) == ({failed, cancelled}, 1)
    assert made(api, "/v1/jobs/retry", tenant, expected=2)["num_changed"] == 2
    jobs = api.client.get("/v1/jobs", headers=api.headers()).json()["items"]
    copies = [job_of(api, job["id"]) for job in jobs if job["id"] not in {failed, cancelled, waiting}]
    assert {job["copied_from"] for job in copies} == {failed, cancelled}
    assert {(job["tenant_id"], job["state"]) for job in copies} == {(api.fleet.tenant_id, "QUEUED")}
    assert {job["spec"]["name"] for job in copies} == {"one", "two"}
    again = made(api, "/v1/jobs/retry", tenant, dry_run=True)
    assert (again["num_matched"], again["items"]) == (0, []), "a job of which there is a copy is left alone"


def test_a_job_that_cannot_be_submitted_any_more_is_named_and_the_others_are_tried_again(api: Api) -> None:
    plain, large = submitted(api, name="plain"), submitted(api, name="large")
    put_into(api, JobState.FAILED, plain, large)
    with api.units.begin(OPERATOR, OVERRIDE, quiet=True) as unit:
        job = unit.session.get_one(Job, large, options=[undefer(Job.spec)])
        job.spec = {**job.spec, "program": {**job.spec["program"], "bundle": "0" * 64}}
    done = made(api, "/v1/jobs/retry", {"state": ["FAILED"]}, "tenant_member", expected=2)
    assert outcomes(done) == {"plain": "changed", "large": "refused"}
    (refused,) = [item for item in done["items"] if item["outcome"] == "refused"]
    assert "has no bundle 000000000000…" in refused["why"]
    jobs = api.client.get("/v1/jobs", headers=api.headers()).json()["items"]
    assert sorted(job["name"] for job in jobs) == ["large", "plain", "plain"], "nothing of the refused one is left"


def test_a_job_with_outputs_is_tried_again_where_the_residency_rule_permits_the_store(api: Api) -> None:
    failed = submitted(api, outputs=["model/*"])
    put_into(api, JobState.FAILED, failed)
    path, rule = f"/v1/tenants/{api.fleet.tenant_id}/residency", {"stores": ["main"], "reason": "contract"}
    assert api.client.put(path, json=rule, headers=api.headers("operator")).status_code == 200
    done = made(api, "/v1/jobs/retry", {"state": ["FAILED"]}, "tenant_member", expected=1)
    assert done["num_changed"] == 1, done


def test_a_key_makes_a_repetition_the_same_answer(racks: Api) -> None:
    body = {"selector": {"rack": "r1"}, "reason": "new switch", "expected": 3}
    headers = {**racks.headers("operator"), "Idempotency-Key": "one-rack"}
    first = racks.client.post("/v1/nodes/cordon", json=body, headers=headers)
    again = racks.client.post("/v1/nodes/cordon", json=body, headers=headers)
    assert first.json() == again.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    assert standing_on(racks)["beta-1"] == 1
