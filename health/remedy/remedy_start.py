"""Start of remedies: whether a rule starts the due remedy, and if not, what it waits for or why a person has to.

A rule orders verbs of a host's agent, nothing else: where only a person can act, ``needs_person`` states it, and no
ticket is opened in anybody's name. A rule never disturbs running programs. It never exceeds the attempts of a board or
the caps of the policy, and never acts against an open breaker or where a person holds the GPU or its host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from health.remedy.remedy import Remedy
from health.standing.gpu_case import GpuCase
from health.standing.retirement import retirement_of
from muster.domain.evidence.repairs import HOST_SCOPE, RepairAction, RepairBy
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing


@dataclass(frozen=True, slots=True)
class Around:
    """Conditions around a GPU as text; None where there is none.

    ``holder``: what holds it. ``host_holder``: what holds or reserves any GPU of its host. ``burn_in``: its burn-in
    that is not decided. ``host_burn_in``: one that runs on its host. ``open_repair``: any other on its host.
    ``blocked_by``: a person's decision, or a cordon that stands or begins before the repair would have ended.
    ``open_scope``: of the breaker, one that counts it. ``full_scopes``: those in which its host has no place, where the
    repair keeps work off the whole host. ``num_fleet``, ``num_rack``: agents' repairs that are open.
    """

    holder: str | None = None
    host_holder: str | None = None
    burn_in: str | None = None
    host_burn_in: str | None = None
    open_repair: str | None = None
    blocked_by: str | None = None
    open_scope: str | None = None
    full_scopes: Sequence[str] | None = None
    num_fleet: int = 0
    num_rack: int = 0


def needs_person(gpu: GpuCase, remedy: Remedy | None, now_ms: int, policy: HealthPolicy) -> str | None:
    """Return as text why only a person can repair a QUARANTINED GPU; None where a rule may, now or later.

    None too where its retirement is proposed or made by a rule already: that is reported by itself.
    """
    if gpu.standing is not Standing.QUARANTINED or retirement_of(gpu, now_ms, policy) is not None:
        return None
    if remedy is None:
        return "no finding names a remedy, and it was diagnosed: check its evidence, or burn it in"
    if remedy.action is RepairAction.SWAP:
        return f"{remedy.text}: have the board replaced and retire it"
    if remedy.by is RepairBy.PERSON:
        return remedy.text
    if remedy.verb not in policy.repair.starts_by_rule:
        return f"{remedy.text}; no rule may start it (health.repair.starts_by_rule)"
    return None


def overdue_for_person(
    gpu: GpuCase, remedy: Remedy | None, now_ms: int, policy: HealthPolicy, *, after_ms: int
) -> str | None:
    """Return as text why a person has to act on a GPU that has waited for its repair for ``after_ms``; None: not yet.

    None too where its retirement is proposed or made by a rule already: that is reported by itself.
    """
    if now_ms - gpu.since_ms < after_ms or retirement_of(gpu, now_ms, policy) is not None:
        return None
    if gpu.standing is Standing.SUSPECT:
        return None if remedy is None else f"{remedy.text}; it is SUSPECT, and no repair begins before its quarantine"
    if gpu.standing is not Standing.QUARANTINED:
        return None
    if remedy is not None and remedy.verb in policy.repair.starts_by_rule:
        return f"{remedy.text}; a rule may start it, and has not"
    return needs_person(gpu, remedy, now_ms, policy)


def waits_for(gpu: GpuCase, remedy: Remedy, around: Around, now_ms: int, policy: HealthPolicy) -> str | None:
    """Return as text why a rule does not start ``remedy`` now; None: it does."""
    if gpu.standing is not Standing.QUARANTINED:
        return f"it is {gpu.standing}"
    if remedy.verb is None or remedy.verb not in policy.repair.starts_by_rule:
        return f"no rule may start {remedy.action}"
    if not gpu.has_contact:
        return "its host is silent"
    if retirement_of(gpu, now_ms, policy) is not None:
        return "it is past repair"
    return around.blocked_by or _busy(remedy, around) or _full(around, policy)


def _busy(remedy: Remedy, around: Around) -> str | None:
    is_felt_by_all = remedy.verb in HOST_SCOPE
    on_host = (around.host_holder or around.host_burn_in) if is_felt_by_all else None
    return around.holder or around.burn_in or around.open_repair or on_host


def _full(around: Around, policy: HealthPolicy) -> str | None:
    if around.open_scope is not None:
        return f"the breaker's scope {around.open_scope} is open"
    if around.full_scopes:
        words = ", ".join(around.full_scopes)
        return f"it keeps work off its whole host, and rules have taken out too much in {words} for that"
    if around.num_fleet >= policy.repair.by_rule_fleet_max:
        return f"{around.num_fleet} repairs by agents are open in the fleet"
    if around.num_rack >= policy.repair.by_rule_rack_max:
        return f"{around.num_rack} repairs by agents are open in its rack"
    return None
