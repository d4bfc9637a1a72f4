"""When a board is past repair: its repairs are used up, or a finding says that it is to be replaced.

A rule proposes; a person retires it (``health.interventions.retire``), or the rule where the policy allows.
"""

from typing import Final

from health.detectors import retired_pages, row_remap, unrepairable_memory
from health.detectors.repeats.rules import HOLDS
from health.gpu_case import GpuCase, Move, MoveReason, condemning_of, move_to
from health.xid.catalogue import entry_of
from health.xid.recovery import Action
from muster.domain.evidence import Evidence
from muster.domain.health_policy import HealthPolicy
from muster.domain.states import Standing

_REPLACING: Final = frozenset(
    {row_remap.FAILURE, row_remap.EXHAUSTED, retired_pages.USED_UP, unrepairable_memory.NAME, *HOLDS}
)


def retirement_of(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> Move | None:
    """The proposal to retire a GPU that is QUARANTINED or in REPAIR, or None."""
    if gpu.standing not in {Standing.QUARANTINED, Standing.REPAIR}:
        return None
    replacing = tuple(each.id for each in condemning_of(gpu) if _asks_for_replacement(each))
    if replacing:
        return move_to(gpu, Standing.RETIRED, MoveReason.TO_BE_REPLACED, now_ms, evidence_ids=replacing)
    group = used_up_group(gpu, now_ms, policy)
    if group is None:
        return None
    words = f"{policy.repair.attempts_max} repairs of {group} in {policy.repair.attempts_window_s / 86_400:g} days"
    return move_to(gpu, Standing.RETIRED, MoveReason.REPAIRS_USED_UP, now_ms, words=words)


def used_up_group(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> str | None:
    """The fault group whose repairs are used up: as many as the policy allows began within its window."""
    from_ms = now_ms - int(policy.repair.attempts_window_s * 1000)
    counts: dict[str, int] = {}
    for repair in gpu.repairs:
        if from_ms < repair.began_ms <= now_ms:
            counts[repair.fault_group] = counts.get(repair.fault_group, 0) + 1
    return min((group for group, count in counts.items() if count >= policy.repair.attempts_max), default=None)


def used_up_until_ms(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> int | None:
    """When repairs that are used up now are so few again, by time alone, that one more may begin."""
    group, window_ms = used_up_group(gpu, now_ms, policy), int(policy.repair.attempts_window_s * 1000)
    if group is None:
        return None
    began = sorted(each.began_ms for each in gpu.repairs if each.fault_group == group and each.began_ms <= now_ms)
    return began[-policy.repair.attempts_max] + window_ms


def _asks_for_replacement(evidence: Evidence) -> bool:
    if evidence.fault_key in _REPLACING:
        return True
    code = evidence.values.get("code")
    return evidence.detector == "xid" and code is not None and entry_of(int(code)).action is Action.REPLACE
