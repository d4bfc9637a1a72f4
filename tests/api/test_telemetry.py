"""The telemetry route: what it takes, what it refuses by name, and that nothing a host sends causes a server error."""

import gzip
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from sqlalchemy import select
from starlette.testclient import TestClient

from api.app import create_app
from api.dependencies import AppDependencies
from api.permissions import UndeclaredRouteError, public
from api.telemetry import PATH, TelemetryRoute, declared_permission
from control.telemetry.intake import Intake
from control.telemetry.reports import AcceptedReport
from control.tenants import keys
from muster.db.models import StoredSignal, TelemetryBlock, TelemetryGap
from muster.domain.errors import UnavailableError
from muster.domain.gpu.metrics import NUM_METRICS, SCHEMA
from muster.domain.ids import NodeId
from muster.tokens import new_token
from muster.wire.telemetry import GapMarker, NodeReport, Report
from tests.api.conftest import Api
from tests.fleet_factory import OPERATOR, enrol_host
from tests.telemetry_reports import document, newest_readings, reading, report, xid

GPU = "GPU-alpha-0"
MEBIBYTE = 1 << 20


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def other_node(api: Api) -> NodeId:
    return enrol_host(api.units, "beta")


def post(api: Api, body: Report | dict[str, Any] | bytes, *, actor: str = "node", **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    sent = {"Content-Type": "application/json", **api.headers(actor), **headers}
    answer: httpx.Response = api.client.post(PATH, content=content, headers=sent)
    return answer


def stored(api: Api, table: type[Any]) -> list[Any]:
    with api.units.read() as session:
        return list(session.scalars(select(table)))


def latest(api: Api) -> dict[str, tuple[str, int]]:
    with api.units.read() as session:
        newest = newest_readings(session)
    return {uuid: (each.reported_in.boot_id, each.reported_in.seq) for uuid, each in newest.items()}


def assert_nothing_stored(api: Api) -> None:
    assert latest(api) == {}
    for table in (TelemetryBlock, StoredSignal, TelemetryGap):
        assert stored(api, table) == []


def test_a_report_is_answered_once_it_is_stored(api: Api) -> None:
    node = NodeReport(num_gpus=2, agent_version="1")
    answer = post(api, report(16, now_ms(), reading(GPU, power_w=312.5), node=node))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {"boot_id": "boot-1", "seq": 16, "is_duplicate": False, "interval_s": 10.0}
    assert latest(api) == {GPU: ("boot-1", 16)}
    assert answer.headers["x-request-id"]


def test_a_report_that_comes_again_is_a_duplicate_without_effect(api: Api) -> None:
    at = now_ms()
    first = report(16, at, reading(GPU, power_w=1.0), events=(xid("e", at),))
    assert not post(api, first).json()["is_duplicate"]
    again = report(16, at, reading(GPU, power_w=2.0), events=(xid("other", at),))
    assert post(api, again).json()["is_duplicate"]
    assert len(stored(api, TelemetryBlock)) == 1
    assert [signal.signal_id for signal in stored(api, StoredSignal)] == ["e"]


def test_late_reports_fill_history_and_never_move_latest_state_back(api: Api) -> None:
    at = now_ms()
    for seq, is_history in ((48, False), (16, False), (32, True)):
        answer = post(api, report(seq, at + seq, reading(GPU, power_w=float(seq)), is_history=is_history))
        assert not answer.json()["is_duplicate"]
    assert latest(api) == {GPU: ("boot-1", 48)}
    assert len(stored(api, TelemetryBlock)) == 3


def test_history_never_moves_latest_state_even_when_it_is_newer(api: Api) -> None:
    post(api, report(16, now_ms(), reading(GPU, power_w=1.0)))
    post(api, report(32, now_ms(), reading(GPU, power_w=2.0), is_history=True))
    assert latest(api) == {GPU: ("boot-1", 16)}


def test_another_nodes_gpu_is_refused_by_name_and_nothing_is_stored(api: Api, other_node: NodeId) -> None:
    at = now_ms()
    for mixed in (
        report(16, at, reading(GPU, power_w=1.0), reading("GPU-beta-1", power_w=1.0)),
        report(32, at, events=(xid("e", at, "GPU-beta-1"),)),
    ):
        answer = post(api, mixed)
        assert (answer.status_code, answer.json()["gpu_uuids"]) == (409, ["GPU-beta-1"])
        assert "GPU-beta-1" in answer.json()["detail"]
    assert_nothing_stored(api)


def test_a_gpu_that_none_has_enrolled_is_left_out_and_counted(api: Api) -> None:
    at = now_ms()
    found = xid("found", at, "GPU-new")
    answer = post(api, report(16, at, reading(GPU, power_w=1.0), reading("GPU-new", power_w=1.0), events=(found,)))
    assert answer.status_code == 200
    assert latest(api) == {GPU: ("boot-1", 16)}
    assert [signal.gpu_uuid for signal in stored(api, StoredSignal)] == ["GPU-new"]
    figures = api.client.get("/metrics", headers=api.headers("operator")).text
    assert "muster_telemetry_unknown_gpus_total 1.0" in figures
    assert f'route="{PATH}"' in figures


def test_an_event_of_a_kind_that_a_later_release_knows_is_set_aside_and_the_rest_counts(api: Api) -> None:
    at = now_ms()
    strange = msgspec.structs.replace(xid("strange", at), kind="gpu_hums")
    told = report(16, at, reading(GPU, power_w=1.0), events=(strange, xid("plain", at)))
    assert post(api, told).status_code == 200
    assert latest(api) == {GPU: ("boot-1", 16)}
    waits = {signal.signal_id: (signal.judged_at is None, signal.is_alarming) for signal in stored(api, StoredSignal)}
    assert waits["strange"] == (False, False)
    assert waits["plain"][0]
    figures = api.client.get("/metrics", headers=api.headers("operator")).text
    assert "muster_telemetry_unknown_kinds_total 1.0" in figures


@pytest.mark.parametrize("kind", ["finding", "closing"])
def test_no_agent_states_what_only_our_own_judgement_of_samples_states(api: Api, kind: str) -> None:
    at = now_ms()
    forged = msgspec.structs.replace(xid("forged", at), kind=kind)
    assert post(api, report(16, at, events=(forged,))).status_code == 200
    (signal,) = stored(api, StoredSignal)
    assert signal.judged_at is not None, "it never comes before the judge"
    assert not signal.is_alarming


def test_only_a_node_reports(api: Api) -> None:
    good = report(16, now_ms())
    assert post(api, good, actor="operator").status_code == 403
    assert post(api, good, actor="tenant_member").status_code == 403
    assert api.client.post(PATH, json=document(good)).status_code == 401
    assert api.client.get(PATH, headers=api.headers("node")).status_code == 405


def test_a_node_that_none_has_enrolled_is_not_received(api: Api) -> None:
    good = report(16, now_ms(), reading(GPU, power_w=1.0), events=(xid("e", now_ms()),))
    for forged in (new_token().text, f"{api.tokens['node'][:-4]}AAAA", "mst_", ""):
        assert post(api, good, Authorization=f"Bearer {forged}").status_code == 401
    assert_nothing_stored(api)


def test_a_revoked_key_stores_nothing_from_the_next_report_on(api: Api) -> None:
    assert post(api, report(16, now_ms(), reading(GPU, power_w=1.0))).status_code == 200
    with api.units.begin(OPERATOR, keys.REVOKE) as unit:
        keys.revoke(unit, api.key_ids["node"])
    assert post(api, report(32, now_ms(), reading(GPU, power_w=2.0))).status_code == 401
    assert latest(api) == {GPU: ("boot-1", 16)}
    assert post(api, b"{").status_code == 401, "and gets nothing else"


def _bent(**changes: Any) -> bytes:
    return json.dumps(document(report(16, 1_795_000_000_000, reading(GPU, power_w=1.0)), **changes)).encode()


def _gpu(value: str) -> bytes:
    return _bent(gpus=["HERE"]).replace(
        b'"HERE"', ('{"uuid":"GPU-alpha-0","values":[' + ",".join([value] * NUM_METRICS) + "]}").encode()
    )


def _port(name: str) -> bytes:
    return _bent(node={"port_throughput": [[name, 1.0, 2.0, None]]})


BAD: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 400),
    "not JSON": (b"{", 400),
    "byte order mark": (b"\xef\xbb\xbf" + _bent(), 400),
    "invalid UTF-8": (_bent().replace(b"boot-1", b"\xff"), 400),
    "lone surrogate": (_bent().replace(b"boot-1", b"\\ud800"), 400),
    "an array": (b"[]", 422),
    "nested 100,000 deep": (b"[" * 100_000, 422),
    "NaN for a number that is no reading": (_bent(at_ms="HERE").replace(b'"HERE"', b"NaN"), 400),
    "an object for a value": (_gpu("{}"), 422),
    "a list for a value": (_gpu("[1]"), 422),
    "NaN, and an unknown field": (_gpu("NaN")[:-1] + b',"is_admin":true}', 422),
    "NaN, and one for a number that is no reading": (_gpu("NaN")[:-1] + b',"node":{"cpu_percent":NaN}}', 400),
    "NaN, and half a character": (_gpu("NaN").replace(b"boot-1", b"\\ud800"), 400),
    "NaN of a GPU without a name": (_gpu("NaN").replace(b'"GPU-alpha-0"', b"1"), 422),
    "NaN in too few values": (
        _bent(gpus=[{"uuid": GPU, "values": [1.0]}, {"uuid": "x", "values": [float("nan")]}]),
        422,
    ),
    "too few values": (_bent(gpus=[{"uuid": GPU, "values": [1.0]}]), 422),
    "unknown field": (_bent(is_admin=True), 422),
    "no boot": (_bent(boot_id=""), 422),
    "seq 2^53": (_bent(seq=1 << 53), 422),
    "seq 2^63": (_bent(seq=1 << 63), 422),
    "seq -1": (_bent(seq=-1), 422),
    "seq as text": (_bent(seq="1"), 422),
    "U+0000": (_bent(boot_id="a\x00b"), 422),
    "our separator": (_bent(boot_id="a\x1fb"), 422),
    "our separator in a port": (_port("eth0\x1feth1"), 422),
    "a port without a name": (_port(""), 422),
    "time after all": (_bent(at_ms=1 << 60), 422),
    "no kind of event": (_bent(events=[{**msgspec.to_builtins(xid("e", 1)), "kind": "a miracle"}]), 422),
    "long kind of event": (_bent(events=[{**msgspec.to_builtins(xid("e", 1)), "kind": "x" * 65}]), 422),
    "long text": (_bent(events=[{**msgspec.to_builtins(xid("e", 1)), "text": "x" * 2000}]), 422),
    "a later protocol": (_bent(protocol=2, news=1), 426),
    "a later schema": (_bent(schema=SCHEMA + 1, gpus=[{"uuid": GPU, "values": [1.0] * 40}]), 426),
    "protocol 10^5000": (_bent(protocol="HERE").replace(b'"HERE"', b"1" + b"0" * 5000), 422),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_report_is_refused_with_a_problem_and_nothing_is_stored(api: Api, name: str) -> None:
    body, status = BAD[name]
    answer = post(api, body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert_nothing_stored(api)


def test_what_is_wrong_with_a_port_is_named_so_that_an_agent_can_leave_ports_out(api: Api) -> None:
    detail = post(api, _port("eth0\x1feth1")).json()["detail"]
    assert "$.node.port_throughput" in detail
    assert post(api, _port("eth0:1 é")).status_code == 200


def test_ten_megabytes_are_too_many(api: Api) -> None:
    answer = post(api, b" " * (10 * MEBIBYTE) + _bent())
    assert (answer.status_code, answer.json()["limit_bytes"]) == (413, 4 * MEBIBYTE)


def test_gzip_is_taken(api: Api) -> None:
    body = gzip.compress(msgspec.json.encode(report(16, now_ms(), reading(GPU, power_w=1.0))))
    assert post(api, body, **{"Content-Encoding": "gzip"}).status_code == 200
    assert latest(api) == {GPU: ("boot-1", 16)}


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (lambda: gzip.compress(b" " * (64 * MEBIBYTE) + b"{}"), "gzip", 413),
        (lambda: gzip.compress(gzip.compress(b" " * (64 * MEBIBYTE))), "gzip", 400),
        (lambda: gzip.compress(_bent())[:-6], "gzip", 400),
        (lambda: gzip.compress(_bent()) + b"more", "gzip", 400),
        (lambda: gzip.compress(_bent()) + gzip.compress(_bent()), "gzip", 400),
        (_bent, "gzip", 400),
        (lambda: gzip.compress(_bent()), "identity", 400),
        (lambda: gzip.compress(_bent()), "br", 415),
        (lambda: gzip.compress(gzip.compress(_bent())), "gzip, gzip", 415),
    ],
    ids=["bomb", "nested", "cut short", "trailing", "two members", "not gzip", "unsaid", "br", "twice"],
)
def test_a_compressed_body_is_as_it_states_or_refused(
    api: Api, body: Callable[[], bytes], encoding: str, status: int
) -> None:
    answer = post(api, body(), **{"Content-Encoding": encoding})
    assert answer.status_code == status, answer.text
    assert_nothing_stored(api)


def test_other_types_are_refused(api: Api) -> None:
    assert post(api, _bent(), **{"Content-Type": "text/plain"}).status_code == 415


def test_a_clock_that_is_years_off_moves_state_and_is_distinguished(api: Api) -> None:
    wrong = now_ms() + 366 * 86_400_000
    assert post(api, report(16, wrong, reading(GPU, power_w=1.0))).status_code == 200
    (block,) = stored(api, TelemetryBlock)
    assert abs(block.at.timestamp() - time.time()) < 60, "history places it where it was received"


def test_signals_are_kept_once_and_only_close(api: Api) -> None:
    at = now_ms()
    for seq, is_open in ((16, True), (32, False), (48, True)):
        post(api, report(seq, at, events=(xid("lost", at, is_open=is_open),)))
    (signal,) = stored(api, StoredSignal)
    assert (signal.is_open, signal.judged_at, signal.code) == (False, None, 94)


def test_every_gap_is_counted_once(api: Api) -> None:
    at = now_ms()
    gaps = tuple(
        GapMarker(
            priority="metrics",
            first_seq=n,
            last_seq=n + 160,
            num_reports=11,
            from_ms=at - 60_000,
            until_ms=at,
            why="disk full",
        )
        for n in (16, 320)
    )
    for _ in range(2):
        assert post(api, report(481, at, is_history=True, gaps=gaps)).status_code == 200
    assert sum(gap.num_reports for gap in stored(api, TelemetryGap)) == 22
    history = api.client.get(f"/v1/gpus/{GPU}/history", headers=api.headers("operator")).json()
    assert [gap["why"] for gap in history["gaps"]] == ["disk full", "disk full"]


def test_latest_and_history_are_read_by_operators(api: Api) -> None:
    at = now_ms()
    post(api, report(16, at, reading(GPU, power_w=300.25, energy_j=None)))
    found = api.client.get(f"/v1/gpus/{GPU}/latest", headers=api.headers("operator")).json()
    assert (found["values"]["power_w"], found["values"]["energy_j"]) == (300.25, None)
    path = f"/v1/gpus/{GPU}/history?metric=power_w&step=3600"
    (series,) = api.client.get(path, headers=api.headers("auditor")).json()["series"]
    assert (series["metric"], series["unit"], series["values"]) == ("power_w", "W", [300.25])


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{GPU}/history?metric=beauty", 422),
        (f"{GPU}/history?from=yesterday", 422),
        (f"{GPU}/history?from=2026-11-21T04:00:00", 422),
        (f"{GPU}/history?from=2026-02-30T04:00:00Z", 422),
        (f"{GPU}/history?from=0001-01-01T00:00:00%2B14:00", 422),
        (f"{GPU}/history?from=2026-11-21T04:00:00Z&until=2026-11-21T03:00:00Z", 422),
        (f"{GPU}/history?from=2020-11-21T04:00:00Z", 422),
        (f"{GPU}/history?from=2026-11-01T04:00:00Z&until=2026-11-21T03:00:00Z&step=1", 422),
        (f"{GPU}/history?step=NaN", 422),
        (f"{GPU}/history?step=0", 422),
        (f"{GPU}/latest", 404),
        ("GPU-none/latest", 404),
        ("GPU-none/history", 404),
        ("%00/history", 404),
        ("%00/latest", 404),
    ],
)
def test_a_question_that_has_no_answer_is_a_problem(api: Api, path: str, status: int) -> None:
    answer = api.client.get(f"/v1/gpus/{path}", headers=api.headers("operator"))
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_hook_receives_of_each_report_once(api: Api) -> None:
    heard: list[AcceptedReport] = []
    dependencies = AppDependencies(units=api.units, secret_key=b"x" * 32, on_flushed=heard.extend)
    post(api, report(16, now_ms(), reading(GPU, power_w=1.0)))
    with TestClient(create_app(dependencies), base_url="http://127.0.0.1") as client:
        for seq, power_w in ((32, 2.0), (48, 3.0), (48, 3.0)):
            content = msgspec.json.encode(report(seq, now_ms(), reading(GPU, power_w=power_w)))
            headers = {"Content-Type": "application/json", **api.headers("node")}
            assert client.post(PATH, content=content, headers=headers).status_code == 200
    assert [one.report.seq for one in heard] == [32, 48]
    assert all(one.is_current and len(one.samples) == 1 for one in heard)


class _Refusing(Intake):
    def submit(self, *_: Any) -> None:
        raise UnavailableError(retry_after_s=2)


@pytest.fixture
def refusing(api: Api) -> Iterator[TestClient]:
    app = create_app(AppDependencies(units=api.units, secret_key=b"x" * 32))
    route: Any = app._app  # type: ignore[attr-defined]
    route._intake = _Refusing(api.units)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def test_without_room_the_agent_is_queried_to_come_again(api: Api, refusing: TestClient) -> None:
    headers = {"Content-Type": "application/json", **api.headers("node")}
    answer = refusing.post(PATH, content=_bent(), headers=headers)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


def test_an_undeclared_or_open_telemetry_path_stops_the_start(api: Api) -> None:
    def take(_nothing: None = public("an oversight")) -> None:
        """Nothing."""

    bare, opened = (FastAPI(openapi_url=None, docs_url=None, redoc_url=None) for _ in range(2))
    opened.add_api_route(PATH, take, methods=["POST"])
    for router in (bare, opened):
        with pytest.raises(UndeclaredRouteError):
            declared_permission(router)
        with pytest.raises(UndeclaredRouteError):
            TelemetryRoute(router, router, api.units, Intake(api.units))
