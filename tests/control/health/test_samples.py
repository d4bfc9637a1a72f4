"""Samples become evidence: once, whichever process takes them or dies, in whatever order they come."""

from datetime import timedelta
from itertools import pairwise
from typing import Any, Literal

import pytest

from control.telemetry.reports import AcceptedReport, Duplicate
from muster.db.models import Event, EvidenceRow, NodeLatest, StoredSignal
from muster.domain.states import Standing
from muster.failpoints import arming
from muster.wire.telemetry import EventReport, GpuReport
from tests.control.health.conftest import GPU, OTHER, Court, sample
from tests.telemetry_reports import reading, report

ECC = ("ecc_uncorrected", GPU)
LOST = ("gpu_lost", GPU)
PENDING = ("row_remap:pending", GPU)


def memory(court: Court) -> dict[str, Any] | None:
    (row,) = [row for row in court.rows(NodeLatest) if row.node_id == court.node_id]
    return row.judge_memory  # type: ignore[no-any-return]


def closed(court: Court, fault: str) -> list[bool]:
    return [row.closed_at is not None for row in court.rows(EvidenceRow) if row.fault_key == fault]


def test_healthy_samples_leave_nothing_to_judge(court: Court) -> None:
    for _ in range(5):
        court.receive(sample(), sample(OTHER))
    assert court.rows(StoredSignal) == []
    assert memory(court) is None


def test_an_uncorrected_error_quarantines_its_gpu_alone(court: Court) -> None:
    court.receive(sample(), sample(OTHER))
    court.receive(sample(ecc_uncorrected_volatile=2.0, ecc_uncorrected_aggregate=2.0), sample(OTHER))
    court.judge()
    assert court.evidence() == [ECC]
    (row,) = court.rows(EvidenceRow)
    assert (row.threatens_correctness, row.sources, row.values) == (True, ["nvml"], {"errors": 2.0})
    assert (court.standing(), court.standing(OTHER)) == (Standing.QUARANTINED, Standing.HEALTHY)


def test_old_errors_of_a_gpu_that_is_received_for_the_first_time_warn_once_and_move_nothing(court: Court) -> None:
    for intake in (court.open_intake(), court.open_intake()):
        court.receive(sample(ecc_uncorrected_aggregate=5.0), intake=intake)
        court.judge()
    assert court.evidence() == [("ecc_history", GPU)]
    assert court.standing() is Standing.HEALTHY


def test_errors_since_the_driver_was_loaded_condemn_a_gpu_that_is_received_for_the_first_time(court: Court) -> None:
    court.receive(sample(ecc_uncorrected_volatile=2.0, ecc_uncorrected_aggregate=5.0))
    court.judge()
    assert court.evidence() == [ECC]
    assert court.standing() is Standing.QUARANTINED


def test_errors_across_a_restart_of_the_process_are_seen_once(court: Court) -> None:
    court.receive(sample(), intake=court.open_intake())
    fresh = court.open_intake()
    court.receive(sample(ecc_uncorrected_aggregate=1.0), intake=fresh)
    court.receive(sample(ecc_uncorrected_aggregate=1.0), intake=court.open_intake())
    court.receive(sample(ecc_uncorrected_aggregate=1.0), intake=fresh)
    court.judge()
    assert len(court.rows(StoredSignal)) == 1
    assert court.evidence() == [ECC]


def test_a_poll_that_failed_around_a_restart_hides_no_error(court: Court) -> None:
    """What is known of the counters outlives both the sample without them and the process."""
    court.receive(sample())
    court.receive(sample(ecc_uncorrected_volatile=None, ecc_uncorrected_aggregate=None))
    court.receive(sample(is_lost=True), intake=court.open_intake())
    court.receive(sample(ecc_uncorrected_aggregate=1.0), intake=court.open_intake())
    court.judge()
    assert court.evidence() == [ECC, LOST]
    assert memory(court) is None, "all is known again"


def test_processes_that_take_turns_count_no_rise_twice(court: Court) -> None:
    intakes = [court.open_intake(), court.open_intake()]
    for number, errors in enumerate([0.0, 0.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0]):
        court.receive(sample(ecc_uncorrected_aggregate=errors), intake=intakes[number % 2])
    rises = [row.values["values"]["errors"] for row in court.rows(StoredSignal)]
    assert rises == [1.0, 2.0]


def test_a_rate_is_counted_over_all_processes(court: Court) -> None:
    intakes = [court.open_intake(), court.open_intake()]
    for number in range(10):
        court.receive(sample(clock_event_reasons=0x40), intake=intakes[number % 2])
    court.judge()
    assert court.evidence() == [("clock_events:hw_thermal", GPU)]
    assert (court.standing(), court.standing(OTHER)) == (Standing.SUSPECT, Standing.HEALTHY)
    (row,) = court.rows(StoredSignal)
    assert row.values["values"] == {"samples": 6.0, "window": 10.0}


@pytest.mark.parametrize("place", ["before_commit", "after_commit"])
def test_a_process_that_dies_around_the_commit_loses_and_doubles_nothing(court: Court, place: str) -> None:
    court.receive(sample())
    court.clock.advance(10)
    errors = report(7, court.now_ms, sample(ecc_uncorrected_aggregate=1.0))
    dying = court.open_intake()
    with arming(f"telemetry.flush.{place}=raise@1"):
        (outcome,) = court.take(errors, intake=dying)
    assert not isinstance(outcome, AcceptedReport), "the agent keeps it"
    (again,) = court.take(errors, intake=court.open_intake())
    assert isinstance(again, AcceptedReport if place == "before_commit" else Duplicate)
    (still,) = court.take(report(8, court.now_ms + 1, sample(ecc_uncorrected_aggregate=1.0)), intake=dying)
    assert isinstance(still, AcceptedReport)
    assert len(court.rows(StoredSignal)) == 1


def test_counters_that_go_down_are_a_reset_and_no_finding(court: Court) -> None:
    court.receive(sample(ecc_uncorrected_volatile=4.0, ecc_uncorrected_aggregate=4.0))
    court.judge()
    (first,) = court.rows(EvidenceRow)
    court.clock.advance(3600)
    court.receive(sample(ecc_uncorrected_volatile=0.0, ecc_uncorrected_aggregate=4.0), boot_id="boot-2")
    court.receive(sample(ecc_uncorrected_volatile=0.0, ecc_uncorrected_aggregate=0.0), boot_id="boot-2")
    court.judge()
    (same,) = court.rows(EvidenceRow)
    assert (same.fault_key, same.last_seen_at) == (first.fault_key, first.last_seen_at), "what was there at first sight"
    court.receive(sample(ecc_uncorrected_volatile=1.0, ecc_uncorrected_aggregate=1.0), boot_id="boot-2")
    court.judge()
    assert court.evidence() == [ECC, ECC], "the first one after it counts"


def test_eight_seven_eight_is_one_loss_that_closes(court: Court) -> None:
    def count(name: str, before: float, now: float) -> EventReport:
        values = {"before": before, "now": now}
        return EventReport(event_id=name, kind="gpu_count", source="agent", at_ms=court.now_ms + 10_000, values=values)

    court.receive(sample(), sample(OTHER))
    court.receive(sample(is_lost=True), sample(OTHER), events=(count("a", 8.0, 7.0),))
    court.receive(sample(is_lost=True), sample(OTHER))
    court.judge()
    assert court.standing() is Standing.QUARANTINED
    court.receive(sample(), sample(OTHER), events=(count("b", 7.0, 8.0),))
    court.judge()
    assert court.evidence() == [("gpu_count", None), LOST]
    assert closed(court, "gpu_count") == closed(court, "gpu_lost") == [True]
    assert court.standing(OTHER) is Standing.HEALTHY
    assert court.standing() is Standing.QUARANTINED, "coming back proves nothing"


def test_a_gpu_that_a_report_leaves_out_is_judged_against_its_own_last_sample(court: Court) -> None:
    court.receive(sample(), sample(OTHER))
    court.receive(sample(OTHER))
    court.receive(sample(ecc_uncorrected_aggregate=1.0), sample(OTHER))
    court.judge()
    assert court.evidence() == [ECC]


@pytest.mark.parametrize("first", ["event", "sample"])
def test_a_loss_reported_by_event_and_by_sample_is_one_evidence(court: Court, first: str) -> None:
    court.receive(sample())
    lost = EventReport(event_id="e", kind="gpu_lost", source="agent", at_ms=court.now_ms + 9_000, gpu_uuid=GPU)
    court.receive(sample(is_lost=first == "sample"), events=(lost,) if first == "event" else ())
    court.judge()
    court.receive(sample(is_lost=True), events=(lost,))
    court.judge()
    assert court.evidence() == [LOST]
    assert sorted(court.rows(EvidenceRow)[0].sources) == ["agent", "nvml"]


@pytest.mark.parametrize("code", [48, 95])
@pytest.mark.parametrize("first", ["event", "sample"])
def test_an_error_reported_by_event_and_by_counter_is_one_evidence(court: Court, first: str, code: int) -> None:
    """The driver reports it at once, its counter at the next sample; the event may come late."""
    court.receive(sample())
    told = EventReport(
        event_id="e", kind="xid", source="kernel_log", code=code, at_ms=court.now_ms + 2_000, gpu_uuid=GPU
    )
    court.receive(events=(told,) if first == "event" else ())
    court.judge()
    asks_for_a_reset = sample(ecc_uncorrected_aggregate=1.0, recovery_action=1.0)
    court.receive(asks_for_a_reset)
    court.judge()
    court.receive(asks_for_a_reset, events=(told,))
    court.judge()
    (row,) = court.rows(EvidenceRow)
    assert sorted(row.sources) == ["kernel_log", "nvml"]
    assert row.threatens_correctness


def test_what_dcgm_fills_and_reports_is_one_evidence_with_the_kernel_logs(court: Court) -> None:
    """The exporter reports the counter a while later, and its XID later still."""

    def reported(errors: float) -> GpuReport:
        values = sample(ecc_uncorrected_volatile=errors, ecc_uncorrected_aggregate=None).values
        return GpuReport(uuid=GPU, values=values, from_dcgm=("ecc_uncorrected_volatile",))

    def xid(source: Literal["kernel_log", "dcgm"]) -> EventReport:
        return EventReport(event_id=source, kind="xid", source=source, at_ms=court.now_ms, gpu_uuid=GPU, code=48)

    court.receive(reported(0.0))
    court.receive(reported(0.0), events=(xid("kernel_log"),))
    court.receive(reported(1.0))
    court.receive(reported(1.0), events=(xid("dcgm"),))
    court.judge()
    (row,) = court.rows(EvidenceRow)
    assert row.sources == ["kernel_log", "dcgm"]
    assert court.standing() is Standing.QUARANTINED


def test_a_fault_that_stands_is_one_evidence_and_closes_when_it_is_over(court: Court) -> None:
    for _ in range(130):
        court.receive(sample(remap_pending=1.0))
    court.judge()
    assert court.evidence() == [PENDING]
    assert len(court.rows(StoredSignal)) == 3, "reported when it begins and each ten minutes"
    court.receive(sample(remap_pending=None))
    court.judge()
    assert closed(court, "row_remap:pending") == [False], "a poll that failed shows no end"
    court.receive(sample(remap_pending=0.0))
    court.judge()
    assert closed(court, "row_remap:pending") == [True]
    assert memory(court) is None
    court.receive(sample(remap_pending=1.0))
    court.judge()
    assert court.evidence() == [PENDING], "soon again, it continues"
    assert closed(court, "row_remap:pending") == [False]


def test_late_and_reordered_reports_state_nothing_new(court: Court) -> None:
    court.receive(sample())
    court.clock.advance(60)
    early = [report(10 + at, court.now_ms - 50_000 + at * 10_000, sample()) for at in range(3)]
    newest = report(20, court.now_ms, sample(ecc_uncorrected_aggregate=1.0))
    court.take(newest)
    court.take(*early)
    past = report(30, court.now_ms - 30_000, sample(ecc_uncorrected_aggregate=1.0), is_history=True)
    outcomes = court.take(past, newest, newest)
    assert [type(outcome) for outcome in outcomes] == [AcceptedReport, Duplicate, Duplicate]
    court.take(report(40, court.now_ms + 1, sample(ecc_uncorrected_aggregate=1.0)))
    court.judge()
    assert court.evidence() == [ECC]
    assert len(court.rows(StoredSignal)) == 1


def test_reports_that_meet_in_one_group_count_in_their_order(court: Court) -> None:
    court.receive(sample())
    counts = [0.0, 1.0, 1.0, 2.0, 5.0]
    reports = [
        report(100 + at, court.now_ms + at, sample(ecc_uncorrected_aggregate=count)) for at, count in enumerate(counts)
    ]
    court.take(*reversed(reports))
    rises = sum(row.values["values"]["errors"] for row in court.rows(StoredSignal))
    taken = [later - earlier for earlier, later in pairwise([0.0, *counts])]
    assert rises == sum(taken)


def test_a_host_whose_clock_cannot_be_expected_is_judged_by_ours(court: Court) -> None:
    court.receive(sample())
    court.take(report(50, court.now_ms + 3_600_000, sample(ecc_uncorrected_aggregate=1.0)))
    court.judge()
    assert court.evidence() == [ECC]
    assert court.rows(EvidenceRow)[0].onset_at == court.clock.now


def test_a_clock_that_was_set_back_hides_nothing(court: Court) -> None:
    court.receive(sample())
    court.take(report(50, court.now_ms - 120_000, sample(ecc_uncorrected_aggregate=1.0)))
    court.judge()
    assert court.evidence() == [ECC]


def test_what_cannot_be_judged_is_stored_all_the_same(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    court.receive(sample())
    monkeypatch.setattr("control.telemetry.judging.judged", fail)
    court.clock.advance(10)
    (outcome,) = court.take(report(50, court.now_ms, sample(ecc_uncorrected_aggregate=1.0)))
    assert isinstance(outcome, AcceptedReport)
    assert court.intakes[0].judge.num_failed == 1
    monkeypatch.undo()
    court.take(report(51, court.now_ms + 1, reading(GPU, ecc_uncorrected_aggregate=2.0)))
    court.judge()
    assert court.evidence() == [ECC], "the next one is judged"


def test_a_memory_that_cannot_be_read_is_given_up(court: Court) -> None:
    court.receive(sample(remap_pending=1.0))
    with court.units.engine.begin() as connection:
        connection.exec_driver_sql("""UPDATE node_latest SET judge_memory = '{"GPU-many-0": {"watched": "no"}}'""")
    court.receive(sample(remap_pending=1.0), intake=court.open_intake())
    court.judge()
    assert court.evidence() == [PENDING]


def test_a_gpu_is_too_hot_by_the_maximum_that_its_agent_reported_last(court: Court) -> None:
    for ago_s, own_c in ((7200, 90.0), (60, 87.0)):
        at = court.clock.now - timedelta(seconds=ago_s)
        court.signal(f"state-{ago_s}", kind="gpu_state", code=None, at=at, values={"temperature_max_c": own_c})
    court.receive(sample(temperature_c=87.0), sample(OTHER, temperature_c=94.0))
    court.judge()
    assert court.evidence() == []
    court.receive(sample(temperature_c=88.0), sample(OTHER, temperature_c=94.0))
    court.judge()
    assert court.evidence() == [("temperature:gpu", GPU)]
    (row,) = court.rows(EvidenceRow)
    assert row.values == {"celsius": 88.0, "limit": 87.0}


def test_what_an_agent_reported_hours_ago_and_never_again_is_no_maximum(court: Court) -> None:
    at = court.clock.now - timedelta(hours=4)
    court.signal("state", kind="gpu_state", code=None, at=at, values={"temperature_max_c": 87.0})
    court.receive(sample(temperature_c=94.0))
    court.judge()
    assert court.evidence() == []


def test_counters_that_an_agent_saw_go_down_are_one_event_of_the_gpu_and_no_evidence(court: Court) -> None:
    values = {"num_counters": 3.0, "num_links": 1.0}
    court.signal("reset", kind="counter_reset", code=None, text="crc_errors, replays", values=values)
    court.judge()
    court.judge()
    (event,) = [event for event in court.rows(Event) if event.kind == "gpu.counters_reset"]
    assert (event.subject_id, event.payload["counters"]) == (GPU, "crc_errors, replays")
    assert event.payload.items() >= values.items()
    assert court.evidence() == []
    assert court.standing() == Standing.HEALTHY
