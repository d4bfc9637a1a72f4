"""Which fault keys tell of one and the same fault: what the driver logs, and the reading in which it shows.

Source: NVIDIA's XID catalogue and memory error guide.
"""

from collections.abc import Mapping
from typing import Final

from health.detectors import ecc_uncorrected, gpu_lost, recovery_action, row_remap

_SHOWS_AS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("xid:48", "xid:94", "xid:95", "xid:140", "xid:171", "xid:172"), ecc_uncorrected.NAME),
    "xid:63": row_remap.REMAPPED,
    "xid:64": row_remap.FAILURE,
    "xid:79": gpu_lost.NAME,
}
_ACTION_ASKED: Final = "xid:154:"


def shows_as(fault_key: str) -> str:
    """The key under which a sample tells of the same fault; the key itself where no sample does."""
    if fault_key.startswith(_ACTION_ASKED):
        return f"{recovery_action.NAME}:{fault_key.removeprefix(_ACTION_ASKED)}"
    return _SHOWS_AS.get(fault_key, fault_key)
