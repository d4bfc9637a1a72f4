"""The fleet page: the map's bytes, what changes on it, and what went wrong as text."""

import base64
import gzip
import json
import re
import struct
from typing import Any

import numpy as np
import pytest

from console.live_map import AGAIN, delta, encoded
from console.pages import fleet as fleet_pages
from control.fleet.fleet_map import COLUMNS, NONE, FleetMap, fleet_map
from control.policy.policies import ACTIVATE
from control.telemetry.intake import Intake, IntakeLimits
from control.telemetry.reports import IncomingReport, Outcome
from muster.db.models import GpuStandingChange
from muster.domain.ids import GpuUuid
from muster.domain.principals import Principal, Role, system_principal
from muster.domain.states import Standing
from muster.domain.times import to_ms
from tests.console.conftest import Console, words_of
from tests.fleet_factory import OPERATOR
from tests.telemetry_reports import reading, report
from tests.waiting import wait_until


def _decoded(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, np.dtype[np.uint8]]]]:
    assert content[:4] == b"MAP1"
    (length,) = struct.unpack("<I", content[4:8])
    head = json.loads(content[8 : 8 + length])
    cells = np.frombuffer(content[8 + length :], np.uint8).reshape(len(head["columns"]), -1)
    return head, dict(zip(head["columns"], cells, strict=True))


def test_the_map_holds_every_gpu_of_the_fleet_in_rack_order(seen: Console) -> None:
    answer = seen.get("/console/fleet/map")
    head, cells = _decoded(answer.content)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert [node[0] for node in head["nodes"]]
    assert sum(node[2] for node in head["nodes"]) == len(cells["standing"]) == 2
    assert {head["standings"][number] for number in cells["standing"]} == {"HEALTHY"}, (
        "an operator set it over UNPROVEN"
    )
    assert set(cells["utilisation"]) == {NONE}, "nothing was reported yet: no reading is not zero"


def test_the_map_comes_compressed_to_what_takes_it(seen: Console) -> None:
    answer = seen.client.get(
        "/console/fleet/map",
        headers={"Cookie": f"__Host-muster={seen.cookies['operator']}", "Accept-Encoding": "gzip"},
    )
    assert answer.headers["content-encoding"] == "gzip"
    assert _decoded(answer.content)[0]["nodes"]


def test_a_tenant_sees_what_its_jobs_hold_and_no_more(seen: Console) -> None:
    assert _decoded(seen.get("/console/fleet/map", "tenant_member").content)[1]["standing"].size == 0
    job_id = seen.fleet.submit()
    seen.fleet.beat()
    seen.fleet.cycle()
    num_held = sum(len(host.gpus) for host in seen.fleet.attempts(job_id)[0].hosts)
    own = fleet_map(seen.units, Principal(name="t", role=Role.TENANT_MEMBER, tenant_id=seen.fleet.tenant_id))
    other = fleet_map(seen.units, Principal(name="o", role=Role.TENANT_MEMBER, tenant_id=seen.other_tenant))
    assert (own.num_gpus, other.num_gpus) == (num_held, 0)
    assert [name for _, name in own.tenants] != [name for _, name in fleet_map(seen.units, OPERATOR).tenants]


def _with(fleet: FleetMap, **cells: dict[int, int]) -> FleetMap:
    changed = fleet.cells.copy()
    for name, values in cells.items():
        for index, value in values.items():
            changed[COLUMNS.index(name), index] = value
    return FleetMap(fleet.nodes, fleet.tenants, changed)


def _big(fleet: FleetMap, num_gpus: int) -> FleetMap:
    return FleetMap(fleet.nodes, fleet.tenants, np.zeros((len(COLUMNS), num_gpus), np.uint8))


def test_a_change_travels_as_the_cells_that_changed(seen: Console) -> None:
    before = fleet_map(seen.units, OPERATOR)
    after = _with(before, standing={1: 4})
    event, told = delta(before, after)
    data = json.loads(event.split(b"data: ")[1])
    raw = base64.b64decode(data["cells"])
    assert (data["n"], struct.unpack("<I", raw[:4])[0], raw[4]) == (1, 1, 4)
    assert (told.cells == after.cells).all()
    assert delta(after, after)[0] == b""


def test_what_is_urgent_travels_first_and_the_rest_follows(seen: Console) -> None:
    before = _big(fleet_map(seen.units, OPERATOR), 5_000)
    after = _with(before, utilisation=dict.fromkeys(range(5_000), 50), standing={4_999: 4})
    seen_now, rounds = before, 0
    while (seen_now.cells != after.cells).any():
        event, seen_now = delta(seen_now, after)
        rounds += 1
        assert len(event) <= 5_000, "one tick stays under 5 KB"
        assert seen_now.cells[COLUMNS.index("standing"), 4_999] == 4
    assert rounds > 1


def test_another_layout_is_fetched_again(seen: Console) -> None:
    before = fleet_map(seen.units, OPERATOR)
    after = FleetMap(before.nodes[:-1], before.tenants, before.cells)
    assert delta(before, after)[0] == AGAIN


def test_the_page_counts_the_fleet_and_names_each_standing(seen: Console) -> None:
    page = seen.text("/console")
    assert "2 GPUs on 1 node" in page
    assert "UNPROVEN" in page
    assert "Nothing has gone wrong" in page


def test_the_page_shows_the_newest_faults_and_more_on_request(seen: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_pages, "FAULTS_SHOWN", 2)
    monkeypatch.setattr(fleet_pages, "MORE_FAULTS_SHOWN", 3)
    for number in range(1, 4):
        _fault(seen, number)
    newest = seen.get("/console").text
    assert re.findall(r"fault-\d", newest) == ["fault-3"] * 2 + ["fault-2"] * 2, "each as the title and the first step"
    assert "the newest 2: show more" in words_of(newest)
    assert '<a href="/console?faults=more">' in newest
    all_of_them = seen.get("/console?faults=more").text
    assert set(re.findall(r"fault-\d", all_of_them)) == {"fault-1", "fault-2", "fault-3"}
    assert "show more" not in all_of_them
    assert "list all" not in all_of_them, "there are no others"
    _fault(seen, 4)
    assert "the newest 3; events list all" in seen.text("/console?faults=more")
    part = seen.get("/console?faults=more", hx_request="true").text
    assert set(re.findall(r"fault-\d", part)) == {"fault-2", "fault-3", "fault-4"}, "as the live page requests it"
    assert "<h2" not in part
    assert seen.get("/console?faults=all").status_code == 422


def _fault(seen: Console, number: int) -> None:
    with seen.units.begin(system_principal("judge"), ACTIVATE, quiet=True) as unit:
        change = GpuStandingChange(
            gpu_uuid=GpuUuid("GPU-alpha-0"),
            target=Standing.SUSPECT,
            at=unit.now,
            reason=f"fault-{number}",
            actor="test",
        )
        unit.session.add(change)


def test_a_hundred_thousand_gpus_compress_below_what_a_first_visit_may_weigh(seen: Console) -> None:
    chance = np.random.default_rng(1)
    small = fleet_map(seen.units, OPERATOR)
    cells = np.zeros((len(COLUMNS), 100_000), np.uint8)
    cells[2] = chance.integers(0, 11, 100_000) * 10
    cells[3] = 30 + chance.integers(0, 12, 100_000) * 4
    content = encoded(FleetMap(small.nodes, small.tenants, cells), "x-0")
    assert len(gzip.compress(content, 4)) < 250_000


def test_each_cell_shows_its_own_gpus_newest_readings(seen: Console) -> None:
    told = {
        "GPU-alpha-1": {"utilisation_percent": 90.0, "temperature_c": 64.0},
        "GPU-alpha-0": {"temperature_c": 40.0},
    }
    intake = Intake(seen.units, limits=IntakeLimits(pause_s=0.001))
    outcomes: list[Outcome] = []
    at_ms = to_ms(seen.units.clock())
    gpus = [reading(uuid, **values) for uuid, values in told.items()]
    intake.submit(IncomingReport(seen.fleet.node_id, None, report(16, at_ms, *gpus), at_ms), outcomes.append)
    wait_until(lambda: bool(outcomes))
    intake.close()
    cells = _decoded(seen.get("/console/fleet/map").content)[1]
    assert (list(cells["utilisation"]), list(cells["temperature"])) == ([NONE, 90], [40, 64])
