"""Verdicts on jobs as reported evidence: one hang weighs nothing, hangs of three jobs propose SUSPECT."""

import itertools
from dataclasses import replace

import pytest

from health.detectors.verdict_faults import OF_NO_HARDWARE, NamedPlace, findings_of
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from health.evidence.state import counts
from health.scoring.score import score
from health.standing.standing import decide
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.ids import EvidenceId, GpuUuid, JobId, TenantId, VerdictId
from muster.domain.job.verdicts import VerdictKind
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing
from tests.health.case_factory import GPU, HOUR, NODE, NOW_MS, POLICY, case

ON = HealthPolicy.model_validate({"detectors": {"job_fault_repeats": {"mode": "on"}}})


def named(job: int = 1, *, kind: VerdictKind = VerdictKind.HANG, cause: str = "gpu", tenant: int = 1) -> NamedPlace:
    at_ms = NOW_MS + job * HOUR
    verdict_id = VerdictId(f"vrd_{job}_{tenant}")
    return NamedPlace(verdict_id, kind, cause, JobId(f"job_{job}"), TenantId(f"ten_{tenant}"), NODE, GPU, at_ms)


def evidence_of(places: list[NamedPlace], policy: HealthPolicy = POLICY) -> list[Evidence]:
    index, numbers = EvidenceIndex(), itertools.count()
    for each in places:
        for found in findings_of(each, policy):
            list(merge(found, Place(index), policy, found.onset_ms, lambda: EvidenceId(f"ev_{next(numbers)}")))
    return [index[each] for each in index]


@pytest.mark.parametrize("kind", VerdictKind)
def test_every_kind_is_reported_and_takes_no_capacity_out_by_default(kind: VerdictKind) -> None:
    (found,) = findings_of(named(kind=kind), POLICY)
    assert found.trust is Trust.REPORTED
    assert not found.threatens_correctness
    assert "vrd_1" in found.summary
    assert score(evidence_of([named(kind=kind)]), POLICY, found.onset_ms).value == 100


@pytest.mark.parametrize("cause", sorted(OF_NO_HARDWARE))
def test_a_cause_without_hardware_blames_neither_gpu_nor_host(cause: str) -> None:
    assert findings_of(named(cause=cause), POLICY) == ()


def test_a_cause_outside_the_gpu_is_about_the_host_and_weighs_nothing() -> None:
    (found,) = findings_of(named(cause="network", kind=VerdictKind.STRAGGLER), POLICY)
    assert (found.gpu_uuid, found.node_id, found.severity) == (None, NODE, Severity.INFO)
    off = HealthPolicy.model_validate({"detectors": {"job_hang": {"mode": "off"}}})
    assert findings_of(named(), off) == ()


def test_hangs_of_three_jobs_propose_suspect() -> None:
    again = [replace(named(1), verdict_id=VerdictId(f"vrd_{n}"), at_ms=NOW_MS + n * HOUR) for n in range(9)]
    assert not [each for each in evidence_of(again) if each.detector == "job_fault_repeats"]
    (proposed,) = [each for each in evidence_of([named(1), named(2), named(3)]) if each.detector == "job_fault_repeats"]
    assert "SUSPECT is proposed" in proposed.summary
    assert not counts(proposed), "the rule is in shadow"


def test_the_rule_that_is_on_makes_the_gpu_suspect_and_never_quarantines_it() -> None:
    found = evidence_of([named(n, tenant=n) for n in range(1, 31)], ON)
    now_ms = max(each.last_seen_ms for each in found)
    move = decide(case(Standing.HEALTHY, *found), now_ms, ON)
    assert move is not None
    assert move.to_standing is Standing.SUSPECT


def test_a_policy_may_ask_for_several_tenants() -> None:
    two = HealthPolicy.model_validate({"detectors": {"job_fault_repeats": {"tenants": 2}}})
    of_one, of_two = [named(1), named(2), named(3)], [named(1), named(2), named(3, tenant=2)]
    assert not [each for each in evidence_of(of_one, two) if each.detector == "job_fault_repeats"]
    assert [each for each in evidence_of(of_two, two) if each.detector == "job_fault_repeats"]


def test_a_gpu_of_no_verdict_is_not_in_the_evidence() -> None:
    assert {each.gpu_uuid for each in evidence_of([named(1), named(2)])} == {GpuUuid(GPU)}
