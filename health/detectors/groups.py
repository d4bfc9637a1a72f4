"""The fault group of each detector and XID: the part of the GPU that its faults are in."""

from collections.abc import Mapping
from typing import Final

from health.detectors.gpu import freshness, gpu_lost, inforom, recovery_action, xid
from health.detectors.links import (
    fabric_health,
    fabric_state,
    nvlink_count,
    nvlink_down,
    nvlink_errors,
    p2p,
    pcie_errors,
    pcie_link,
    pcie_replays,
)
from health.detectors.load import clock_events, heat, throttle_seconds
from health.detectors.memory import (
    corrected_errors,
    corrected_remaps,
    ecc_history,
    ecc_uncorrected,
    remap_banks,
    retired_pages,
    row_remap,
    sram_threshold,
    unrepairable_memory,
)
from muster.domain.evidence.traits import FaultGroup

_OF_DETECTOR: Final[Mapping[str, FaultGroup]] = {
    **dict.fromkeys(
        (
            ecc_uncorrected.NAME,
            ecc_history.NAME,
            row_remap.NAME,
            row_remap.RISE,
            sram_threshold.NAME,
            remap_banks.NAME,
            retired_pages.NAME,
            unrepairable_memory.NAME,
            corrected_errors.NAME,
            corrected_remaps.NAME,
        ),
        FaultGroup.MEMORY,
    ),
    **dict.fromkeys(
        (gpu_lost.NAME, "bus_repeats", pcie_link.NAME, pcie_replays.NAME, pcie_errors.NAME), FaultGroup.BUS
    ),
    **dict.fromkeys(
        (
            nvlink_count.NAME,
            nvlink_down.NAME,
            nvlink_down.TO_NOTHING,
            p2p.NAME,
            nvlink_errors.CRC,
            nvlink_errors.WINDOWS,
            fabric_state.NAME,
            fabric_health.NAME,
            "link_bit_repeats",
        ),
        FaultGroup.LINK,
    ),
    **dict.fromkeys((clock_events.NAME, throttle_seconds.NAME, heat.TEMPERATURE, heat.MARGIN), FaultGroup.CLOCKS),
    **dict.fromkeys(
        (recovery_action.NAME, freshness.NAME, inforom.NAME, "gsp_repeats", "reset_repeats"), FaultGroup.DRIVER
    ),
}
_OF_XID: Final[Mapping[int, FaultGroup]] = {
    **dict.fromkeys((48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 168, 171, 172), FaultGroup.MEMORY),
    **dict.fromkeys((79, 167), FaultGroup.BUS),
    **dict.fromkeys((74, 136, *range(144, 151), 155, 166, 170), FaultGroup.LINK),
    **dict.fromkeys((46, 61, 62, 109, 110, 119, 120, 143, 151, 158, 169), FaultGroup.DRIVER),
}
"""NVIDIA's XID catalogue, by the part that it names."""


def group_of_fault(detector: str, fault_key: str) -> FaultGroup:
    """Return the group of a fault; OTHER where it is in none. The key of an XID's fault has the code in it."""
    if detector == xid.NAME:
        code = fault_key.split(":")[1:2]
        return _OF_XID.get(int(code[0]), FaultGroup.OTHER) if code and code[0].isdecimal() else FaultGroup.OTHER
    return _OF_DETECTOR.get(detector, FaultGroup.OTHER)
