"""What hosts say that no hardware does, through the route and the judge: set aside, and no GPU pays for it."""

import time

import pytest
from sqlalchemy import select

from control.health.judge import judge_once
from muster.db.models import EvidenceRow, Gpu
from muster.domain.states import Standing
from muster.wire.telemetry import EventReport, Report
from tests.api.conftest import Api
from tests.api.judged_fleet import GPU, JUDGE, show
from tests.api.judged_fleet import api as api  # noqa: PLC0414  # the fixture
from tests.api.test_telemetry import post
from tests.telemetry_reports import reading, report


def take(api: Api, body: Report) -> None:
    answer = post(api, body)
    assert answer.status_code == 200, answer.text
    judge_once(api.units, JUDGE)


def evidence(api: Api) -> list[EvidenceRow]:
    with api.units.read() as session:
        return list(session.scalars(select(EvidenceRow)))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("odd_c", [-40.0, 999.0, 1e15])
@pytest.mark.parametrize("metric", ["temperature_c", "memory_temperature_c"])
def test_a_temperature_that_no_gpu_has_is_nothing_against_it(api: Api, metric: str, odd_c: float) -> None:
    at_ms = now_ms() - 60_000
    for number, told_c in enumerate((41.0, odd_c, odd_c, 41.0)):
        take(api, report(16 * (number + 1), at_ms + number * 10_000, reading(GPU, **{metric: told_c})))
    assert evidence(api) == []
    assert (show(api)["standing"], show(api)["score"]) == ("HEALTHY", 100)


def test_an_xid_that_is_unknown_is_watched_and_requests_nothing(api: Api) -> None:
    at_ms = now_ms()
    told = EventReport(event_id="odd", kind="xid", source="kernel_log", at_ms=at_ms, gpu_uuid=GPU, code=9999)
    take(api, report(16, at_ms, events=(told,)))
    (found,) = evidence(api)
    assert (found.fault_key, found.detector) == ("xid:9999", "xid")
    assert show(api)["standing"] == "HEALTHY"


def test_a_count_that_flaps_is_one_alert(api: Api) -> None:
    at_ms = now_ms() - 120_000
    for number in range(8):
        before, now = (2.0, 1.0) if number % 2 == 0 else (1.0, 2.0)
        told_ms = at_ms + number * 10_000
        told = EventReport(
            event_id=f"count-{number}",
            kind="gpu_count",
            source="agent",
            at_ms=told_ms,
            values={"before": before, "now": now},
        )
        take(api, report(16 * (number + 1), told_ms, events=(told,)))
    (found,) = evidence(api)
    assert (found.detector, found.gpu_uuid) == ("gpu_count", None)
    with api.units.read() as session:
        assert set(session.scalars(select(Gpu.standing))) == {Standing.HEALTHY}


def test_a_report_of_a_boot_that_ended_moves_nothing(api: Api) -> None:
    at_ms = now_ms() - 60_000
    take(api, report(16, at_ms, reading(GPU, ecc_uncorrected_volatile=0.0), boot_id="boot-1"))
    take(api, report(16, at_ms + 10_000, reading(GPU, ecc_uncorrected_volatile=0.0), boot_id="boot-2"))
    take(api, report(32, at_ms + 20_000, reading(GPU, ecc_uncorrected_volatile=5.0), boot_id="boot-1"))
    assert evidence(api) == []
    assert show(api)["standing"] == "HEALTHY"
