"""Records of persons' actions, and of evidence that existed or was found elsewhere, as the judge takes them."""

from typing import Final

from health.detectors.traits import traits_of
from health.replay.stream import Dismissed, Found, Input, KnownBefore, Moving, Overridden, RepairBegan, RepairEnded
from muster.domain.evidence.findings import Evidence, Finding, Pending, Severity
from muster.domain.evidence.old_keys import typed_evidence, typed_finding
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.states import Standing
from muster.wire import health_records as wire

OPERATOR_STANDINGS: Final = (Standing.RETIRED, Standing.UNPROVEN, Standing.QUARANTINED)


class ActError(Exception):
    """A field of the record has a value that is not accepted; the message names the accepted ones."""


def act_of(told: wire.Dismissal | wire.RepairBegan | wire.RepairEnded | wire.Moving | wire.Override) -> Input:
    """Return the judge's input for a person's action. Raises ActError."""
    if not told.reason.strip() or not told.by.strip():
        raise ActError("reason and by: wanted is a text that is not blank")
    about = (told.at_ms, GpuUuid(told.gpu_uuid), NodeId(told.node_id), told.reason, told.by)
    match told:
        case wire.Dismissal():
            return Dismissed(*about, told.fault, told.onset_ms, told.last_seen_ms)
        case wire.RepairBegan():
            return RepairBegan(*about, told.action, told.fault_group)
        case wire.RepairEnded():
            return RepairEnded(*about, told.began_ms, told.fault_group, told.outcome)
        case wire.Moving():
            if told.to not in OPERATOR_STANDINGS:
                raise ActError(
                    f"to: {told.to} is no standing that a person moves to; accepted are {', '.join(OPERATOR_STANDINGS)}"
                )
            return Moving(*about, told.to)
        case wire.Override():
            return Overridden(*about, told.standing, told.until_ms)


def evidence_input(told: wire.KnownEvidence) -> KnownBefore:
    """Return the judge's input for known evidence. Raises ActError."""
    if not told.sources:
        raise ActError("sources: wanted is at least one")
    evidence = Evidence(
        id=EvidenceId(told.id),
        detector=told.detector,
        version=told.version,
        fault_key=told.fault,
        traits=traits_of(told.detector, told.fault),
        gpu_uuid=_gpu(told.gpu_uuid),
        node_id=NodeId(told.node_id),
        severity=_severity(told.severity),
        trust=told.trust,
        sources=told.sources,
        onset_ms=told.onset_ms,
        last_seen_ms=told.last_seen_ms,
        counts_for_ms=told.counts_for_ms,
        summary=told.summary,
        threatens_correctness=told.threatens_correctness,
        is_dismissed=told.is_dismissed,
        is_suspended=told.is_suspended,
        values=told.values,
        suppressed_by=frozenset(told.suppressed_by),
        pending=_pending(told),
        outlasted_at_ms=told.outlasted_at_ms,
        closed_at_ms=told.closed_at_ms,
        reopened_at_ms=told.reopened_at_ms,
    )
    return KnownBefore(told.at_ms, typed_evidence(evidence))


def finding_input(told: wire.Finding) -> Found:
    """Return the judge's input for a finding. Raises ActError."""
    finding = Finding(
        detector=told.detector,
        version=told.version,
        fault_key=told.fault,
        gpu_uuid=_gpu(told.gpu_uuid),
        node_id=NodeId(told.node_id),
        severity=_severity(told.severity),
        trust=told.trust,
        source=told.source,
        onset_ms=told.at_ms,
        counts_for_ms=told.counts_for_ms,
        summary=told.summary,
        threatens_correctness=told.threatens_correctness,
        values=told.values,
        suppressed_by=frozenset(told.suppressed_by),
        pending=_pending(told),
    )
    return Found(told.at_ms, typed_finding(finding))


def _pending(told: wire.KnownEvidence | wire.Finding) -> Pending | None:
    return None if told.weighs_from_ms is None else Pending(told.weighs_from_ms, told.boot_mark)


def _gpu(uuid: str | None) -> GpuUuid | None:
    return None if uuid is None else GpuUuid(uuid)


def _severity(name: str) -> Severity:
    try:
        return Severity[name]
    except KeyError:
        accepted = ", ".join(each.name for each in Severity)
        raise ActError(f"severity: {name!r} is unknown; accepted are {accepted}") from None
