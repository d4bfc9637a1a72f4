"""The page of cohorts: which GPUs drifted from the rest of their model, where, and what that costs."""

from control.fleet import inventory
from muster.db.models import NodeLatest
from muster.domain.principals import system_principal
from tests.console.conftest import Console
from tests.fleet_factory import enrol_host


def test_what_drifted_is_named_with_its_nodes_and_what_it_keeps_out(seen: Console) -> None:
    assert "No difference is known" in seen.text("/console/cohorts")
    beta = enrol_host(seen.units, "beta", num_gpus=3)
    with seen.units.begin(system_principal("judge"), inventory.READ, quiet=True) as unit:
        unit.session.add(NodeLatest(node_id=beta, readings={"driver_version": "581"}))
    told = seen.text("/console/cohorts")
    assert "Simulated H100 driver version 581 0 : 2 GPUs on 1 of 2 nodes alpha 2 GPUs" in told, told
    assert f"/console/nodes/{seen.fleet.node_id}" in seen.get("/console/cohorts").text
    assert "fp64, tf32, bf16, fp16, fp8, int8" in told


def test_a_tenant_sees_no_cohorts(seen: Console) -> None:
    assert seen.get("/console/cohorts", "tenant_member").status_code == 403
