"""The remedy that is due for a GPU: the action, its source, whether agent or person does it, and the next remedies.

The worst evidence against a GPU decides (``requested_remedy``). A remedy that was tried within the policy's window for
the same group of faults is not due again, whether it failed or did not last: the next of its ladder is. After the last
follows the replacement of the board, as it does once the attempts are used up. Evidence that names no remedy (an
unknown XID, a low score, a failed burn-in) gets one diagnosis at most, and otherwise a person decides.

For an XID that asks for a reset, with three attempts in the policy's window::

    tried                 due               then
    nothing               reset             reboot, field diagnosis, swap
    reset                 reboot            field diagnosis, swap
    reset, reboot         field diagnosis   swap
    three repairs         swap              nothing
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from health.remedy.fault_groups import fault_group_of
from health.remedy.requested_remedy import RequestedRemedy, requested_remedies
from health.standing.gpu_case import GpuCase, PastRepair, condemning_of
from health.standing.retirement import attempts_of, is_used_up, used_up_group
from muster.domain.evidence.repairs import VERB_OF_ACTION, RepairAction, RepairBy, RepairVerb, RequestedBy
from muster.domain.evidence.traits import FaultGroup
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing

_LADDER: Final = (RepairAction.RESET, RepairAction.REBOOT, RepairAction.FIELD_DIAGNOSIS)
_BUS_LADDER: Final = (
    RepairAction.RESET,
    RepairAction.REBOOT,
    RepairAction.POWER_CYCLE,
    RepairAction.FIELD_DIAGNOSIS,
)
"""The ladder of a GPU that fell off the bus. It may need a power cycle, which needs manual work."""
_RANK: Final = {action: rank for rank, action in enumerate((*_BUS_LADDER, RepairAction.SWAP))}
_AS_GOOD_AS: Final[Mapping[RepairAction, RepairAction]] = {
    RepairAction.DRIVER_RELOAD: RepairAction.RESET,
    RepairAction.POWER_CYCLE: RepairAction.REBOOT,
}
"""A remedy that is not in every ladder → the one that need not be tried after it."""
_REQUESTED_BY_TEXTS: Final[Mapping[RequestedBy, str]] = {
    RequestedBy.NVML: "the driver asks for it by NVML's recovery action",
    RequestedBy.XID_154: "the driver asks for it by XID 154",
    RequestedBy.CATALOGUE: "NVIDIA's XID catalogue asks for it",
    RequestedBy.RULE: "by rule",
}
_UNNAMED: Final = "no finding names a remedy"


@dataclass(frozen=True, slots=True)
class Remedy:
    """The remedy that is due for one GPU, and why.

    ``verb``: what the agent of its host does, where ``by`` is the agent; ``actor``: the same as text. ``evidence_ids``:
    the evidence that asks for it. ``num_tried``: repairs of ``fault_group`` that count already. ``then``: the next
    remedies should it fail or not last, in order; ``swap`` is the replacement of the board, which is proposed to a
    person.
    """

    action: RepairAction
    requested_by: RequestedBy
    by: RepairBy
    verb: RepairVerb | None
    actor: str
    fault_group: str
    why: str
    evidence_ids: tuple[EvidenceId, ...]
    num_tried: int
    then: tuple[RepairAction, ...]

    @property
    def text(self) -> str:
        """Return one line for people to read."""
        return f"{named(self.action)} by {self.actor}: {self.why} ({_REQUESTED_BY_TEXTS[self.requested_by]})"


def remedy_of(gpu: GpuCase, verbs: Collection[RepairVerb], now_ms: int, policy: HealthPolicy) -> Remedy | None:
    """Return the remedy that is due for a GPU that is SUSPECT or QUARANTINED; None where it only has to be watched.

    ``verbs``: what the agent of its host may do, by the host's own settings.
    """
    if gpu.standing not in {Standing.SUSPECT, Standing.QUARANTINED}:
        return None
    found = [(asked, _due(asked, gpu, now_ms, policy)) for asked in requested_remedies(gpu, now_ms, policy)]
    if found:
        asked, action = max(found, key=lambda each: (_RANK[each[1]], -each[0].evidence.onset_ms, each[0].evidence.id))
        if action is RepairAction.SWAP or _used_up(gpu, now_ms, policy) is None:
            return _of_requested(asked, action, gpu, verbs, now_ms, policy)
    return _unnamed(gpu, verbs, now_ms, policy)


def named(action: RepairAction) -> str:
    return action.replace("_", " ")


def _due(requested: RequestedRemedy, gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> RepairAction:
    """Return the step of its ladder after the last one that was tried."""
    if requested.action is RepairAction.SWAP or is_used_up(gpu, requested.group, now_ms, policy):
        return RepairAction.SWAP
    rungs = _rungs(requested)
    tried = {each.action for each in attempts_of(gpu, requested.group, now_ms, policy)}
    tried |= {_AS_GOOD_AS[each] for each in tried if each in _AS_GOOD_AS}
    above = max((number + 1 for number, rung in enumerate(rungs) if rung in tried), default=0)
    return rungs[above] if above < len(rungs) else RepairAction.SWAP


def _rungs(requested: RequestedRemedy) -> tuple[RepairAction, ...]:
    ladder = _BUS_LADDER if requested.group == FaultGroup.BUS else _LADDER
    return ladder[ladder.index(requested.action) :]


def _of_requested(
    requested: RequestedRemedy,
    action: RepairAction,
    gpu: GpuCase,
    verbs: Collection[RepairVerb],
    now_ms: int,
    policy: HealthPolicy,
) -> Remedy:
    attempts = attempts_of(gpu, requested.group, now_ms, policy)
    is_asked = action is requested.action
    why = (
        requested.evidence.summary
        if is_asked
        else f"{requested.evidence.summary}; {_in_vain(requested.group, attempts)}"
    )
    by, verb, who = _doer(action, verbs)
    return Remedy(
        action=action,
        requested_by=requested.by if is_asked else RequestedBy.RULE,
        by=by,
        verb=verb,
        actor=who,
        fault_group=requested.group,
        why=why,
        evidence_ids=(requested.evidence.id,),
        num_tried=len(attempts),
        then=_then(requested, action, len(attempts), policy),
    )


def _then(
    requested: RequestedRemedy, action: RepairAction, num_tried: int, policy: HealthPolicy
) -> tuple[RepairAction, ...]:
    """Return the remedies that the remaining attempts allow after this one, then the replacement."""
    if action is RepairAction.SWAP:
        return ()
    rungs = _rungs(requested)
    left = max(0, policy.repair.attempts_max - num_tried - 1)
    return (*rungs[rungs.index(action) + 1 :][:left], RepairAction.SWAP)


def _in_vain(group: str, attempts: Collection[PastRepair]) -> str:
    tried = " and ".join(dict.fromkeys(named(each.action) for each in attempts))
    return f"{tried or 'a repair'} for {group} did not last"


def _doer(action: RepairAction, verbs: Collection[RepairVerb]) -> tuple[RepairBy, RepairVerb | None, str]:
    verb = VERB_OF_ACTION.get(action)
    if verb is None:
        return RepairBy.PERSON, None, "a person, since it needs manual work"
    if verb not in verbs:
        return RepairBy.PERSON, None, f"a person, since its host does not allow its agent {verb}"
    return RepairBy.AGENT, verb, f"its agent ({verb})"


def _used_up(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> str | None:
    """Return the fault group for which a rule proposes the retirement of a QUARANTINED GPU."""
    return used_up_group(gpu, now_ms, policy) if gpu.standing is Standing.QUARANTINED else None


def _unnamed(gpu: GpuCase, verbs: Collection[RepairVerb], now_ms: int, policy: HealthPolicy) -> Remedy | None:
    """Return the replacement of a board whose repairs are used up; else one diagnosis of a QUARANTINED GPU."""
    if gpu.standing is not Standing.QUARANTINED:
        return None
    used_up = _used_up(gpu, now_ms, policy)
    group = used_up or fault_group_of(gpu)
    attempts = attempts_of(gpu, group, now_ms, policy)
    action = RepairAction.FIELD_DIAGNOSIS if used_up is None else RepairAction.SWAP
    if used_up is None and any(each.action is action for each in attempts):
        return None
    by, verb, who = _doer(action, verbs)
    return Remedy(
        action=action,
        requested_by=RequestedBy.RULE,
        by=by,
        verb=verb,
        actor=who,
        fault_group=group,
        why=_UNNAMED if used_up is None else _in_vain(group, attempts),
        evidence_ids=tuple(each.id for each in condemning_of(gpu)),
        num_tried=len(attempts),
        then=(),
    )
