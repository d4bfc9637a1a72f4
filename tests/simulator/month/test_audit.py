"""The ledger of a simulated month agrees with what each GPU did, and the audit finds where it does not."""

from collections import Counter
from typing import Any

import pytest

from ledger.accounts import Account
from muster.domain.states import Cause
from simulator.month.audit import Audit, audit_month
from simulator.month.events import events_of
from simulator.month.facts import Rows
from simulator.month.history import HOUR_MS, History, Shape, play_month
from simulator.month.reports import Reports, silences_of
from simulator.month.truth import Truth

SHAPE = Shape(8, 3, failures_a_day=2.0, repair_s=21_600.0)


@pytest.fixture(scope="module")
def history() -> History:
    return play_month(SHAPE, 7)


@pytest.fixture(scope="module")
def found(history: History) -> Audit:
    return audit_month(history, 7)


def test_the_books_agree_with_the_truth_but_inside_gap_markers(found: Audit) -> None:
    assert found.faults == []
    assert (found.num_different, found.num_counted_twice, found.unexplained_ms) == (0, 0, 0)
    assert found.recount_different_ms == 0
    assert found.num_cells == SHAPE.num_gpus * SHAPE.num_hours
    assert found.capacity_ms == found.num_cells * HOUR_MS


def test_goodput_of_whole_jobs_is_the_work_of_the_trace(found: Audit) -> None:
    counted_ms, true_ms = found.goodput_ms
    assert counted_ms == true_ms > 0
    assert found.num_whole_jobs > 20


def test_the_days_have_faults_reclaims_gaps_and_late_reports(history: History, found: Audit) -> None:
    ends = Counter(one.cause for one in history.attempts)
    assert min(ends[Cause.GPU_FAULT], ends[Cause.RECLAIMED], len(history.outages)) > 0
    assert 0 < found.num_marked < found.num_cells // 10
    assert found.marked_different_ms > 0, "what is lost in a gap shows there"
    assert found.num_corrected_hours > 0
    assert set(found.by_account) >= {
        Account.PRODUCTIVE, Account.REPLAYED, Account.RECLAIM_LOST, Account.STARTING, Account.SAVING, Account.IDLE,
        Account.QUARANTINED, Account.REPAIR, Account.BURN_IN, Account.PENDING, Account.FREE,
    }  # fmt: skip


def test_the_truth_fills_each_hour_of_each_gpu(history: History) -> None:
    truth = Truth(Reports(history, silences_of(history, 7)))
    for hour in range(SHAPE.num_hours):
        whole: Counter[int] = Counter()
        for (gpu, _, _), num_ms in truth.cells(hour * HOUR_MS, (hour + 1) * HOUR_MS).items():
            whole[gpu] += num_ms
        assert set(whole.values()) == {HOUR_MS}
        assert len(whole) == SHAPE.num_gpus


def test_a_report_that_is_lost_without_a_marker_is_found(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Reports.known

    def forgets(self: Reports, attempt_id: str, at_ms: int) -> Any:
        return [step for step in known(self, attempt_id, at_ms) if step.number != 5]

    monkeypatch.setattr(Reports, "known", forgets)
    assert audit_month(history, 7).num_different > 0


def test_an_event_that_is_lost_is_found(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(*given: Any) -> Any:
        return [event for event in events_of(*given) if event.kind != "gpu.repair"]

    monkeypatch.setattr("simulator.month.audit.events_of", forgets)
    assert audit_month(history, 7).recount_different_ms > 0


def test_a_gpu_that_counts_in_two_places_is_found(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.month.audit.corrections", lambda _, last: list(last))
    assert audit_month(history, 7).num_counted_twice > 0


def test_facts_are_those_of_the_time_at_which_they_are_read(history: History) -> None:
    rows = Rows(Reports(history, silences_of(history, 7)))
    one = next(one for one in history.attempts if one.end_ms is not None and one.end_ms - one.start_ms > 2 * HOUR_MS)
    assert one.end_ms is not None
    window = one.start_ms, one.start_ms + HOUR_MS
    early = rows.facts(*window, one.start_ms + HOUR_MS).attempts[one.attempt_id]
    late = rows.facts(*window, one.end_ms).attempts[one.attempt_id]
    assert (early.ended_ms, early.end_cause) == (None, None)
    assert (late.ended_ms, late.end_cause) == (one.end_ms, one.cause)
    assert len(early.steps) <= len(late.steps)
