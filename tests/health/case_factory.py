"""Samples, events, evidence and cases to judge, each with what a test does not care about filled in."""

from dataclasses import replace

from health.detectors.traits import traits_of
from health.standing.gpu_case import GpuCase, Move, MoveReason
from muster.domain.evidence.findings import (
    EventKind,
    Evidence,
    Finding,
    GpuSample,
    GpuSignal,
    Severity,
    Source,
    Trust,
)
from muster.domain.gpu.metrics import INDEX, METRICS
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Standing

POLICY = DEFAULT_POLICY.health
GPU = GpuUuid("GPU-1")
NODE = NodeId("node_1")
NOW_MS = 1_790_000_000_000
SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

IDLE = {metric.name: 0.0 for metric in METRICS}


def lost_sample(at_ms: int) -> GpuSample:
    return GpuSample(GPU, at_ms, (None,) * len(METRICS), is_lost=True)


def sample(at_ms: int = NOW_MS, **readings: float | None) -> GpuSample:
    """A healthy idle GPU except for ``readings``."""
    assert set(readings) <= set(INDEX)
    merged: dict[str, float | None] = {**IDLE, **readings}
    return GpuSample(GPU, at_ms, tuple(merged[metric.name] for metric in METRICS))


def signal(
    kind: EventKind = EventKind.XID,
    *,
    code: int | None = None,
    at_ms: int = NOW_MS,
    source: Source = Source.NVML,
    gpu: GpuUuid | None = GPU,
    text: str = "",
    **values: float,
) -> GpuSignal:
    name = f"{source}:{kind}:{code}:{at_ms}"
    return GpuSignal(name, kind, source, at_ms, NODE, gpu_uuid=gpu, code=code, text=text, values=values)


def finding(
    fault: str = "xid:63",
    *,
    severity: Severity = Severity.WARNING,
    at_ms: int = NOW_MS,
    source: Source = Source.NVML,
    trust: Trust = Trust.MEASURED,
    detector: str = "xid",
) -> Finding:
    return Finding(
        detector=detector,
        version=1,
        fault_key=fault,
        gpu_uuid=GPU,
        node_id=NODE,
        severity=severity,
        trust=trust,
        source=source,
        onset_ms=at_ms,
        counts_for_ms=int(POLICY.score.weight(severity).counts_for_s * 1000),
        summary=fault,
    )


def evidence(
    name: str,
    severity: Severity = Severity.WARNING,
    *,
    at_ms: int = NOW_MS,
    trust: Trust = Trust.MEASURED,
    detector: str = "xid",
    fault: str = "xid:63",
    is_dismissed: bool = False,
    is_suspended: bool = False,
    threatens_correctness: bool = False,
    gpu: GpuUuid | None = GPU,
    values: dict[str, float] | None = None,
) -> Evidence:
    return Evidence(
        id=EvidenceId(f"ev_{name}"),
        detector=detector,
        version=1,
        fault_key=fault,
        traits=traits_of(detector, fault),
        gpu_uuid=gpu,
        node_id=NODE,
        severity=severity,
        trust=trust,
        sources=(Source.NVML,),
        onset_ms=at_ms,
        last_seen_ms=at_ms,
        counts_for_ms=int(POLICY.score.weight(severity).counts_for_s * 1000),
        summary=name,
        threatens_correctness=threatens_correctness,
        is_dismissed=is_dismissed,
        is_suspended=is_suspended,
        values=values or {},
    )


def as_fault(known: Evidence, fault: str, detector: str | None = None) -> Evidence:
    """The same evidence of another fault, with its traits."""
    detector = detector or known.detector
    return replace(known, detector=detector, fault_key=fault, traits=traits_of(detector, fault))


def degraded(name: str, at_ms: int = NOW_MS, *, fault: str | None = None) -> Evidence:
    """A fault of its own, unless ``fault`` says which."""
    return evidence(name, Severity.DEGRADED, at_ms=at_ms, fault=fault or f"xid:{name}")


def condemning(name: str, at_ms: int = NOW_MS) -> Evidence:
    return evidence(name, Severity.CONDEMNING, at_ms=at_ms, fault="xid:95", threatens_correctness=True)


def case(standing: Standing, *found: Evidence, since_ms: int = NOW_MS - DAY, origin: Standing | None = None) -> GpuCase:
    return GpuCase(gpu_uuid=GPU, standing=standing, since_ms=since_ms, evidence=found, origin=origin)


def fall(at_ms: int, *evidence_ids: str) -> Move:
    """A past fall to SUSPECT by measured evidence."""
    return Move(
        gpu_uuid=GPU,
        from_standing=Standing.HEALTHY,
        to_standing=Standing.SUSPECT,
        at_ms=at_ms,
        reason=MoveReason.LOW_SCORE,
        evidence_ids=tuple(EvidenceId(each) for each in evidence_ids),
    )


def quarantine(at_ms: int, from_standing: Standing, *evidence_ids: str) -> Move:
    """A past move to QUARANTINED by rule."""
    return Move(
        gpu_uuid=GPU,
        from_standing=from_standing,
        to_standing=Standing.QUARANTINED,
        at_ms=at_ms,
        reason=MoveReason.CONDEMNED,
        evidence_ids=tuple(EvidenceId(each) for each in evidence_ids),
    )
