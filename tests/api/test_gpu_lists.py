"""``GET /v1/gpus``: filtered and paged on the server; a client that reads ``items`` alone reads a whole small fleet."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from control.fleet import inventory
from muster.db.models import Gpu, GpuOverride
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing
from tests.api.conftest import Api
from tests.api.judged_fleet import JUDGE
from tests.fleet_factory import OPERATOR, enrol_host


def listed(api: Api, **filters: Any) -> list[str]:
    answer = api.client.get("/v1/gpus", params=filters, headers=api.headers("auditor"))
    assert answer.status_code == 200, answer.text
    assert answer.json()["next_cursor"] is None
    return [item["uuid"] for item in answer.json()["items"]]


@pytest.fixture
def beta(api: Api) -> str:
    """A second host of twelve GPUs: one of another model, one with a score of 40, one SUSPECT. No override stands."""
    node_id = enrol_host(api.units, "beta", num_gpus=12)
    with api.units.begin(JUDGE, inventory.READ, quiet=True) as unit:
        unit.session.execute(update(GpuOverride).values(ended_at=unit.now))
        gpus = {gpu.uuid: gpu for gpu in unit.session.scalars(select(Gpu))}
        gpus[GpuUuid("GPU-beta-1")].model = "NVIDIA 100%_B200"
        gpus[GpuUuid("GPU-beta-2")].score = 40
        for standing in (Standing.PROBATION, Standing.SUSPECT):
            gpus[GpuUuid("GPU-beta-3")].standing = standing
            unit.session.flush()
    return node_id


def test_each_filter_narrows_and_all_hold_together(api: Api, beta: str) -> None:
    assert len(listed(api)) == 14
    assert len(listed(api, node=beta)) == 12
    assert listed(api, standing="SUSPECT") == ["GPU-beta-3"]
    assert len(listed(api, standing=["SUSPECT", "UNPROVEN"])) == 14
    assert listed(api, model="b200") == listed(api, model="100%_") == ["GPU-beta-1"]
    assert listed(api, model="%") == ["GPU-beta-1"], "a sign of the model's name, and no pattern"
    assert listed(api, below=40.5) == ["GPU-beta-2"]
    assert listed(api, below=40) == []
    assert listed(api, node=beta, standing="SUSPECT", model="H100", below=50) == []
    assert listed(api, node="node_00000000000000000000000000") == []


def test_a_gpu_is_found_by_the_parts_of_its_uuid_that_people_type(api: Api, beta: str) -> None:
    assert listed(api, uuid="GPU-beta-1") == ["GPU-beta-1", "GPU-beta-10", "GPU-beta-11"]
    assert listed(api, uuid="GPU..11") == ["GPU-beta-11"]
    assert listed(api, uuid="beta-3") == ["GPU-beta-3"]
    assert listed(api, uuid="eta") == listed(api, uuid="GPU_beta") == []


def test_pages_follow_one_another_by_node_and_slot(api: Api, beta: str) -> None:
    found, cursor, operator = [], None, api.headers("operator")
    while True:
        asked = {"limit": 5, "standing": "UNPROVEN", **({"cursor": cursor} if cursor else {})}
        page = api.client.get("/v1/gpus", params=asked, headers=operator).json()
        found += [(item["node_id"], item["slot_index"]) for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
    assert found == sorted(set(found))
    assert len(found) == 13
    for other in ({"cursor": cursor}, {"cursor": cursor, "standing": "SUSPECT"}, {"cursor": "x"}):
        answer = api.client.get("/v1/gpus", params=other, headers=operator)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize(
    "bad",
    [
        {"standing": "FINE"},
        {"below": "nan"},
        {"below": -1},
        {"model": "a\x00"},
        {"model": ""},
        {"node": "a" * 300},
        {"uuid": "\u00e9"},
        {"limit": 0},
        {"limit": 1001},
    ],
)
def test_a_filter_that_means_nothing_is_refused_by_name(api: Api, bad: dict[str, Any]) -> None:
    answer = api.client.get("/v1/gpus", params=bad, headers=api.headers("operator"))
    assert answer.status_code == 422, answer.text
    assert next(iter(bad)) in answer.text


def test_the_newest_override_in_force_stands_next_to_the_standing(api: Api) -> None:
    with api.units.begin(OPERATOR, inventory.OVERRIDE) as unit:
        until = unit.now + timedelta(hours=1)
        inventory.override_standing(unit, [GpuUuid("GPU-alpha-0")], Standing.QUARANTINED, until=until, reason="noise")
    items = api.client.get("/v1/gpus", headers=api.headers("operator")).json()["items"]
    assert [(item["standing"], item["override"]) for item in items] == [
        ("UNPROVEN", "QUARANTINED"),
        ("UNPROVEN", "HEALTHY"),
    ]
