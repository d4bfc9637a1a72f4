"""Readings that are no numbers: that GPU's sample is set aside, by name, and the rest of the report counts."""

import json
import math

import pytest
from sqlalchemy import select

from control.incidents import incidents
from control.telemetry.reports import IncomingReport, SetAside
from control.telemetry.unreadable import REPORT_EVERY_S, UnreadableReadings
from muster.db.models import Incident, Node, StoredSignal
from muster.domain.gpu.metrics import INDEX
from muster.domain.ids import NodeId
from muster.domain.principals import system_principal
from tests.api.conftest import Api
from tests.api.test_telemetry import GPU, latest, now_ms, post, stored
from tests.fleet_factory import OPERATOR
from tests.telemetry_reports import document, reading, report, xid

OTHER = "GPU-alpha-1"


def broken(seq: int, value: object, **changes: object) -> bytes:
    """A report of two GPUs and an XID, in whose first GPU one value is ``value``; a text that is a literal is one."""
    at = now_ms()
    body = document(
        report(seq, at, reading(GPU, power_w=1.0), reading(OTHER, power_w=2.0), events=(xid(f"e{seq}", at),)), **changes
    )
    body["gpus"][0]["values"][INDEX["temperature_c"]] = value
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, "hot", "51", True, 1e16, -1e16, 10**30],
    ids=["NaN", "infinity", "-infinity", "text", "a number as text", "true", "too large", "too small", "10^30"],
)
def test_the_sample_is_set_aside_by_name_and_events_and_other_gpus_count(api: Api, value: object) -> None:
    answer = post(api, broken(16, value))
    assert (answer.status_code, answer.json()["set_aside"]) == (200, [GPU])
    assert latest(api) == {OTHER: ("boot-1", 16)}
    assert [signal.signal_id for signal in stored(api, StoredSignal)] == ["e16"]


def test_a_number_past_all_numbers_is_none(api: Api) -> None:
    body = broken(16, "HERE").replace(b'"HERE"', b"1e999")
    assert post(api, body).json()["set_aside"] == [GPU]
    assert latest(api) == {OTHER: ("boot-1", 16)}


def test_what_the_gpu_reported_before_stays_as_it_was(api: Api) -> None:
    post(api, report(16, now_ms(), reading(GPU, power_w=1.0), reading(OTHER, power_w=1.0)))
    assert post(api, broken(32, math.nan)).status_code == 200
    assert latest(api) == {GPU: ("boot-1", 16), OTHER: ("boot-1", 32)}


def test_of_an_event_only_that_value_is_left_out(api: Api) -> None:
    at = now_ms()
    body = document(report(16, at, reading(GPU, power_w=1.0), events=(xid("e", at),)))
    body["events"][0]["values"] = {"since_boot_s": math.nan, "gpc": 3.0, "tpc": "one"}
    answer = post(api, json.dumps(body).encode())
    assert answer.status_code == 200
    assert latest(api) == {GPU: ("boot-1", 16)}, "its sample is readable"
    (signal,) = stored(api, StoredSignal)
    assert signal.values == {"gpc": 3.0}


def test_it_is_counted_and_a_repetition_has_no_effect(api: Api) -> None:
    body = broken(16, "hot")
    assert post(api, body).json()["is_duplicate"] is False
    assert post(api, body).json()["is_duplicate"] is True
    figures = api.client.get("/metrics", headers=api.headers("operator")).text
    assert "muster_telemetry_samples_set_aside_total 1.0" in figures
    assert "muster_telemetry_values_set_aside_total 0.0" in figures


def test_a_readable_report_states_nothing_of_it(api: Api) -> None:
    assert "set_aside" not in post(api, report(16, now_ms(), reading(GPU, power_w=1.0))).json()
    assert stored(api, Incident) == []


def test_one_incident_names_the_node_and_its_gpu_however_long_it_goes_on(api: Api) -> None:
    for seq in (16, 32, 48):
        assert post(api, broken(seq, math.nan)).status_code == 200
    (told,) = stored(api, Incident)
    assert told.kind == "unreadable_readings"
    assert (told.subject_type, told.payload["gpu_uuids"], told.payload["num_samples"]) == ("node", [GPU], 1)
    assert told.summary == f"alpha sends readings that are no numbers, which are set aside: {GPU}"


def test_it_is_reported_again_once_a_person_has_closed_it_and_time_has_passed(api: Api) -> None:
    with api.units.read() as session:
        node_id = NodeId(session.scalars(select(Node.id).where(Node.name == "alpha")).one())
    passed_s = 0.0
    teller = UnreadableReadings(api.units, system_principal("telemetry"), clock=lambda: passed_s)
    one = IncomingReport(node_id, None, report(16, now_ms()), now_ms(), SetAside((GPU,), 0))
    teller.report([one])
    with api.units.begin(OPERATOR, incidents.CLOSE) as unit:
        incidents.close(unit, stored(api, Incident)[0].id, reason="mended")
    teller.report([one])
    assert [each.closed_at is None for each in stored(api, Incident)] == [False]
    passed_s = REPORT_EVERY_S
    teller.report([one])
    assert sorted(each.closed_at is None for each in stored(api, Incident)) == [False, True]
    assert teller.num_samples == 3
