"""The recovery action that the driver itself requests: NVML's field, and the text of XID 154 (since driver R565)."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from muster.domain.evidence.findings import Severity


class Action(StrEnum):
    """The action that a fault calls for, by an agent or a person."""

    NONE = "none"
    RESTART_JOB = "restart_job"
    MONITOR = "monitor"
    DRAIN_P2P = "drain_p2p"
    DRAIN_AND_RESET = "drain_and_reset"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    FIELD_DIAGNOSIS = "field_diagnosis"
    REPLACE = "replace"


_BY_NVML: Final[Mapping[int, Action]] = {
    0: Action.NONE,
    1: Action.RESET_GPU,
    2: Action.REBOOT_NODE,
    3: Action.DRAIN_P2P,
    4: Action.DRAIN_AND_RESET,
    5: Action.MONITOR,
    6: Action.RESET_GPU,
    7: Action.REBOOT_NODE,
}
"""``nvmlDeviceGpuRecoveryAction_t`` as of nvidia-ml-py 13.615; XID 154 has the same numbers in its text.

5 asks for the recovery of IMEX, a service apart from the GPUs: no GPU is out for that. 6 is a reset of the GPU's bus, 7
a reboot of the system.
"""

_BY_WORDS: Final[Mapping[str, Action]] = {
    "none": Action.NONE,
    "gpu reset required": Action.RESET_GPU,
    "node reboot required": Action.REBOOT_NODE,
    "drain p2p": Action.DRAIN_P2P,
    "drain and reset": Action.DRAIN_AND_RESET,
}

_CHANGED_TO: Final = re.compile(r"\bto\s+(0x[0-9a-f]+)?\s*\(([^)]*)\)", re.IGNORECASE)

OF_THE_DRIVER: Final = frozenset({Action.RESET_GPU, Action.REBOOT_NODE})
"""Actions that a driver may request where the catalogue has another: it never requests manual work on the hardware."""
SEVERITY_OF: Final[Mapping[Action, Severity]] = {
    Action.NONE: Severity.INFO,
    Action.RESTART_JOB: Severity.INFO,
    Action.MONITOR: Severity.WARNING,
    Action.DRAIN_P2P: Severity.DEGRADED,
    Action.DRAIN_AND_RESET: Severity.DEGRADED,
    Action.RESET_GPU: Severity.CONDEMNING,
    Action.REBOOT_NODE: Severity.CONDEMNING,
    Action.FIELD_DIAGNOSIS: Severity.CONDEMNING,
    Action.REPLACE: Severity.CONDEMNING,
}
"""The severity of a fault for which the driver, or an error's own text, requests an action.

Draining lets running programs end: that is SUSPECT, not QUARANTINED.
"""


def action_of_nvml(value: float) -> Action:
    """Return NVML's number as an action. An unknown number is watched: it never resets or reboots anything."""
    return _BY_NVML.get(int(value), Action.MONITOR)


def action_of_xid_154(text: str) -> Action | None:
    """Return the action that the text of an XID 154 changes *to*; None where it has none (as from NVML's event).

    Kernel log: ``… GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)``.
    """
    found = _CHANGED_TO.search(text)
    if found is None:
        return None
    number, words = found.groups()
    known = _BY_WORDS.get(words.strip().lower())
    if known is not None:
        return known
    return action_of_nvml(int(number, 16)) if number is not None else Action.MONITOR
