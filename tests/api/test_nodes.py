"""``GET /v1/nodes``: filtered and paged; and one node, by its id or its name, with all that is there."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from control.fleet import inventory
from muster.db.models import Gpu, Node, NodeLatest
from muster.domain.ids import NodeId
from muster.domain.states import Contact, Standing
from tests.api.conftest import GOOD_JOB, Api
from tests.api.judged_fleet import JUDGE
from tests.fleet_factory import enrol_host

UNKNOWN = "node_00000000000000000000000000"


def listed(api: Api, **filters: Any) -> list[str]:
    answer = api.client.get("/v1/nodes", params=filters, headers=api.headers("auditor"))
    assert answer.status_code == 200, answer.text
    assert answer.json()["next_cursor"] is None
    return [item["name"] for item in answer.json()["items"]]


def shown(api: Api, node: str) -> dict[str, Any]:
    answer = api.client.get(f"/v1/nodes/{node}", headers=api.headers("auditor"))
    assert answer.status_code == 200, answer.text
    assert answer.headers["etag"] == f'"v{answer.json()["version"]}"'
    document: dict[str, Any] = answer.json()
    return document


def cordon(api: Api, **wanted: str) -> str:
    made = api.client.post("/v1/cordons", json={"reason": "fan", **wanted}, headers=api.headers("operator"))
    return str(made.json()["id"])


@pytest.fixture
def beta(api: Api) -> NodeId:
    """A second host of three GPUs in a rack of its own, LIVE, one GPU of it SUSPECT."""
    node_id = enrol_host(api.units, "beta-01", num_gpus=3)
    with api.units.begin(JUDGE, inventory.READ, quiet=True) as unit:
        node = unit.session.get_one(Node, node_id)
        node.rack, node.contact = "r7", Contact.LIVE
        gpu = unit.session.scalars(select(Gpu).where(Gpu.node_id == node_id, Gpu.slot_index == 1)).one()
        for standing in (Standing.PROBATION, Standing.SUSPECT):
            gpu.standing = standing
            unit.session.flush()
    return node_id


def test_each_filter_narrows_and_all_hold_together(api: Api, beta: NodeId) -> None:
    assert listed(api) == ["alpha", "beta-01"]
    assert listed(api, contact="LIVE") == listed(api, rack="r7") == listed(api, name="ta-0") == ["beta-01"]
    assert listed(api, contact=["LIVE", "LOST"]) == ["alpha", "beta-01"]
    assert listed(api, name="%") == listed(api, rack="r") == listed(api, contact="LOST", rack="r7") == []
    cordon(api, node_id=beta)
    cordon(api, gpu_uuid="GPU-alpha-0")
    assert listed(api, cordoned=True) == ["beta-01"]
    assert listed(api, cordoned=False) == ["alpha"], "a GPU's cordon is not its node's"


def test_a_node_in_the_list_counts_its_gpus_by_standing_and_those_that_are_on_hold(api: Api, beta: NodeId) -> None:
    api.fleet.beat()
    api.fleet.submit(**GOOD_JOB)
    api.fleet.cycle()
    items = api.client.get("/v1/nodes", headers=api.headers("operator")).json()["items"]
    facts = [(item["standings"], item["num_assigned_gpus"], item["num_cordons"]) for item in items]
    # The job breaks no whole host where another has a GPU that cannot be used anyway.
    assert facts == [({"UNPROVEN": 2}, 0, 0), ({"SUSPECT": 1, "UNPROVEN": 2}, 1, 0)]


def test_pages_follow_one_another_by_name(api: Api, beta: NodeId) -> None:
    operator = api.headers("operator")
    first = api.client.get("/v1/nodes", params={"limit": 1}, headers=operator).json()
    rest = api.client.get("/v1/nodes", params={"limit": 1, "cursor": first["next_cursor"]}, headers=operator).json()
    assert [item["name"] for item in (*first["items"], *rest["items"])] == ["alpha", "beta-01"]
    assert rest["next_cursor"] is None
    for other in ({"cursor": first["next_cursor"], "rack": "r7"}, {"cursor": "x"}):
        answer = api.client.get("/v1/nodes", params=other, headers=operator)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize(
    "bad",
    [
        {"contact": "AWAY"},
        {"name": ""},
        {"name": "a b"},
        {"rack": "a\x00"},
        {"rack": "r" * 300},
        {"cordoned": "perhaps"},
        {"limit": 0},
        {"limit": 1001},
    ],
)
def test_a_filter_that_means_nothing_is_refused_by_name(api: Api, bad: dict[str, Any]) -> None:
    answer = api.client.get("/v1/nodes", params=bad, headers=api.headers("operator"))
    assert answer.status_code == 422, answer.text
    assert next(iter(bad)) in answer.text


def test_one_node_is_shown_by_its_id_or_its_name_with_its_place_and_gpus(api: Api, beta: NodeId) -> None:
    found = shown(api, beta)
    assert shown(api, "beta-01") == found
    assert found["path"] == [{"level": "rack", "name": "r7"}, {"level": "node", "name": "beta-01"}]
    assert shown(api, "alpha")["path"] == [{"level": "node", "name": "alpha"}], "where no rack is known, none is shown"
    assert [gpu["uuid"] for gpu in found["gpus"]] == [f"GPU-beta-01-{slot}" for slot in range(3)]
    assert [gpu["standing"] for gpu in found["gpus"]] == ["UNPROVEN", "SUSPECT", "UNPROVEN"]
    assert found["gpus"][0]["override"] == "HEALTHY"
    assert (found["driver_versions"], found["agent"], found["jobs"]) == (["0"], None, [])
    assert found["rdma_ports"] == [], "it enrolled with none"
    assert found["network_ports"] == [], "its agent has reported none"


def test_it_reports_what_its_agent_stated_of_itself(api: Api) -> None:
    with api.units.begin(JUDGE, inventory.READ, quiet=True) as unit:
        readings = {"agent_version": "0.1.0", "driver_version": "580", "spool_reports": 4, "cpu_percent": 12.5}
        ports = [["mlx5_0/1", 5e9, 25e9, 400.0], ["eth0", 1.0, 2.0, None]]
        at = unit.now - timedelta(seconds=2)
        unit.session.add(
            NodeLatest(
                node_id=api.fleet.node_id,
                boot_id="boot-1",
                seq=1,
                at=at,
                received_at=unit.now,
                skew_ms=2000,
                readings={**readings, "port_throughput": ports},
            )
        )
    found = shown(api, "alpha")
    agent = found["agent"]
    assert [tuple(port.values()) for port in found["network_ports"]] == [
        ("mlx5_0/1", 5e9, 25e9, 400.0, 0.5),
        ("eth0", 1.0, 2.0, None, None),
    ]
    assert (agent["version"], agent["driver_version"], agent["spool_reports"]) == ("0.1.0", "580", 4)
    assert (agent["clock_skew_s"], agent["cpu_percent"], agent["memory_used_mib"]) == (2.0, 12.5, None)


def test_it_names_the_jobs_that_have_its_gpus_and_every_cordon_there(api: Api) -> None:
    api.fleet.beat()
    job = api.fleet.submit(**{**GOOD_JOB, "shape": {"nodes": 1, "gpus_per_node": 2}})
    api.fleet.cycle()
    of_node, of_gpu = cordon(api, node_id=api.fleet.node_id), cordon(api, gpu_uuid="GPU-alpha-1")
    found = shown(api, "alpha")
    (there,) = found["jobs"]
    assert (there["job_id"], there["job_name"], there["attempt_number"], there["state"]) == (
        job,
        "train",
        1,
        "ASSIGNED",
    )
    assert there["gpus"] == ["GPU-alpha-0", "GPU-alpha-1"]
    assert there["stop_reason"] is None
    assert [each["id"] for each in found["cordons"]] == [of_gpu, of_node]
    assert found["num_cordons"] == 1
    api.fleet.cancel(job)
    assert shown(api, "alpha")["jobs"] == [], "never claimed, so nothing is left there to clean"


@pytest.mark.parametrize("unknown", [UNKNOWN, "gamma", "a%20b", "%00", "x" * 300, "node_"])
def test_a_node_that_is_not_there_is_not_found(api: Api, unknown: str) -> None:
    answer = api.client.get(f"/v1/nodes/{unknown}", headers=api.headers("operator"))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_lists_of_gpus_and_burn_ins_take_the_nodes_id_or_its_name(api: Api, beta: NodeId) -> None:
    operator = api.headers("operator")
    ordered = api.client.post("/v1/gpus/GPU-beta-01-2/burn-in", json={"reason": "weekly"}, headers=operator).json()
    for node in (beta, "beta-01"):
        gpus = api.client.get("/v1/gpus", params={"node": node}, headers=operator).json()["items"]
        assert [gpu["slot_index"] for gpu in gpus] == [0, 1, 2]
        burn_ins = api.client.get("/v1/burn-ins", params={"node": node}, headers=operator).json()["items"]
        assert [each["id"] for each in burn_ins] == [ordered["id"]]
    assert api.client.get("/v1/gpus", params={"node": "beta"}, headers=operator).json()["items"] == []
    for path in ("gpus", "burn-ins"):
        for bad in ("", "a b", "x" * 300):
            answer = api.client.get(f"/v1/{path}", params={"node": bad}, headers=operator)
            assert (answer.status_code, "node" in answer.text) == (422, True)
