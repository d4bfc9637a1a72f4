"""What the driver logs and the reading in which it shows are one fault; what has nothing to do with it is another."""

import pytest

from health.detectors.past import Past, judged, watched_in
from health.detectors.registry import judge_signal
from health.evidence.evidence import join
from health.evidence.same_fault import shows_as
from muster.domain.evidence.findings import EventKind, Evidence, Finding
from muster.domain.ids import EvidenceId
from tests.health.case_factory import NODE, NOW_MS, POLICY, SECOND, lost_sample, sample, signal


def by_xid(code: int, at_ms: int = NOW_MS, text: str = "") -> Finding:
    (found,) = judge_signal(signal(EventKind.XID, code=code, at_ms=at_ms, text=text), POLICY)
    return found


def by_sample(after_s: int = 9, **readings: float) -> Finding:
    before = watched_in(sample(NOW_MS).values)
    _, (found, *_) = judged(Past(before), NODE, sample(NOW_MS + after_s * SECOND, **readings), POLICY, NOW_MS + 10**6)
    assert isinstance(found, Finding)
    return found


def lost() -> Finding:
    _, (found,) = judged(Past(), NODE, lost_sample(NOW_MS + 9 * SECOND), POLICY, NOW_MS + 10**6)
    assert isinstance(found, Finding)
    return found


def evidence_of(*findings: Finding) -> list[Evidence]:
    known: dict[EvidenceId, Evidence] = {}
    for number, finding in enumerate(findings):
        joined = join(finding, known.values(), POLICY, NOW_MS + 10**6, EvidenceId(f"ev_{number}"))
        known[joined.evidence.id] = joined.evidence
    return list(known.values())


REQUESTED = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
PAIRS = [
    (by_xid(48), by_sample(ecc_uncorrected_volatile=1.0)),
    (by_xid(95), by_sample(ecc_uncorrected_aggregate=1.0)),
    (by_xid(63), by_sample(remapped_rows_uncorrected=1.0)),
    (by_xid(64), by_sample(remap_failure=1.0)),
    (by_xid(79), lost()),
    (by_xid(154, text=REQUESTED), by_sample(recovery_action=1.0)),
]


@pytest.mark.parametrize(("event", "reading"), PAIRS)
def test_a_fault_reported_by_event_and_reading_counts_once(event: Finding, reading: Finding) -> None:
    assert len(evidence_of(event, reading)) == 1
    assert len(evidence_of(reading, event)) == 1


@pytest.mark.parametrize("code", [13, 31, 43, 45, 62, 74, 92, 119])
def test_other_codes_are_faults_of_their_own(code: int) -> None:
    assert shows_as(f"xid:{code}") == f"xid:{code}"
    assert len(evidence_of(by_xid(code), by_sample(ecc_uncorrected_volatile=1.0))) == 2


def test_an_error_minutes_later_is_another() -> None:
    assert len(evidence_of(by_xid(95), by_sample(120, ecc_uncorrected_volatile=1.0))) == 2


def test_a_contained_error_that_turns_out_worse_is_two() -> None:
    """Joining never makes evidence worse."""
    assert len(evidence_of(by_xid(94), by_sample(ecc_uncorrected_volatile=1.0))) == 2
    assert len(evidence_of(by_sample(ecc_uncorrected_volatile=1.0), by_xid(94))) == 1


def test_that_the_driver_requests_a_faults_remedy_is_no_second_fault() -> None:
    reset = by_sample(recovery_action=1.0)
    assert len(evidence_of(by_xid(95), by_sample(ecc_uncorrected_volatile=1.0), reset)) == 1
    assert len(evidence_of(by_xid(62), reset)) == len(evidence_of(reset, by_xid(62))) == 1
    assert len(evidence_of(by_xid(63), reset)) == 2, "a remapped row is no ground for a reset"


def test_joining_hides_no_threat_to_correctness() -> None:
    (asked, error) = evidence_of(by_sample(recovery_action=1.0), by_xid(95))
    assert (asked.threatens_correctness, error.threatens_correctness) == (False, True)
