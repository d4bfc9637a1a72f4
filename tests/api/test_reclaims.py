"""Reclaims and quotas as callers see them."""

from datetime import timedelta
from typing import Any

import pytest

from control.jobs import jobs
from muster.db.models import Attempt, Reclaim
from muster.domain.ids import AttemptId, Fence, JobId, ReclaimId, TenantId
from muster.domain.job.spec import JobSpec, NodeLossRule
from muster.domain.states import AttemptState, ReclaimState
from muster.identity import new_id
from tests.api.conftest import GOOD_JOB, Api
from tests.fleet_factory import OPERATOR


def submit(api: Api, tenant_id: TenantId) -> JobId:
    with api.units.begin(OPERATOR, jobs.SUBMIT) as unit:
        return jobs.submit(unit, JobSpec.model_validate(GOOD_JOB, strict=False), tenant_id=tenant_id).id


@pytest.fixture
def reclaim(api: Api) -> dict[str, Any]:
    """From the first tenant, for the other."""
    victim, beneficiary = submit(api, api.fleet.tenant_id), submit(api, api.other_tenant)
    with api.units.begin(OPERATOR, jobs.SUBMIT, quiet=True) as unit:
        attempt_id, reclaim_id = AttemptId(new_id("attempt")), ReclaimId(new_id("reclaim"))
        unit.audit("test", "reclaim", reclaim_id)
        unit.session.add(
            Attempt(
                id=attempt_id,
                job_id=victim,
                tenant_id=api.fleet.tenant_id,
                number=1,
                fence=Fence(7),
                state=AttemptState.RUNNING,
                placed_at=unit.now,
                on_node_loss=NodeLossRule.WAIT,
                rendezvous_address="127.0.0.1",
                rendezvous_port=0,
            )
        )
        unit.session.flush()
        unit.session.add(
            Reclaim(
                id=reclaim_id,
                beneficiary_job_id=beneficiary,
                beneficiary_tenant_id=api.other_tenant,
                beneficiary_tier="reserved",
                victim_attempt_id=attempt_id,
                victim_job_id=victim,
                victim_tenant_id=api.fleet.tenant_id,
                victim_tier="spot",
                num_gpus=2,
                state=ReclaimState.NOTIFIED,
                reason="capacity is taken back",
                notice_s=120.0,
                notified_at=unit.now,
                deadline_at=unit.now + timedelta(seconds=120),
                cost_gpu_s=240.0,
                runner_up={"victims": [new_id("attempt")], "cost_gpu_s": 400.0},
            )
        )
    return {"id": reclaim_id, "victim": victim, "beneficiary": beneficiary}


@pytest.mark.parametrize(
    ("actor", "shown", "hidden"),
    [("tenant_member", "victim", "beneficiary"), ("other_tenant", "beneficiary", "victim")],
)
def test_a_tenant_reads_its_side_and_no_name_of_the_other(
    api: Api, reclaim: dict[str, Any], actor: str, shown: str, hidden: str
) -> None:
    answer = api.client.get(f"/v1/reclaims/{reclaim['id']}", headers=api.headers(actor))
    body = answer.json()
    assert (body[f"{shown}_job_id"], body[f"{shown}_job_name"]) == (reclaim[shown], "train")
    assert (body[f"{hidden}_job_id"], body[f"{hidden}_job_name"]) == (None, None)
    assert reclaim[hidden] not in answer.text
    assert body["runner_up"] is None
    listed = api.client.get("/v1/reclaims", headers=api.headers(actor)).json()
    assert listed == {"items": [body], "next_cursor": None}


def test_an_operator_reads_both_sides_and_what_the_choice_was_between(api: Api, reclaim: dict[str, Any]) -> None:
    path = f"/v1/reclaims?state=NOTIFIED&job_id={reclaim['beneficiary']}"
    (body,) = api.client.get(path, headers=api.headers("operator")).json()["items"]
    assert (body["victim_job_id"], body["beneficiary_job_id"]) == (reclaim["victim"], reclaim["beneficiary"])
    assert (body["cost_gpu_s"], body["runner_up"]["cost_gpu_s"]) == (240.0, 400.0)
    assert api.client.get("/v1/reclaims?state=GONE", headers=api.headers("operator")).status_code == 422
    assert api.client.get(f"/v1/reclaims/{new_id('reclaim')}", headers=api.headers("operator")).status_code == 404
    assert api.client.get("/v1/reclaims/nonsense", headers=api.headers("operator")).status_code == 404


def test_a_ceiling_is_set_by_an_operator_and_read_by_its_tenant(api: Api) -> None:
    path = f"/v1/tenants/{api.fleet.tenant_id}/quotas"
    wanted = {"ceiling_gpus": 4, "reason": "contract"}
    answer = api.client.put(f"{path}/spot", json=wanted, headers=api.headers("operator"))
    assert (answer.status_code, answer.json()["ceiling_gpus"]) == (200, 4)
    (read,) = api.client.get(path, headers=api.headers()).json()["items"]
    assert (read["tier"], read["ceiling_gpus"]) == ("spot", 4)
    assert api.client.get(path, headers=api.headers("other_tenant")).status_code == 404
    refused = api.client.put(f"{path}/spot", json={**wanted, "ceiling_gpus": -1}, headers=api.headers("operator"))
    assert (refused.status_code, "ceiling_gpus" in refused.text) == (422, True)
    assert api.client.put(f"{path}/gold", json=wanted, headers=api.headers("operator")).status_code == 422
