"""One GPU in full, its evidence, and the circuit breaker, as the JSON that callers see."""

from api.incident_views import incident_view
from api.views import cordon_view, gpu_view, time_of
from control.evidence.types import StandingChangeRecord
from control.fleet.gpu_admission import TierAdmission
from control.fleet.read import Holder
from control.fleet.types import OverrideRecord, ProposalRecord, RepairRecord
from control.health.breakers import BreakerView, Scope
from control.health.gpu_details import GpuDetail, WeighedEvidence
from control.health.signal_ages import SignalAge
from health.remedy.remedy import Remedy
from health.standing.counterfactual import RecoveryPath
from health.standing.gpu_case import Move
from health.standing.what_if import Condition
from muster import documents
from muster.domain.evidence.findings import Severity, Suppression
from muster.domain.evidence.repairs import RepairBy, state_of
from muster.domain.times import to_time


def gpu_detail_view(found: GpuDetail) -> documents.GpuDetail:
    gpu = found.gpu
    return {
        **gpu_view(gpu, found.override, is_cordoned=bool(found.cordons)),
        **_judged_view(found),
        "score": round(found.score.value, 3),
        "version": gpu.version,
        "node_name": found.node.name,
        "contact": found.node.contact,
        "rack": found.node.rack,
        "overrides": [_override_view(each) for each in found.overrides],
        "cordons": [cordon_view(cordon) for cordon in found.cordons],
        "job": None if found.holder is None else _holder_view(found.holder),
        "repairs": [_repair_view(repair) for repair in found.repairs],
        "signals": [_signal_view(each) for each in found.signals.ages],
        "incidents": [incident_view(each) for each in found.incidents],
        "driver_latency_ms": found.signals.driver_latency_ms,
    }


def _signal_view(age: SignalAge) -> documents.SignalAge:
    return {
        "group": age.group,
        "text": age.text,
        "delivered_at": time_of(age.delivered_at),
        "max_age_s": age.max_age_s,
        "late_samples": age.num_late,
        "is_overdue": age.is_overdue,
    }


def gpu_health_view(found: GpuDetail) -> documents.GpuHealth:
    return {
        "uuid": found.gpu.uuid,
        "standing": found.gpu.standing,
        "override": found.override,
        "effective_standing": found.effective_standing,
        "score": round(found.score.value, 3),
        **_judged_view(found),
    }


def _judged_view(found: GpuDetail) -> documents.Judged:
    score = found.score
    return {
        "measured_score": round(score.measured_value, 3),
        "score_band": score.band,
        "score_valid_until": None if score.valid_until_ms is None else time_of(to_time(score.valid_until_ms)),
        "standing_since": time_of(found.standing_since),
        "origin_standing": found.gpu.origin_standing,
        "next_evaluation_at": time_of(found.gpu.judge_at),
        "proposed": None if found.proposed is None else _proposed_view(found.proposed),
        "breaker_proposals": [_breaker_proposal_view(each) for each in found.breaker_proposals],
        "remedy": None if found.remedy is None else _remedy_view(found.remedy, found.attempts_max),
        "evidence": [evidence_view(each) for each in found.evidence],
        "admission": [_admission_view(each) for each in found.admission],
        "moves": [move_view(move) for move in found.moves],
    }


def evidence_view(found: WeighedEvidence) -> documents.Evidence:
    row = found.row
    return {
        "id": row.id,
        "gpu_uuid": row.gpu_uuid,
        "node_id": row.node_id,
        "fault_key": row.fault_key,
        "detector": row.detector,
        "detector_version": row.detector_version,
        "severity": Severity(row.severity).name.lower(),
        "trust": row.trust,
        "sources": row.sources,
        "summary": row.summary,
        "values": dict(found.evidence.values),
        "threatens_correctness": row.threatens_correctness,
        "is_condemning": found.is_condemning,
        "is_open": found.is_open,
        "is_suspended": row.is_suspended,
        "state": found.evidence.state,
        "suppressed_by": [each for each in Suppression if each in found.evidence.suppressed_by],
        "weighs_from_at": _time_of_ms(
            None if found.evidence.pending is None else found.evidence.pending.weighs_from_ms
        ),
        "outlasted_at": _time_of_ms(found.evidence.outlasted_at_ms),
        "closed_at": _time_of_ms(found.evidence.closed_at_ms),
        "reopened_at": _time_of_ms(found.evidence.reopened_at_ms),
        "points": round(found.points, 3),
        "why_no_points": found.why_no_points,
        "onset_at": time_of(row.onset_at),
        "last_seen_at": time_of(row.last_seen_at),
        "counts_for_s": row.counts_for_ms / 1000,
        "dismissed_at": time_of(row.dismissed_at),
        "dismissed_by": row.dismissed_by,
        "dismiss_reason": row.dismiss_reason,
    }


def _time_of_ms(at_ms: int | None) -> str | None:
    return None if at_ms is None else time_of(to_time(at_ms))


def breaker_view(found: BreakerView) -> documents.Breaker:
    return {
        "name": found.name,
        "is_open": any(scope.opened_at is not None for scope in found.scopes),
        "scopes": [_scope_view(scope) for scope in found.scopes],
    }


def _scope_view(scope: Scope) -> documents.BreakerScope:
    return {
        "scope": scope.name,
        "is_open": scope.opened_at is not None,
        "num_quarantined": scope.num_counted,
        "num_proposed": scope.num_proposed,
        "cap": scope.cap,
        "opened_at": time_of(scope.opened_at),
        "closed_at": time_of(scope.closed_at),
    }


def _proposed_view(move: Move) -> documents.Proposed:
    return {"to_standing": move.to_standing, "cause": move.reason, "text": move.text}


def _breaker_proposal_view(found: ProposalRecord) -> documents.BreakerProposal:
    return {
        "way": found.way,
        "to_standing": found.standing,
        "text": found.reason,
        "bars_placement": found.threatens_correctness,
        "since": time_of(found.proposed_at),
    }


def _remedy_view(remedy: Remedy, attempts_max: int) -> documents.Remedy:
    return {
        "action": remedy.action,
        "requested_by": remedy.requested_by,
        "by": remedy.by,
        "verb": remedy.verb,
        "actor": remedy.actor,
        "why": remedy.why,
        "fault_group": remedy.fault_group,
        "evidence_ids": list(remedy.evidence_ids),
        "attempt": remedy.num_tried + 1,
        "attempts_max": attempts_max,
        "then": list(remedy.then),
        "text": remedy.text,
    }


def _admission_view(admission: TierAdmission) -> documents.Admission:
    return {
        "tier": admission.tier,
        "is_admitted": admission.is_admitted,
        "refusals": [{"reason": each.reason, "text": each.text} for each in admission.refusals],
        "recovery_paths": [_way_view(way) for way in admission.ways],
    }


def _way_view(way: RecoveryPath) -> documents.RecoveryPath:
    return {
        "conditions": [_condition_view(each) for each in way.conditions],
        "at": None if way.at_ms is None else time_of(to_time(way.at_ms)),
    }


def _condition_view(condition: Condition) -> documents.Condition:
    return {
        "kind": condition.kind,
        "text": condition.text,
        "at": None if condition.at_ms is None else time_of(to_time(condition.at_ms)),
        "subject_id": condition.subject_id,
    }


def _override_view(override: OverrideRecord) -> documents.Override:
    return {
        "id": override.id,
        "standing": override.standing,
        "reason": override.reason,
        "actor": override.actor,
        "until": time_of(override.until),
        "created_at": time_of(override.created_at),
    }


def _holder_view(holder: Holder) -> documents.Holder:
    return {
        "job_id": holder.job_id,
        "job_name": holder.job_name,
        "tenant_id": holder.tenant_id,
        "attempt_id": holder.attempt_id,
        "attempt_number": holder.attempt_number,
        "state": holder.state,
    }


def _repair_view(repair: RepairRecord) -> documents.Repair:
    return {
        "id": repair.id,
        "gpu_uuid": repair.gpu_uuid,
        "action": repair.action,
        "by": RepairBy.PERSON if repair.verb is None else RepairBy.AGENT,
        "verb": repair.verb,
        "state": state_of(
            has_ended=repair.ended_at is not None, verb=repair.verb, is_taken=repair.taken_at is not None
        ),
        "fault_group": repair.fault_group,
        "reason": repair.reason,
        "started_by": repair.started_by,
        "began_at": time_of(repair.began_at),
        "taken_at": time_of(repair.taken_at),
        "ended_at": time_of(repair.ended_at),
        "outcome": repair.outcome,
        "text": repair.text,
    }


def move_view(move: StandingChangeRecord) -> documents.Move:
    return {
        "from": move.origin,
        "to": move.target,
        "at": time_of(move.at),
        "cause": move.move_reason,
        "reason": move.reason,
        "actor": move.actor,
        "policy_version": move.policy_version,
        "evidence_ids": move.evidence_ids,
    }
