"""The whole way of judgement: from events and samples to evidence, score, standing and the breaker."""

from collections.abc import Iterable

from health.detectors.registry import GpuMemory, judge_sample, judge_signal
from health.evidence.evidence import join
from health.scoring.score import Band, score
from health.standing.breaker import BreakerState, FleetCounts, admit
from health.standing.gpu_case import MoveReason
from health.standing.standing import decide
from muster.domain.evidence.findings import Evidence, Finding, GpuSample, Source
from muster.domain.ids import EvidenceId
from muster.domain.states import Standing
from tests.health.case_factory import DAY, HOUR, MINUTE, NODE, NOW_MS, POLICY, SECOND, case, sample, signal


def evidence_of(findings: Iterable[Finding], now_ms: int | None = None) -> tuple[Evidence, ...]:
    """``now_ms``: when all of them arrived; None: each at once."""
    kept: dict[EvidenceId, Evidence] = {}
    for number, finding in enumerate(findings):
        joined = join(finding, kept.values(), POLICY, now_ms or finding.onset_ms, EvidenceId(f"ev_{number}")).evidence
        kept[joined.id] = joined
    return tuple(kept.values())


def findings_of(samples: Iterable[GpuSample]) -> list[Finding]:
    memory, found = GpuMemory(NODE), list[Finding]()
    for each in samples:
        memory, findings = judge_sample(memory, each, POLICY, each.at_ms)
        found += findings
    return found


def test_an_uncontained_memory_error_reported_twice_quarantines_by_one_evidence() -> None:
    told = judge_signal(signal(code=95), POLICY) + judge_signal(
        signal(code=95, source=Source.KERNEL_LOG, at_ms=NOW_MS + 3), POLICY
    )
    found = evidence_of(told, NOW_MS + SECOND)
    move = decide(case(Standing.HEALTHY, *found), NOW_MS + SECOND, POLICY)
    assert move is not None
    assert (move.to_standing, move.reason, move.evidence_ids) == (
        Standing.QUARANTINED,
        MoveReason.CONDEMNED,
        ("ev_0",),
    )
    assert move.threatens_correctness
    ruling = admit([move], BreakerState(), FleetCounts(8), POLICY, NOW_MS + SECOND)
    assert ruling.allowed == (move,)


def test_a_remap_that_waits_makes_suspect_and_stays_so_while_it_stands() -> None:
    standing_for = [sample(NOW_MS + at * MINUTE, remap_pending=1.0) for at in range(24 * 60)]
    now_ms = NOW_MS + 24 * HOUR
    found = evidence_of(findings_of(standing_for))
    assert len(found) == 1
    assert score(found, POLICY, now_ms).band is Band.POOR
    move = decide(case(Standing.HEALTHY, *found), now_ms, POLICY)
    assert move is not None
    assert (move.to_standing, move.return_to) == (Standing.SUSPECT, Standing.HEALTHY)


def test_a_programs_own_faults_move_no_gpu() -> None:
    faults = [each for n in range(500) for each in judge_signal(signal(code=31, at_ms=NOW_MS - n * MINUTE), POLICY)]
    gpu = case(Standing.PROBATION, *evidence_of(faults, NOW_MS), since_ms=NOW_MS - 28 * DAY)
    move = decide(gpu, NOW_MS, POLICY)
    assert move is not None
    assert move.to_standing is Standing.HEALTHY


def test_a_days_old_spool_moves_nothing_but_what_condemns() -> None:
    old = [each for n in range(20) for each in judge_signal(signal(code=94, at_ms=NOW_MS - DAY + n * HOUR), POLICY)]
    assert decide(case(Standing.HEALTHY, *evidence_of(old, NOW_MS)), NOW_MS, POLICY) is None
    fatal = judge_signal(signal(code=79, at_ms=NOW_MS - DAY), POLICY)
    move = decide(case(Standing.HEALTHY, *evidence_of(fatal, NOW_MS)), NOW_MS, POLICY)
    assert move is not None
    assert move.to_standing is Standing.QUARANTINED
