"""Boards past repair: their repairs are used up, or a finding asks for their replacement.

A rule proposes; a person retires it (``health.standing.interventions.retire``), or the rule where the policy allows.
"""

from health.evidence.state import CODE
from health.standing.gpu_case import GpuCase, Move, MoveReason, PastRepair, condemning_of, move_to
from health.xid.catalogue import entry_of
from health.xid.recovery import Action
from muster.domain.evidence.findings import Evidence
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing


def retirement_of(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    """Return the proposal to retire a GPU that is QUARANTINED or in REPAIR, or None."""
    if gpu.standing not in {Standing.QUARANTINED, Standing.REPAIR}:
        return None
    replacing = tuple(each.id for each in condemning_of(gpu) if requires_replacement(each))
    if replacing:
        return move_to(gpu, Standing.RETIRED, MoveReason.TO_BE_REPLACED, now_ms, evidence_ids=replacing)
    group = used_up_group(gpu, now_ms, policy)
    if group is None:
        return None
    words = f"{policy.repair.attempts_max} repairs of {group} in {policy.repair.attempts_window_s / 86_400:g} days"
    return move_to(gpu, Standing.RETIRED, MoveReason.REPAIRS_USED_UP, now_ms, text=words)


def used_up_group(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> str | None:
    """Return a fault group whose repairs are used up: as many as the policy allows began within its window."""
    groups = {repair.fault_group for repair in gpu.repairs}
    return min((group for group in groups if is_used_up(gpu, group, now_ms, policy)), default=None)


def is_used_up(gpu: GpuCase, group: str, now_ms: int, policy: HealthPolicy) -> bool:
    return len(attempts_of(gpu, group, now_ms, policy)) >= policy.repair.attempts_max


def attempts_of(gpu: GpuCase, group: str, now_ms: int, policy: HealthPolicy) -> tuple[PastRepair, ...]:
    """Return the board's repairs of a fault group that began within the policy's window."""
    from_ms = now_ms - int(policy.repair.attempts_window_s * 1000)
    return tuple(each for each in gpu.repairs if each.fault_group == group and from_ms < each.began_ms <= now_ms)


def used_up_until_ms(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> int | None:
    """Return when time alone allows one more repair where repairs are used up now."""
    group, window_ms = used_up_group(gpu, now_ms, policy), int(policy.repair.attempts_window_s * 1000)
    if group is None:
        return None
    began = sorted(each.began_ms for each in gpu.repairs if each.fault_group == group and each.began_ms <= now_ms)
    return began[-policy.repair.attempts_max] + window_ms


def requires_replacement(evidence: Evidence) -> bool:
    if evidence.traits.needs_replacement:
        return True
    code = evidence.values.get(CODE)
    return evidence.detector == "xid" and code is not None and entry_of(int(code)).action is Action.REPLACE
