"""What a repair is for: faults that have one remedy are one group, and a board's repairs are counted by it."""

from collections.abc import Mapping
from typing import Final

from health.detectors import clock_events, ecc_uncorrected, gpu_lost, recovery_action, row_remap
from health.gpu_case import GpuCase, condemning_of
from muster.domain.evidence import Evidence

MEMORY: Final = "memory"
BUS: Final = "bus"
LINK: Final = "link"
CLOCKS: Final = "clocks"
DRIVER: Final = "driver"
OTHER: Final = "other"

_OF_DETECTOR: Final[Mapping[str, str]] = {
    ecc_uncorrected.NAME: MEMORY,
    row_remap.NAME: MEMORY,
    row_remap.RISE: MEMORY,
    gpu_lost.NAME: BUS,
    recovery_action.NAME: DRIVER,
    clock_events.NAME: CLOCKS,
}
_OF_XID: Final[Mapping[int, str]] = {
    **dict.fromkeys((48, 63, 64, 92, 94, 95, 140, 171, 172), MEMORY),
    **dict.fromkeys((79,), BUS),
    **dict.fromkeys((74, *range(144, 151)), LINK),
    **dict.fromkeys((61, 62, 109, 110, 119, 120, 143), DRIVER),
}
"""NVIDIA's XID catalogue, by the part that it names."""


def fault_group_of(gpu: GpuCase) -> str:
    """The group of what condemns it, the oldest first; else of the evidence seen last; ``other`` without any."""
    against = condemning_of(gpu) or tuple(sorted(gpu.evidence, key=lambda each: (-each.last_seen_ms, each.id)))
    return _group_of(against[0]) if against else OTHER


def _group_of(evidence: Evidence) -> str:
    code = evidence.values.get("code")
    if evidence.detector == "xid" and code is not None:
        return _OF_XID.get(int(code), OTHER)
    return _OF_DETECTOR.get(evidence.detector, OTHER)
