"""Precedence about a fault: NVML, then XID 154, then the catalogue; a milder request only where it is safe."""

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.detectors.past import Past, judged, watched_in
from health.detectors.registry import judge_signal
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from health.evidence.state import counts, is_condemning
from health.evidence.suppression import OVERRULED, why_weightless
from health.standing.standing import decide
from health.xid.catalogue import CATALOGUE
from health.xid.recovery import Action
from muster.domain.evidence.findings import EventKind, Evidence, Finding, Severity, Source
from muster.domain.ids import EvidenceId
from muster.domain.states import Standing
from tests.health.case_factory import NODE, NOW_MS, POLICY, SECOND, case, sample, signal

TEXTS = {
    Action.NONE: "0x0 (None)",
    Action.RESET_GPU: "0x1 (GPU Reset Required)",
    Action.REBOOT_NODE: "0x2 (Node Reboot Required)",
    Action.DRAIN_P2P: "0x3 (Drain P2P)",
    Action.DRAIN_AND_RESET: "0x4 (Drain and Reset)",
    Action.MONITOR: "0x9 (Something New)",
}
NUMBERS = {
    Action.RESET_GPU: 1.0,
    Action.REBOOT_NODE: 2.0,
    Action.DRAIN_P2P: 3.0,
    Action.DRAIN_AND_RESET: 4.0,
    Action.MONITOR: 9.0,
}
DRAINS = (Action.DRAIN_P2P, Action.DRAIN_AND_RESET)


def by_xid(code: int, *, after_ms: int = 0, source: Source = Source.KERNEL_LOG) -> Finding:
    (found,) = judge_signal(signal(EventKind.XID, code=code, at_ms=NOW_MS + after_ms, source=source), POLICY)
    return found


def by_154(action: Action, *, after_ms: int = 1) -> Finding:
    text = f"GPU recovery action changed from 0x0 (None) to {TEXTS[action]}"
    told = signal(EventKind.XID, code=154, at_ms=NOW_MS + after_ms, text=text, source=Source.KERNEL_LOG)
    (found,) = judge_signal(told, POLICY)
    return found


def by_nvml(action: Action, *, after_ms: int = 2 * SECOND) -> Finding:
    reading = sample(NOW_MS + after_ms, recovery_action=NUMBERS[action])
    _, (found,) = judged(Past(watched_in(sample(NOW_MS - SECOND).values)), NODE, reading, POLICY, NOW_MS + 10**6)
    assert isinstance(found, Finding)
    return found


def merged(*findings: Finding) -> list[Evidence]:
    known, numbers = EvidenceIndex(), count()
    for finding in findings:
        list(merge(finding, Place(known), POLICY, NOW_MS + 10**5, lambda: EvidenceId(f"ev_{next(numbers):03}")))
    return list(known.values())


def standing_after(*findings: Finding) -> Standing:
    move = decide(case(Standing.HEALTHY, *merged(*findings)), NOW_MS + 10**5, POLICY)
    return Standing.HEALTHY if move is None else move.to_standing


def overruled(found: list[Evidence]) -> list[str]:
    return [each.fault_key for each in found if not OVERRULED.isdisjoint(each.suppressed_by)]


@pytest.mark.parametrize("word", [by_154(Action.DRAIN_AND_RESET), by_nvml(Action.DRAIN_AND_RESET)])
def test_a_drain_that_the_driver_requests_is_no_quarantine_whichever_arrives_first(word: Finding) -> None:
    assert standing_after(by_xid(119)) is Standing.QUARANTINED
    for order in ((by_xid(119), word), (word, by_xid(119))):
        assert standing_after(*order) is Standing.SUSPECT
        (told,) = (each for each in merged(*order) if each.fault_key == "xid:119")
        assert told.severity is Severity.CONDEMNING
        assert "the driver's request has precedence" in (why_weightless(told) or "")


def test_it_is_reported_whose_word_it_was() -> None:
    (of_log, _) = merged(by_xid(119), by_154(Action.DRAIN_P2P))
    (of_nvml, _) = merged(by_xid(119), by_nvml(Action.DRAIN_P2P))
    assert "XID 154 asks" in (why_weightless(of_log) or "")
    assert "NVML asks" in (why_weightless(of_nvml) or "")


@pytest.mark.parametrize("after_ms", [-1, 6 * SECOND])
def test_what_was_stated_before_or_much_later_is_no_word_about_it(after_ms: int) -> None:
    assert overruled(merged(by_xid(119), by_154(Action.DRAIN_AND_RESET, after_ms=after_ms))) == []
    assert overruled(merged(by_154(Action.DRAIN_AND_RESET, after_ms=after_ms), by_xid(119))) == []


def test_the_same_xid_after_the_word_is_a_new_fault_and_another_sources_word_the_same() -> None:
    told = (by_xid(119), by_154(Action.DRAIN_AND_RESET))
    assert standing_after(*told, by_xid(119, after_ms=50, source=Source.NVML)) is Standing.SUSPECT
    assert standing_after(*told, by_xid(119, after_ms=2 * SECOND)) is Standing.QUARANTINED


def test_a_reset_requested_after_a_drain_is_not_lost_in_what_was_overruled() -> None:
    told = (by_xid(119), by_154(Action.DRAIN_AND_RESET))
    assert standing_after(*told, by_nvml(Action.RESET_GPU)) is Standing.QUARANTINED
    assert standing_after(*told, by_154(Action.REBOOT_NODE, after_ms=3)) is Standing.QUARANTINED


def test_nvml_stands_over_what_the_log_alone_reported() -> None:
    log = (by_xid(119), by_154(Action.REBOOT_NODE))
    assert set(overruled(merged(*log, by_nvml(Action.DRAIN_P2P)))) == {"xid:119", "xid:154:reboot_node"}
    assert standing_after(by_xid(119), by_nvml(Action.REBOOT_NODE), by_154(Action.DRAIN_P2P, after_ms=3 * SECOND)) is (
        Standing.QUARANTINED
    )


def test_nvmls_word_by_dcgm_may_come_as_late_as_an_exporter_reports() -> None:
    late = by_nvml(Action.DRAIN_AND_RESET, after_ms=80 * SECOND)
    assert standing_after(by_xid(119), late) is Standing.QUARANTINED
    by_dcgm = replace(late, source=Source.DCGM)
    assert standing_after(by_xid(119), by_dcgm) is Standing.SUSPECT
    too_late = replace(by_dcgm, onset_ms=NOW_MS + 91 * SECOND)
    assert standing_after(by_xid(119), too_late) is Standing.QUARANTINED


def test_a_worse_word_than_the_catalogues_condemns() -> None:
    assert standing_after(by_xid(63)) is not Standing.QUARANTINED
    assert standing_after(by_xid(63), by_154(Action.RESET_GPU)) is Standing.QUARANTINED
    assert standing_after(by_xid(63), by_nvml(Action.RESET_GPU)) is Standing.QUARANTINED


def test_overruled_faults_still_count_as_repetitions() -> None:
    policy = POLICY.detectors.gsp_repeats
    told = [
        finding
        for number in range(policy.times)
        for finding in (
            by_xid(119, after_ms=number * 4 * 3_600_000),
            by_154(Action.DRAIN_AND_RESET, after_ms=number * 4 * 3_600_000 + 1),
        )
    ]
    known, numbers = EvidenceIndex(), count()
    for finding in told:
        list(merge(finding, Place(known), POLICY, finding.onset_ms, lambda: EvidenceId(f"ev_{next(numbers):03}")))
    assert "gsp_repeats:hold" in {each.fault_key for each in known.values() if is_condemning(each)}


@given(
    code=st.sampled_from([code for code in sorted(CATALOGUE) if code != 154]),
    action=st.sampled_from(sorted(TEXTS)),
    after_ms=st.integers(min_value=-10_000, max_value=10_000),
    arrival=st.sampled_from(["word first", "fault first"]),
)
def test_a_condemning_xid_loses_its_weight_to_a_drain_in_time_alone(
    code: int, action: Action, after_ms: int, arrival: str
) -> None:
    fault, word = by_xid(code), by_154(action, after_ms=after_ms)
    found = merged(word, fault) if arrival == "word first" else merged(fault, word)
    if overruled(found):
        entry = CATALOGUE[code]
        assert overruled(found) == [f"xid:{code}"]
        assert action in DRAINS
        assert 0 <= after_ms <= POLICY.evidence.coalescing_s * 1000
        assert not entry.threatens_correctness
        assert entry.action in {Action.RESET_GPU, Action.REBOOT_NODE}
        assert standing_after(fault, word) is Standing.SUSPECT, "its word weighs in its place"
    elif fault.severity is Severity.CONDEMNING:
        assert any(is_condemning(each) for each in found)
    assert sum(counts(each) for each in found) >= 1


@given(order=st.permutations([by_xid(119), by_154(Action.DRAIN_AND_RESET), by_nvml(Action.DRAIN_AND_RESET)]))
def test_the_order_of_arrival_changes_nothing(order: list[Finding]) -> None:
    assert overruled(merged(*order)) == ["xid:119"]


@pytest.mark.parametrize("code", [48, 64, 79, 95, 140])
@pytest.mark.parametrize("action", [Action.NONE, *DRAINS])
def test_no_word_lessens_what_may_have_made_data_wrong_or_shows_in_a_reading(code: int, action: Action) -> None:
    assert standing_after(by_xid(code), by_154(action)) is Standing.QUARANTINED
