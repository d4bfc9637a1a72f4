"""Repairs of GPUs: what is done, and how it ended."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final


class RepairAction(StrEnum):
    RESET = "reset"
    DRIVER_RELOAD = "driver_reload"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    FIELD_DIAGNOSIS = "field_diagnosis"
    SWAP = "swap"
    OTHER = "other"


class RepairOutcome(StrEnum):
    """The outcome of a repair. CONDEMNED: new condemning evidence came during it."""

    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CONDEMNED = "condemned"
    RETIRED = "retired"


class RepairVerb(StrEnum):
    """All that an agent does to repair a GPU. There is no other, and none takes an argument but the GPU."""

    GPU_RESET = "gpu_reset"
    DRIVER_RELOAD = "driver_reload"
    REBOOT = "reboot"
    DIAGNOSIS = "diagnosis"


class RepairBy(StrEnum):
    """The executor of a repair: a person, or the agent of the GPU's host."""

    PERSON = "person"
    AGENT = "agent"


class RequestedBy(StrEnum):
    """The source of a requested remedy.

    RULE: our own rule, where neither the driver nor NVIDIA's catalogue names a remedy.
    """

    NVML = "nvml"
    XID_154 = "xid_154"
    CATALOGUE = "catalogue"
    RULE = "rule"


class RepairState(StrEnum):
    """ORDERED: it waits for its host's agent."""

    ORDERED = "ordered"
    UNDER_WAY = "under_way"
    ENDED = "ended"


VERB_OF_ACTION: Final[Mapping[RepairAction, RepairVerb]] = {
    RepairAction.RESET: RepairVerb.GPU_RESET,
    RepairAction.DRIVER_RELOAD: RepairVerb.DRIVER_RELOAD,
    RepairAction.REBOOT: RepairVerb.REBOOT,
    RepairAction.FIELD_DIAGNOSIS: RepairVerb.DIAGNOSIS,
}
"""Verb by which an agent carries out an action; an action without a verb needs hands."""
HOST_SCOPE: Final = frozenset({RepairVerb.DRIVER_RELOAD, RepairVerb.REBOOT})
"""Verbs that affect every GPU of the host: no program may run there meanwhile."""


def known_verbs(reported: Iterable[str]) -> frozenset[RepairVerb]:
    """Return the known verbs among the verbs that a host reported: a newer agent may have others."""
    words = frozenset(reported)
    return frozenset(verb for verb in RepairVerb if verb in words)


def state_of(*, has_ended: bool, verb: str | None, is_taken: bool) -> RepairState:
    """Return the state of a repair. A person's repair is in progress from its start."""
    if has_ended:
        return RepairState.ENDED
    return RepairState.ORDERED if verb is not None and not is_taken else RepairState.UNDER_WAY
