"""Inspection of a simulated GPU: a healthy board of its profile, with the planted faults."""

from collections.abc import Iterable, Mapping
from typing import Final

from agents.probes.faults import GPU_COUNTERS, LINK_COUNTERS, Fault
from agents.probes.interface import WHOLE_GPU, GpuInspection
from agents.probes.profiles import HardwareProfile
from agents.probes.simulated_readings import is_lost_by
from muster.domain.evidence.state_readings import GPU_STATE
from muster.domain.ids import GpuUuid

_MS_PER_MINUTE: Final = 60_000
_MEMORY_MAX_C: Final = 95.0
_UNDER_SLOWDOWN_C: Final = 2.0
_REGISTERED: Final = 3
_BEFORE_AMPERE: Final = frozenset({"retired_pages_single_bit", "retired_pages_double_bit", "retired_pages_pending"})
"""Ampere and later remap rows; they retire no pages."""
_NOT_MODELLED: Final = frozenset(
    name for name in GPU_STATE if name.startswith(("idle_", "p2p_")) or name.endswith("_ber_exponent")
)
"""A simulated GPU has no profiling counters, reads no other's memory, and its links carry no bits."""
_FABRIC: Final = frozenset(
    {"fabric_state", "fabric_status", "fabric_health_bits", "fabric_health_summary", "fabric_clique"}
)


def simulated_inspection(
    profile: HardwareProfile,
    uuid: GpuUuid,
    index: int,
    faults: Iterable[Fault],
    now_ms: int,
    words: Mapping[str, str],
) -> GpuInspection:
    standing = tuple(faults)
    if any(is_lost_by(fault) for fault in standing):
        return GpuInspection(gpu_uuid=uuid, index=index, is_lost=True, faults={WHOLE_GPU: "GPU is lost (simulated)"})
    if any(fault.kind == "late" for fault in standing):
        late = "no answer within the deadline (simulated)"
        return GpuInspection(gpu_uuid=uuid, index=index, is_late=True, faults={WHOLE_GPU: late})
    state = _with_faults(profile, _healthy(profile), standing)
    unsupported = _BEFORE_AMPERE | _NOT_MODELLED | (frozenset() if profile.has_fabric_info else _FABRIC)
    return GpuInspection(
        gpu_uuid=uuid,
        index=index,
        state=state,
        words=words,
        counters={name: _count(standing, name, None, now_ms) for name in GPU_COUNTERS},
        link_counters={
            link: {name: _count(standing, name, link, now_ms) for name in LINK_COUNTERS}
            for link in range(profile.num_nvlinks)
        },
        alongside={
            "pcie_generation": profile.pcie_generation,
            "pcie_width": 16,
            "ecc_corrected_sram_total": _count(standing, "ecc_corrected_sram", None, now_ms),
            "ecc_corrected_dram_total": _count(standing, "ecc_corrected_dram", None, now_ms),
        },
        unsupported=unsupported - state.keys(),
    )


def _healthy(profile: HardwareProfile) -> dict[str, float]:
    zeros = (
        "sram_threshold_exceeded",
        "remap_banks_high",
        "remap_banks_partial",
        "remap_banks_low",
        "remap_banks_none",
        "unrepairable_memory",
        "mig_enabled",
        "nvlink_links_down",
        "nvlink_down_bits",
        "channel_repair_pending",
        "tpc_repair_pending",
        "nvlink_links_to_nothing",
        "nvlink_to_nothing_bits",
    )
    fabric = {**dict.fromkeys(_FABRIC, 0.0), "fabric_state": _REGISTERED} if profile.has_fabric_info else {}
    return {
        **dict.fromkeys(zeros, 0.0),
        "remap_banks_max": profile.remap_banks,
        "inforom_valid": 1,
        "ecc_enabled": 1,
        "persistence_enabled": 1,
        "power_limit_w": profile.power_limit_w,
        "default_power_limit_w": profile.power_limit_w,
        "application_clock_mhz": profile.busy_sm_clock_mhz,
        "default_application_clock_mhz": profile.busy_sm_clock_mhz,
        "temperature_slowdown_c": profile.slowdown_c,
        "temperature_max_c": profile.slowdown_c - _UNDER_SLOWDOWN_C,
        "memory_temperature_max_c": _MEMORY_MAX_C,
        "pcie_max_generation": profile.pcie_generation,
        "pcie_max_width": 16,
        "nvlink_links": profile.num_nvlinks,
        "nvlink_mb_per_s": profile.nvlink_mb_per_s,
        **fabric,
    }


def _with_faults(profile: HardwareProfile, state: dict[str, float], faults: Iterable[Fault]) -> dict[str, float]:
    for fault in faults:
        if fault.kind == "nvlink_down":
            num_down = min(profile.num_nvlinks, fault.count)
            state |= {"nvlink_links_down": num_down, "nvlink_down_bits": (1 << num_down) - 1}
        elif fault.kind == "state":
            state |= fault.values
    return state


def _count(faults: Iterable[Fault], name: str, link: int | None, now_ms: int) -> float:
    """Return the count: its rate a minute since the fault began; a fault without a time has not begun to count."""
    own = (fault for fault in faults if fault.kind == "rate" and fault.link == link)
    return sum(
        fault.values.get(name, 0.0) * max(0, now_ms - fault.at_ms) // _MS_PER_MINUTE for fault in own if fault.at_ms
    )
