"""DCGM with NVML and the kernel log: one fault is one evidence, though DCGM reports it late and without text."""

from functools import partial

import pytest

from health.detectors.detector import Closing
from health.detectors.registry import GpuMemory, judge_sample, judge_signal
from health.evidence.evidence import close
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from muster.domain.evidence.findings import Evidence, Finding, GpuSample, Severity, Source
from muster.domain.ids import EvidenceId
from tests.health.case_factory import GPU, NODE, NOW_MS, POLICY, SECOND, sample, signal

LATE = 40 * SECOND
WORDS = "NETIR_LINK_DOWN Nonfatal XC0 i0 Link 03 (0x02600011 0x00000000 0x0 0x0 0x0 0x0 0x0)"
"""Of XID 149: a link that went down because the other end did, to be ignored."""


def found(*findings: Finding) -> list[Evidence]:
    """Return the evidence after these findings, in their order, each merged when it was reported."""
    known = EvidenceIndex()
    for finding in findings:
        ids = iter(EvidenceId(f"ev_{len(known)}_{number}") for number in range(9))
        list(merge(finding, Place(known), POLICY, finding.onset_ms, partial(next, ids)))
    return list(known.values())


def xid(code: int, source: Source, at_ms: int, text: str = "") -> Finding:
    (told,) = judge_signal(signal(code=code, source=source, at_ms=at_ms, text=text), POLICY)
    return told


def test_an_xid_reported_by_three_is_one_evidence_with_three_sources() -> None:
    told = [xid(79, source, NOW_MS + at) for source, at in ((Source.KERNEL_LOG, 0), (Source.NVML, 20))]
    (evidence,) = found(*told, xid(79, Source.DCGM, NOW_MS + LATE))
    assert evidence.sources == (Source.KERNEL_LOG, Source.NVML, Source.DCGM)


def test_what_dcgm_reports_late_makes_the_fault_no_newer() -> None:
    """A burn-in that began in between stays a proof."""
    (evidence,) = found(xid(79, Source.NVML, NOW_MS), xid(79, Source.DCGM, NOW_MS + LATE))
    assert (evidence.onset_ms, evidence.last_seen_ms) == (NOW_MS, NOW_MS)


def test_an_xid_that_dcgm_alone_reports_is_evidence_of_its_own() -> None:
    (evidence,) = found(xid(79, Source.DCGM, NOW_MS))
    assert evidence.sources == (Source.DCGM,)
    assert evidence.severity is Severity.CONDEMNING


@pytest.mark.parametrize(("after_s", "number"), [(90, 1), (91, 2)])
def test_past_its_window_what_dcgm_reports_is_another_fault(after_s: int, number: int) -> None:
    assert POLICY.evidence.dcgm_window_s == 90
    assert len(found(xid(79, Source.NVML, NOW_MS), xid(79, Source.DCGM, NOW_MS + after_s * SECOND))) == number


def test_two_xids_of_the_kernel_log_are_two_as_before() -> None:
    assert len(found(*(xid(79, Source.KERNEL_LOG, NOW_MS + at) for at in (0, LATE)))) == 2


def test_the_kernel_logs_words_decide_over_dcgms_number() -> None:
    """DCGM reports a link's XID without text, which alone would weigh."""
    (evidence,) = found(xid(149, Source.KERNEL_LOG, NOW_MS, WORDS), xid(149, Source.DCGM, NOW_MS + LATE))
    assert evidence.sources == (Source.KERNEL_LOG, Source.DCGM)
    assert evidence.severity < Severity.CONDEMNING


def test_an_xid_of_a_gpu_that_is_back_is_not_reported_again_by_dcgm() -> None:
    lost = GpuSample(GPU, NOW_MS, sample().values, is_lost=True)
    _, told = judge_sample(GpuMemory(NODE), lost, POLICY, NOW_MS)
    (evidence,) = found(*told)
    over = close(evidence, Closing("gpu_lost", NODE, GPU, NOW_MS + 10 * SECOND))
    known = EvidenceIndex([over])
    late = xid(79, Source.DCGM, NOW_MS + LATE)
    (noted,) = merge(late, Place(known), POLICY, late.onset_ms, lambda: EvidenceId("ev_new"))
    assert not noted.is_new
    assert noted.evidence.sources == (Source.NVML, Source.DCGM)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("recovery_action", 1.0),
        ("remap_failure", 1.0),
        ("remap_pending", 1.0),
        ("remapped_rows_uncorrected", 600.0),
        ("ecc_uncorrected_volatile", 2.0),
        ("remapped_rows_corrected", 3.0),
        ("memory_temperature_c", 120.0),
    ],
)
def test_a_finding_is_by_whoever_reported_its_reading(metric: str, value: float) -> None:
    before = GpuMemory(NODE, previous=sample(NOW_MS - SECOND))
    for from_dcgm, source in ((frozenset[str](), Source.NVML), (frozenset({metric}), Source.DCGM)):
        told = GpuSample(GPU, NOW_MS, sample(NOW_MS, **{metric: value}).values, from_dcgm=from_dcgm)
        _, findings = judge_sample(before, told, POLICY, NOW_MS)
        assert {each.source for each in findings} == {source}


def test_a_counter_that_dcgm_reports_and_the_logs_xid_are_one_fault() -> None:
    metric = "ecc_uncorrected_volatile"
    before = GpuMemory(NODE, previous=sample(NOW_MS))
    told = GpuSample(GPU, NOW_MS + LATE, sample(NOW_MS + LATE, **{metric: 1.0}).values, from_dcgm=frozenset({metric}))
    _, findings = judge_sample(before, told, POLICY, NOW_MS + LATE)
    (evidence,) = found(xid(48, Source.KERNEL_LOG, NOW_MS), *findings)
    assert evidence.sources == (Source.KERNEL_LOG, Source.DCGM)
