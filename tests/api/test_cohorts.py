"""``GET /v1/cohorts``: which GPUs may be mixed, where they stand, how far their figures lie apart."""

import asyncio
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import select

from control.fleet import inventory
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import BurnIn, Gpu, NodeLatest
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import Policy
from muster.domain.policy.recovery import RecoveryPolicy, SparePolicy
from muster.domain.states import BurnInState
from tests.api.conftest import Api
from tests.api.judged_fleet import JUDGE
from tests.fleet_factory import OPERATOR, enrol_host
from tests.stored_signals import add_signal


def measured(api: Api, uuid: str, tflops: float, *, days_ago: int = 0, **rates: float) -> None:
    with api.units.begin(JUDGE, inventory.READ, quiet=True) as unit:
        gpu = unit.session.scalars(select(Gpu).where(Gpu.uuid == uuid)).one()
        at = unit.now - timedelta(days=days_ago)
        unit.session.add(
            BurnIn(
                id=f"bi_{uuid}_{days_ago}",
                gpu_uuid=gpu.uuid,
                node_id=gpu.node_id,
                state=BurnInState.JUDGED,
                outcome="passed",  # type: ignore[arg-type]  # as the column stores it
                reason="test",
                ordered_by="test",
                ordered_at=at,
                ended_at=at,
                comparison_key="H100",
                figures={"rates": {"gemm_bf16_tflops": tflops, **rates}},
            )
        )


@pytest.fixture
def other_key(api: Api) -> str:
    """Another host with a GPU whose model has each sign that a path or a key could stumble over."""
    gpu = inventory.GpuInventory(
        uuid=GpuUuid("GPU-odd-0"),
        slot_index=0,
        model="A/B|C=D%20 100% é",
        memory_bytes=1 << 30,
        compute_capability="9.0",
        driver_version="580",
    )
    with api.units.begin(OPERATOR, inventory.ENROL) as unit:
        inventory.enrol_node(unit, "odd", [gpu], address="127.0.0.1")
    with api.units.read() as session:
        return str(session.get_one(Gpu, gpu.uuid).cohort_key)


def test_cohorts_are_listed_with_what_is_equal_and_where_their_gpus_stand(api: Api, other_key: str) -> None:
    enrol_host(api.units, "beta", num_gpus=3)
    items = api.client.get("/v1/cohorts", headers=api.headers("auditor")).json()["items"]
    by_model = {item["attributes"]["model"]: item for item in items}
    assert set(by_model) == {"Simulated H100", "A/B|C=D%20 100% é"}
    found = by_model["Simulated H100"]
    assert (found["num_gpus"], found["num_nodes"], found["standings"]) == (5, 2, {"UNPROVEN": 5})
    assert (found["attributes"]["driver_version"], found["attributes"]["vbios_version"]) == ("0", None)


def test_a_cohort_is_found_by_its_key_whatever_signs_are_in_it(api: Api, other_key: str) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=api.client.app)  # a server's: it decodes a path once
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(f"/v1/cohorts/{quote(other_key, safe='')}", headers=api.headers("auditor"))

    found = asyncio.run(ask()).json()
    assert (found["key"], found["num_gpus"], found["measures"]) == (other_key, 1, [])
    assert found["attributes"]["model"] == "A/B|C=D%20 100% é"


def test_the_spread_is_that_of_each_gpus_newest_figures(api: Api) -> None:
    enrol_host(api.units, "beta", num_gpus=2)
    measured(api, "GPU-alpha-0", 500.0, days_ago=9)
    for uuid, tflops in (("GPU-alpha-0", 700.0), ("GPU-alpha-1", 710.0), ("GPU-beta-0", 640.0)):
        measured(api, uuid, tflops)
    measured(api, "GPU-beta-1", 720.0, copy_gbps=21.5)
    (cohort,) = api.client.get("/v1/cohorts", headers=api.headers("operator")).json()["items"]
    path = f"/v1/cohorts/{quote(cohort['key'], safe='')}"
    found = api.client.get(path, headers=api.headers("operator")).json()
    assert found["measures"] == [
        {"measure": "copy_gbps", "num_gpus": 1, "min": 21.5, "median": 21.5, "max": 21.5},
        {"measure": "gemm_bf16_tflops", "num_gpus": 4, "min": 640.0, "median": 705.0, "max": 720.0},
    ]
    assert found["tolerance"] == 0.05


def test_a_cohort_that_is_not_there_is_not_found(api: Api) -> None:
    for unknown in ("nothing", "model=X", "%00", "a%2Fb", "x" * 5000):
        answer = api.client.get(f"/v1/cohorts/{unknown}", headers=api.headers("operator"))
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def drift(api: Api) -> list[dict[str, Any]]:
    answer = api.client.get("/v1/cohorts/drift", headers=api.headers("auditor"))
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def reported(api: Api, node_id: str, uuid: str | None, kind: str, **columns: Any) -> None:
    with api.units.begin(JUDGE, inventory.READ, quiet=True) as unit:
        signal_id = f"{kind}-{uuid}-{columns.get('text', '')}"
        add_signal(
            unit, None if uuid is None else GpuUuid(uuid), kind=kind, node_id=node_id, signal_id=signal_id, **columns
        )


def test_gpus_of_a_model_that_differ_from_most_are_reported_with_what_that_costs(api: Api) -> None:
    assert drift(api) == []
    beta = enrol_host(api.units, "beta", num_gpus=3)
    with api.units.begin(JUDGE, inventory.READ, quiet=True) as unit:
        unit.session.add(NodeLatest(node_id=beta, readings={"driver_version": "581"}))
    (found,) = drift(api)
    assert (found["attribute"], found["majority"], found["num_nodes"], found["num_gpus"]) == (
        "driver_version",
        "581",
        2,
        5,
    )
    (other,) = found["others"]
    assert (other["value"], other["num_gpus"], [node["name"] for node in other["nodes"]]) == ("0", 2, ["alpha"])
    assert (found["is_cohort_attribute"], found["num_kept_out"]) == (True, 2)


def test_states_and_networks_drift_too_by_the_newest_word_of_the_agents(api: Api) -> None:
    with api.units.read() as session:
        gpus = {gpu.uuid: gpu.node_id for gpu in session.scalars(select(Gpu))}
    (first, second), (node_id,) = sorted(gpus), set(gpus.values())
    reported(api, node_id, first, "gpu_state", values={"ecc_enabled": 1.0, "power_limit_w": 700.0})
    reported(api, node_id, second, "gpu_state", values={"ecc_enabled": 0.0, "power_limit_w": 700.0})
    beta = enrol_host(api.units, "beta", num_gpus=3)
    for port in ("mlx5_0/1", "mlx5_1/1"):
        reported(api, node_id, None, "port_state", text=port, values={"rate_gbps": 400.0, "is_ethernet": 0.0})
    reported(api, beta, None, "port_state", text="mlx5_0/1", values={"rate_gbps": 400.0, "is_ethernet": 0.0})
    by_attribute = {each["attribute"]: each for each in drift(api)}
    assert set(by_attribute) == {"ecc_enabled", "network"}
    assert by_attribute["ecc_enabled"]["num_kept_out"] == 0
    assert by_attribute["network"]["majority"] == "1 × 400 Gb/s InfiniBand"
    assert by_attribute["network"]["others"][0]["value"] == "2 × 400 Gb/s InfiniBand"


def test_a_cohort_names_what_its_tensor_cores_multiply(api: Api, other_key: str) -> None:
    assert other_key
    items = api.client.get("/v1/cohorts", headers=api.headers("auditor")).json()["items"]
    by_capability = {item["attributes"]["compute_capability"]: item["dtypes"] for item in items}
    assert "fp8" in by_capability.pop("9.0")
    assert set(by_capability.values()) <= {None}


def test_a_cohort_states_how_many_of_its_nodes_are_kept_as_spares(api: Api) -> None:
    """Of one host of few GPUs, away for a year after each failure, one; and none is stated where none are kept."""
    (before,) = api.client.get("/v1/cohorts", headers=api.headers("auditor")).json()["items"]
    assert before["num_spare_nodes"] is None
    spares = SparePolicy(confidence=0.99, replacement_h=8_760)
    with api.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(recovery=RecoveryPolicy(spares=spares)), reason="test")
    (after,) = api.client.get("/v1/cohorts", headers=api.headers("auditor")).json()["items"]
    assert after["num_spare_nodes"] == 1
    rule = ("driver_version", "model")
    loose = {name: tier.model_copy(update={"homogeneity": rule}) for name, tier in Policy().tiers.items()}
    with api.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(recovery=RecoveryPolicy(spares=spares), tiers=loose), reason="test")
    (mixed,) = api.client.get("/v1/cohorts", headers=api.headers("auditor")).json()["items"]
    assert mixed["num_spare_nodes"] is None, "they are counted by what the tiers mix"
