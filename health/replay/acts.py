"""Acts of persons on a GPU, replayed by the rules of ``health.standing.interventions`` on the replay's own case.

Under another policy the GPU may have another standing than it had: then an act is refused, with a text that states why.
"""

from dataclasses import replace

from health.burn_in import Verdict, finding_of
from health.detectors.detector import NO_FINDINGS, Findings
from health.replay.stream import Burned, Dismissed, Moving, RepairBegan, RepairEnded
from health.standing import interventions
from health.standing.gpu_case import GpuCase, Move, PastRepair
from health.standing.interventions import RefusedMoveError
from muster.domain.evidence.repairs import RepairAction, RepairOutcome
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import BurnInOutcome, Standing

CaseAct = Dismissed | RepairBegan | RepairEnded | Moving


def case_after(gpu: GpuCase, act: CaseAct, policy: HealthPolicy, now_ms: int) -> tuple[GpuCase, Move | None]:
    """Return the case with the act's changes, and the move that follows from it, which the caller has to apply.

    Raises:
        RefusedMoveError: the GPU's standing here does not allow the act.
    """
    match act:
        case Dismissed():
            return _dismissed(gpu, act, policy, now_ms)
        case RepairBegan():
            move = interventions.start_repair(
                gpu, act.fault_group, actor=act.person, reason=act.reason, now_ms=now_ms, policy=policy
            )
            return replace(gpu, under_way=act.action), move
        case RepairEnded():
            return _repaired(gpu, act, policy, now_ms)
        case Moving():
            return gpu, _moving(gpu, act, now_ms)


def found_by(burned: Burned, policy: HealthPolicy) -> Findings:
    """Return the findings of a failed burn-in, where the record states its reasons."""
    if burned.result.has_passed or not burned.reasons:
        return NO_FINDINGS
    verdict = Verdict(burned.gpu_uuid, BurnInOutcome.FAILED, burned.reasons, (), burned.is_wrong, ())
    finding = finding_of(verdict, burned.node_id, burned.result.ended_ms, policy)
    return NO_FINDINGS if finding is None else (finding,)


def _dismissed(gpu: GpuCase, act: Dismissed, policy: HealthPolicy, now_ms: int) -> tuple[GpuCase, Move | None]:
    ids = frozenset(
        each.id
        for each in gpu.evidence
        if each.fault_key == act.fault_key and each.onset_ms <= act.last_seen_ms and each.last_seen_ms >= act.onset_ms
    )
    if not ids:
        raise RefusedMoveError(f"{gpu.gpu_uuid} has no evidence of {act.fault_key} to be dismissed")
    move = interventions.dismiss(gpu, ids, person=act.person, reason=act.reason, now_ms=now_ms, policy=policy)
    evidence = (replace(each, is_dismissed=True) if each.id in ids else each for each in gpu.evidence)
    return replace(gpu, evidence=tuple(evidence)), move


def _repaired(gpu: GpuCase, act: RepairEnded, policy: HealthPolicy, now_ms: int) -> tuple[GpuCase, Move | None]:
    move = None
    if act.outcome is RepairOutcome.DONE:
        interventions.require_faults_over(gpu, policy)
        move = interventions.finish_repair(gpu, actor=act.person, now_ms=now_ms, text=act.reason)
    elif act.outcome is RepairOutcome.FAILED:
        move = interventions.fail_repair(gpu, actor=act.person, now_ms=now_ms, text=act.reason)
    action = gpu.under_way or RepairAction.OTHER
    past = PastRepair(act.fault_group, act.began_ms, act.at_ms, act.outcome is RepairOutcome.DONE, action)
    return replace(gpu, under_way=None, repairs=(*gpu.repairs, past)), move


def _moving(gpu: GpuCase, act: Moving, now_ms: int) -> Move:
    if act.to is Standing.RETIRED:
        return interventions.retire(gpu, person=act.person, reason=act.reason, now_ms=now_ms)
    if act.to is Standing.UNPROVEN:
        return interventions.reinstate(gpu, person=act.person, reason=act.reason, now_ms=now_ms)
    return interventions.quarantine(gpu, person=act.person, reason=act.reason, now_ms=now_ms)
