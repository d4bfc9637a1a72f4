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


def act_of(record: wire.Dismissal | wire.RepairBegan | wire.RepairEnded | wire.Moving | wire.Override) -> Input:
    """Return the judge's input for a person's action. Raises ActError."""
    if not record.reason.strip() or not record.by.strip():
        raise ActError("reason and by: wanted is a text that is not blank")
    about = (record.at_ms, GpuUuid(record.gpu_uuid), NodeId(record.node_id), record.reason, record.by)
    match record:
        case wire.Dismissal():
            return Dismissed(*about, record.fault, record.onset_ms, record.last_seen_ms)
        case wire.RepairBegan():
            return RepairBegan(*about, record.action, record.fault_group)
        case wire.RepairEnded():
            return RepairEnded(*about, record.began_ms, record.fault_group, record.outcome)
        case wire.Moving():
            if record.to not in OPERATOR_STANDINGS:
                raise ActError(
                    f"to: {record.to} is no standing that a person moves to; "
                    f"accepted are {', '.join(OPERATOR_STANDINGS)}"
                )
            return Moving(*about, record.to)
        case wire.Override():
            return Overridden(*about, record.standing, record.until_ms)


def evidence_input(record: wire.KnownEvidence) -> KnownBefore:
    """Return the judge's input for known evidence. Raises ActError."""
    if not record.sources:
        raise ActError("sources: wanted is at least one")
    evidence = Evidence(
        id=EvidenceId(record.id),
        detector=record.detector,
        version=record.version,
        fault_key=record.fault,
        traits=traits_of(record.detector, record.fault),
        gpu_uuid=_gpu(record.gpu_uuid),
        node_id=NodeId(record.node_id),
        severity=_severity(record.severity),
        trust=record.trust,
        sources=record.sources,
        onset_ms=record.onset_ms,
        last_seen_ms=record.last_seen_ms,
        counts_for_ms=record.counts_for_ms,
        summary=record.summary,
        threatens_correctness=record.threatens_correctness,
        is_dismissed=record.is_dismissed,
        is_suspended=record.is_suspended,
        values=record.values,
        suppressed_by=frozenset(record.suppressed_by),
        pending=_pending(record),
        outlasted_at_ms=record.outlasted_at_ms,
        closed_at_ms=record.closed_at_ms,
        reopened_at_ms=record.reopened_at_ms,
    )
    return KnownBefore(record.at_ms, typed_evidence(evidence))


def finding_input(record: wire.Finding) -> Found:
    """Return the judge's input for a finding. Raises ActError."""
    finding = Finding(
        detector=record.detector,
        version=record.version,
        fault_key=record.fault,
        gpu_uuid=_gpu(record.gpu_uuid),
        node_id=NodeId(record.node_id),
        severity=_severity(record.severity),
        trust=record.trust,
        source=record.source,
        onset_ms=record.at_ms,
        counts_for_ms=record.counts_for_ms,
        summary=record.summary,
        threatens_correctness=record.threatens_correctness,
        values=record.values,
        suppressed_by=frozenset(record.suppressed_by),
        pending=_pending(record),
    )
    return Found(record.at_ms, typed_finding(finding))


def _pending(record: wire.KnownEvidence | wire.Finding) -> Pending | None:
    return None if record.weighs_from_ms is None else Pending(record.weighs_from_ms, record.boot_mark)


def _gpu(uuid: str | None) -> GpuUuid | None:
    return None if uuid is None else GpuUuid(uuid)


def _severity(name: str) -> Severity:
    try:
        return Severity[name]
    except KeyError:
        accepted = ", ".join(each.name for each in Severity)
        raise ActError(f"severity: {name!r} is unknown; accepted are {accepted}") from None
