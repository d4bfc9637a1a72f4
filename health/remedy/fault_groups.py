"""Fault groups: faults that have one remedy are one group, and a board's repairs are counted by it."""

from collections.abc import Mapping
from typing import Final

from health.detectors.gpu import freshness, gpu_lost, inforom, recovery_action
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
from health.standing.gpu_case import GpuCase, condemning_of
from muster.domain.evidence.findings import Evidence

MEMORY: Final = "memory"
BUS: Final = "bus"
LINK: Final = "link"
CLOCKS: Final = "clocks"
DRIVER: Final = "driver"
OTHER: Final = "other"

_OF_DETECTOR: Final[Mapping[str, str]] = {
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
        MEMORY,
    ),
    **dict.fromkeys((gpu_lost.NAME, "bus_repeats", pcie_link.NAME, pcie_replays.NAME, pcie_errors.NAME), BUS),
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
        LINK,
    ),
    **dict.fromkeys((clock_events.NAME, throttle_seconds.NAME, heat.TEMPERATURE, heat.MARGIN), CLOCKS),
    **dict.fromkeys((recovery_action.NAME, freshness.NAME, inforom.NAME, "gsp_repeats", "reset_repeats"), DRIVER),
}
_OF_XID: Final[Mapping[int, str]] = {
    **dict.fromkeys((48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 168, 171, 172), MEMORY),
    **dict.fromkeys((79, 167), BUS),
    **dict.fromkeys((74, 136, *range(144, 151), 155, 166, 170), LINK),
    **dict.fromkeys((46, 61, 62, 109, 110, 119, 120, 143, 151, 158, 169), DRIVER),
}
"""NVIDIA's XID catalogue, by the part that it names."""


def fault_group_of(gpu: GpuCase) -> str:
    """Return the group of the oldest evidence that condemns it, else of the evidence seen last, else ``other``."""
    against = condemning_of(gpu) or tuple(sorted(gpu.evidence, key=lambda each: (-each.last_seen_ms, each.id)))
    return group_of(against[0]) if against else OTHER


def group_of(evidence: Evidence) -> str:
    code = evidence.values.get("code")
    if evidence.detector == "xid" and code is not None:
        return _OF_XID.get(int(code), OTHER)
    return _OF_DETECTOR.get(evidence.detector, OTHER)
