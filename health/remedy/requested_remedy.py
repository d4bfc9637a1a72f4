"""Requested remedies: the actions that a GPU's faults ask for, with their source: driver, catalogue or own rule.

For an XID that asks for a reset or a reboot the driver's own request has precedence over the catalogue
(``xid.catalogue.action_of``): NVML's recovery action, then the text of an XID 154, where either was stated since the
fault began. The remaining ones are our own rules: a pending row remap and a corrupt InfoROM ask for a reset, a lost GPU
and one that does not answer for a reboot. Evidence that names no action asks for none: no unknown code resets or
reboots anything.

Sources: NVIDIA's XID catalogue and memory error guide; DCGM and NVSentinel's mapping of it for faults without an XID.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from health.detectors.gpu import freshness, gpu_lost, inforom, recovery_action, xid
from health.detectors.links import fabric_state, nvlink_count, nvlink_down
from health.detectors.memory import ecc_uncorrected, retired_pages, row_remap, sram_threshold
from health.detectors.repeats import after_diagnosis, link_bit_repeats, special_rules
from health.evidence.same_fault import requested_action_in
from health.evidence.state import CODE, counts, is_open, lasts
from health.evidence.suppression import OVERRULED
from health.standing.gpu_case import GpuCase, condemning_of, proofs_of
from health.standing.interventions import quarantining_move
from health.standing.retirement import requires_replacement
from health.xid.catalogue import action_of, entry_of
from health.xid.nvlink import NVLINK5_CODES
from health.xid.recovery import OF_THE_DRIVER, Action
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.evidence.repairs import RepairAction, RequestedBy
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing

_REPAIR_OF_ACTION: Final[Mapping[Action, RepairAction]] = {
    Action.DRAIN_AND_RESET: RepairAction.RESET,
    Action.RESET_GPU: RepairAction.RESET,
    Action.REBOOT_NODE: RepairAction.REBOOT,
    Action.FIELD_DIAGNOSIS: RepairAction.FIELD_DIAGNOSIS,
    Action.REPLACE: RepairAction.SWAP,
}
"""Repairs of a board. The restart of a job, a drain of links and watching are no repair."""
_ACTION_OF_RULE: Final[Mapping[str, Action]] = {
    **dict.fromkeys((row_remap.PENDING, retired_pages.PENDING, inforom.NAME, ecc_uncorrected.NAME), Action.RESET_GPU),
    **dict.fromkeys((nvlink_count.NAME, nvlink_down.NAME, nvlink_down.TO_NOTHING, fabric_state.NAME), Action.RESET_GPU),
    **dict.fromkeys((gpu_lost.NAME, freshness.UNRESPONSIVE, special_rules.GSP_REBOOT), Action.REBOOT_NODE),
    **dict.fromkeys((sram_threshold.NAME, link_bit_repeats.NAME, after_diagnosis.OF_PROGRAMS), Action.FIELD_DIAGNOSIS),
}
"""Fault key, or detector, of a fault without an XID → the requested action."""


@dataclass(frozen=True, slots=True)
class RequestedRemedy:
    """A requested remedy. ``group``: of the fault that it repairs; attempts count by it."""

    evidence: Evidence
    action: RepairAction
    by: RequestedBy
    group: str


def requested_remedies(gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> tuple[RequestedRemedy, ...]:
    """Return the repairs that a GPU's evidence requests: the condemning evidence, else all evidence against it."""
    live = [each for each in gpu.evidence if _is_live(each, gpu, now_ms, policy)]
    condemning = condemning_of(gpu)
    for told in ([each for each in live if each in condemning], live):
        found = tuple(asked for each in told if (asked := _requested(each, live)) is not None)
        if found:
            hints = (each for each in live if each.fault_key == special_rules.GSP_REBOOT and each not in told)
            return (*found, *(asked for each in hints if (asked := _requested(each, live)) is not None))
    return ()


def _is_live(evidence: Evidence, gpu: GpuCase, now_ms: int, policy: HealthPolicy) -> bool:
    """Return whether it counts against the GPU: measured by us, not over, and stated since the newest proof.

    Evidence that no longer weighs counts as long as the quarantine that it caused.
    """
    is_hint = evidence.fault_key == special_rules.GSP_REBOOT
    is_bad = evidence.severity >= Severity.DEGRADED or is_hint
    if not (is_bad and counts(evidence) and evidence.trust is Trust.MEASURED and is_open(evidence)):
        return False
    proofs = proofs_of(gpu)
    if proofs is not None and proofs.answer(evidence):
        return False
    stands = lasts(evidence) or evidence.detector in policy.evidence.standing_detectors
    if stands or is_hint or evidence.severity is Severity.CONDEMNING:
        return True
    return now_ms < evidence.last_seen_ms + evidence.counts_for_ms or evidence.id in _quarantined_for(gpu)


def _quarantined_for(gpu: GpuCase) -> tuple[EvidenceId, ...]:
    move = quarantining_move(gpu) if gpu.standing is Standing.QUARANTINED else None
    return () if move is None else move.evidence_ids


def _requested(evidence: Evidence, live: Collection[Evidence]) -> RequestedRemedy | None:
    word = word_of(evidence, live)
    action = None if word is None else _REPAIR_OF_ACTION.get(word[0])
    if word is None or action is None:
        return None
    is_drivers = requested_action_in(evidence.fault_key) is not None
    return RequestedRemedy(
        evidence, action, word[1], _group_of_word(evidence, live) if is_drivers else evidence.traits.group
    )


def word_of(evidence: Evidence, live: Collection[Evidence]) -> tuple[Action, RequestedBy] | None:
    """Return the requested action and its source; None where no source names one.

    ``live``: the evidence against its GPU.
    """
    asked = requested_action_in(evidence.fault_key)
    if asked is not None:
        return asked, _speaker(evidence)
    code = evidence.values.get(CODE)
    if code is not None and evidence.detector == xid.NAME:
        return _of_xid(int(code), evidence, live)
    if requires_replacement(evidence):
        return Action.REPLACE, RequestedBy.RULE
    if code is not None and entry_of(int(code)).action in _REPAIR_OF_ACTION:
        return _of_xid(int(code), evidence, live)
    action = _ACTION_OF_RULE.get(evidence.fault_key) or _ACTION_OF_RULE.get(evidence.detector)
    return None if action is None else (action, RequestedBy.RULE)


def _of_xid(code: int, evidence: Evidence, live: Collection[Evidence]) -> tuple[Action, RequestedBy]:
    action = _in_the_catalogue(code, evidence)
    if action not in OF_THE_DRIVER:
        return action, RequestedBy.CATALOGUE
    said = (
        {*_REPAIR_OF_ACTION, Action.DRAIN_P2P}
        if not OVERRULED.isdisjoint(evidence.suppressed_by)
        else _REPAIR_OF_ACTION
    )
    since = [
        each for each in live if requested_action_in(each.fault_key) in said and each.last_seen_ms >= evidence.onset_ms
    ]
    nvml = [each for each in since if _speaker(each) is RequestedBy.NVML]
    if since:
        word = max(nvml or since, key=lambda each: (each.last_seen_ms, each.id))
        told = requested_action_in(word.fault_key)
        return action_of(code, nvml=told if nvml else None, xid_154=None if nvml else told), _speaker(word)
    return action, RequestedBy.NVML if recovery_action.REQUESTED_ACTION in evidence.values else RequestedBy.CATALOGUE


def _in_the_catalogue(code: int, evidence: Evidence) -> Action:
    """Return the catalogue's action, for an NVLink error by the severity that its own text decided."""
    if xid.NEEDS_DIAGNOSIS in evidence.values:
        return Action.FIELD_DIAGNOSIS
    if code in NVLINK5_CODES and evidence.severity is Severity.CONDEMNING:
        return Action.RESET_GPU
    return entry_of(code).action


def _speaker(word: Evidence) -> RequestedBy:
    is_nvml = word.detector == recovery_action.NAME or recovery_action.REQUESTED_ACTION in word.values
    return RequestedBy.NVML if is_nvml else RequestedBy.XID_154


def _group_of_word(word: Evidence, live: Collection[Evidence]) -> str:
    """Return the group of the fault for which the driver requests an action.

    It is the oldest fault that condemns and is no such request itself.
    """
    faults = [
        each for each in live if requested_action_in(each.fault_key) is None and each.severity is Severity.CONDEMNING
    ]
    oldest = min(faults, key=lambda each: (each.onset_ms, each.id), default=word)
    return oldest.traits.group
