"""Fault keys of one and the same fault: the driver's log entry, and the reading that shows it.

Source: NVIDIA's XID catalogue and memory error guide. The driver's request for an action after a fault is no fault of
its own where the catalogue lists that action as the fault's remedy.
"""

from collections.abc import Mapping
from typing import Final

from health.detectors.gpu import freshness, gpu_lost, recovery_action, xid
from health.detectors.links import fabric_health, fabric_state, nvlink_count, nvlink_down, p2p
from health.detectors.memory import ecc_uncorrected, row_remap
from health.xid.catalogue import entry_of
from health.xid.reading import RECOVERY_ACTION_CHANGED
from health.xid.recovery import Action

_SHOWS_AS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("xid:48", "xid:94", "xid:95", "xid:140", "xid:171", "xid:172"), ecc_uncorrected.NAME),
    "xid:63": row_remap.REMAPPED,
    "xid:64": row_remap.FAILURE,
    "xid:79": gpu_lost.NAME,
}
FABRIC: Final = "nvlink_fabric"
_OF_THE_FABRIC: Final = frozenset(
    {nvlink_count.NAME, nvlink_down.NAME, nvlink_down.TO_NOTHING, p2p.NAME, fabric_state.NAME, fabric_health.NAME}
)
_XID: Final = f"{xid.NAME}:"
_ACTION_REPORTED: Final = f"{_XID}{RECOVERY_ACTION_CHANGED}:"
_ACTION_REQUESTED: Final = f"{recovery_action.NAME}:"


def are_one(first: str, second: str) -> bool:
    """Return whether two fault keys, stated of one GPU about the same time, are of one fault."""
    first, second = shows_as(first), shows_as(second)
    return first == second or _is_requested(first, second) or _is_requested(second, first)


def shows_as(fault_key: str) -> str:
    """Return the key under which a sample shows the same fault; the key itself where no sample does."""
    if fault_key.startswith(_ACTION_REPORTED):
        return _ACTION_REQUESTED + fault_key.removeprefix(_ACTION_REPORTED)
    return _SHOWS_AS.get(fault_key, fault_key)


def requested_action_in(fault_key: str) -> Action | None:
    """Return the action that the driver requests in a fault of this key; None for another kind of fault."""
    shown = shows_as(fault_key)
    return Action(shown.removeprefix(_ACTION_REQUESTED)) if shown.startswith(_ACTION_REQUESTED) else None


def weighs_as(fault_key: str) -> str:
    """Return the key that standing faults share where they weigh as one, though each ends by itself."""
    if fault_key in freshness.READINGS_FAULTS:
        return freshness.LATE
    return FABRIC if fault_key.partition(":")[0] in _OF_THE_FABRIC else fault_key


def _is_requested(requested: str, fault: str) -> bool:
    """Return whether ``requested`` is an action that the driver requests, and the remedy of ``fault``."""
    return requested.startswith(_ACTION_REQUESTED) and requested.removeprefix(_ACTION_REQUESTED) in _remedies_of(fault)


def _remedies_of(fault: str) -> frozenset[str]:
    """Return the actions that the catalogue lists for a fault of this key; none where no XID states it."""
    codes = [key for key, shown in _SHOWS_AS.items() if shown == fault] or [fault]
    return frozenset(entry_of(int(key.removeprefix(_XID))).action for key in codes if key.startswith(_XID))
