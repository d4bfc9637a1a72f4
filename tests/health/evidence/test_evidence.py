"""Joining findings to evidence: one fault is one evidence, and what is late is history."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.detectors.detector import Closing
from health.detectors.registry import closings_of, judge_signal
from health.evidence.evidence import close, join
from health.evidence.proofs import Proofs, condemns
from health.evidence.state import is_condemning, is_open
from muster.domain.evidence.findings import EventKind, Evidence, Finding, Severity, Source, Trust
from muster.domain.ids import EvidenceId
from tests.health.case_factory import (
    GPU,
    HOUR,
    MINUTE,
    NODE,
    NOW_MS,
    POLICY,
    SECOND,
    condemning,
    evidence,
    finding,
    signal,
)


def joined(findings: Iterable[Finding], now_ms: int = NOW_MS + HOUR) -> list[Evidence]:
    """The evidence that a series of findings ends in, each taken at its own onset unless that is later."""
    kept: dict[EvidenceId, Evidence] = {}
    for number, each in enumerate(findings):
        result = join(each, kept.values(), POLICY, min(each.onset_ms, now_ms), EvidenceId(f"ev_{number}"))
        kept[result.evidence.id] = result.evidence
    return list(kept.values())


def test_the_same_fault_by_event_and_by_kernel_log_counts_once() -> None:
    by_nvml = judge_signal(signal(code=95), POLICY)
    by_log = judge_signal(signal(code=95, source=Source.KERNEL_LOG, at_ms=NOW_MS + 3), POLICY)
    (one,) = joined(by_nvml + by_log)
    assert one.sources == (Source.NVML, Source.KERNEL_LOG)
    assert (one.onset_ms, one.last_seen_ms) == (NOW_MS, NOW_MS + 3)


def test_a_source_that_is_received_twice_is_listed_once() -> None:
    (one,) = joined([finding(), finding(at_ms=NOW_MS + SECOND)])
    assert one.sources == (Source.NVML,)


@pytest.mark.parametrize(("gap_ms", "count"), [(5 * SECOND, 1), (5 * SECOND + 1, 2)])
def test_a_fault_of_a_moment_joins_within_five_seconds(gap_ms: int, count: int) -> None:
    assert len(joined([finding(), finding(at_ms=NOW_MS + gap_ms)])) == count


def test_a_source_that_reports_of_an_earlier_moment_moves_the_onset_back() -> None:
    (one,) = joined([finding(at_ms=NOW_MS + 3), finding(at_ms=NOW_MS, source=Source.KERNEL_LOG)])
    assert (one.onset_ms, one.last_seen_ms) == (NOW_MS, NOW_MS + 3)


def test_other_faults_other_gpus_and_other_trust_stay_apart() -> None:
    others = [
        finding(),
        finding("xid:92"),
        finding(trust=Trust.REPORTED),
        replace(finding(), gpu_uuid=None),
        finding(severity=Severity.CONDEMNING),
    ]
    assert len(joined(others)) == 5


def test_joining_never_makes_evidence_worse() -> None:
    mild, severe = joined([finding(), finding(at_ms=NOW_MS + 1, severity=Severity.CONDEMNING)])
    assert (mild.severity, severe.severity) == (Severity.WARNING, Severity.CONDEMNING)


def test_a_standing_fault_that_is_stated_for_days_is_one() -> None:
    stated = [finding("row_remap:pending", detector="row_remap", at_ms=NOW_MS + at * 10 * MINUTE) for at in range(300)]
    (one,) = joined(stated, now_ms=NOW_MS + 100 * HOUR)
    assert (one.onset_ms, one.last_seen_ms) == (NOW_MS, NOW_MS + 2990 * MINUTE)


@given(st.permutations(range(5)))
def test_the_order_of_arrival_decides_nothing(order: list[int]) -> None:
    near = [finding(at_ms=NOW_MS + at * 1000, source=source) for at, source in enumerate(list(Source)[:5])]
    assert all(near)
    (one,) = joined([near[at] for at in order])
    assert (one.onset_ms, one.last_seen_ms, set(one.sources)) == (NOW_MS, NOW_MS + 4000, set(list(Source)[:5]))


@pytest.mark.parametrize(("least", "is_new"), [(7.0, False), (0.0, True)])
def test_a_count_that_flaps_is_one_evidence_but_where_each_loss_holds_the_node(least: float, *, is_new: bool) -> None:
    gone = signal(EventKind.GPU_COUNT, gpu=None, before=8.0, now=least)
    back = signal(EventKind.GPU_COUNT, gpu=None, at_ms=NOW_MS + MINUTE, before=least, now=8.0)
    again = signal(EventKind.GPU_COUNT, gpu=None, at_ms=NOW_MS + 2 * MINUTE, before=8.0, now=least)
    (first,) = joined(judge_signal(gone, POLICY))
    assert is_open(first)
    (closing,) = closings_of(back, POLICY)
    closed = close(first, closing)
    assert not is_open(closed)
    assert closed.last_seen_ms == NOW_MS + MINUTE
    (second,) = judge_signal(again, POLICY)
    found = join(second, [closed], POLICY, NOW_MS + 2 * MINUTE, EvidenceId("ev_second"))
    assert (found.is_new, is_open(found.evidence)) == (is_new, True)
    dismissed = replace(closed, is_dismissed=True)
    assert join(second, [dismissed], POLICY, NOW_MS + 2 * MINUTE, EvidenceId("ev_second")).is_new


def test_a_host_that_is_still_short_of_gpus_stays_open() -> None:
    (first,) = joined(judge_signal(signal(EventKind.GPU_COUNT, gpu=None, before=8.0, now=6.0), POLICY))
    one_back = signal(EventKind.GPU_COUNT, gpu=None, at_ms=NOW_MS + MINUTE, before=6.0, now=7.0)
    assert is_open(close(first, closings_of(one_back, POLICY)[0]))


def test_a_closing_touches_nothing_but_its_own_fault() -> None:
    lost = evidence("lost", fault="gpu_lost", detector="gpu_lost")
    for other in (
        Closing("gpu_count", NODE, GPU, NOW_MS),
        Closing("gpu_lost", NODE, None, NOW_MS),
        Closing("gpu_lost", NODE, GPU, NOW_MS - 1),
    ):
        assert close(lost, other) == lost


def test_history_that_comes_late_weighs_nothing() -> None:
    late = join(finding(at_ms=NOW_MS), (), POLICY, NOW_MS + 10 * MINUTE + 1, EvidenceId("ev_late"))
    assert late.evidence.counts_for_ms == 0
    in_time = join(finding(at_ms=NOW_MS), (), POLICY, NOW_MS + 10 * MINUTE, EvidenceId("ev_in_time"))
    assert in_time.evidence.counts_for_ms > 0


def test_a_state_first_reported_too_late_weighs_once_it_is_reported_again_in_time() -> None:
    told = finding("sram_threshold", detector="sram_threshold", severity=Severity.DEGRADED)
    late = join(told, (), POLICY, NOW_MS + HOUR, EvidenceId("ev_late")).evidence
    restated = replace(told, onset_ms=NOW_MS + HOUR)
    fresh = join(restated, [late], POLICY, NOW_MS + HOUR, EvidenceId("ev_fresh"))
    assert not fresh.is_new
    assert fresh.evidence.counts_for_ms == told.counts_for_ms
    as_late = join(replace(told, onset_ms=NOW_MS + 1), [late], POLICY, NOW_MS + HOUR, EvidenceId("ev_more"))
    assert as_late.evidence.counts_for_ms == 0


def test_a_condemning_finding_acts_at_any_age() -> None:
    late = join(finding(severity=Severity.CONDEMNING), (), POLICY, NOW_MS + 300 * HOUR, EvidenceId("ev_late")).evidence
    assert late.counts_for_ms > 0
    assert is_condemning(late)


def test_an_onset_in_the_future_is_now() -> None:
    ahead = join(finding(at_ms=NOW_MS + HOUR), (), POLICY, NOW_MS, EvidenceId("ev_ahead")).evidence
    assert (ahead.onset_ms, ahead.last_seen_ms) == (NOW_MS, NOW_MS)


def test_condemning_is_measured_live_about_a_gpu_and_since_the_last_proof() -> None:
    found = condemning("fault")
    assert is_condemning(found)
    assert condemns(found, Proofs.of_all(NOW_MS))
    assert not condemns(found, Proofs.of_all(NOW_MS + 1))
    assert not is_condemning(replace(found, trust=Trust.REPORTED))
    assert not is_condemning(replace(found, is_dismissed=True))
    assert not is_condemning(replace(found, is_suspended=True))
    assert not is_condemning(replace(found, gpu_uuid=None))
    assert not is_condemning(replace(found, severity=Severity.DEGRADED))
