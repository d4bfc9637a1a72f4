"""Readings of a simulated GPU: a function of profile, seed, time and faults; the same run gives the same values."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from agents.probes.faults import Fault
from agents.probes.profiles import HardwareProfile

PERIOD_S: Final = 1_200.0
BUSY_S: Final = 840.0
"""Each GPU works 14 of 20 minutes, each at its own phase."""
POWER_RAMP_S: Final = 5.0
HEAT_RAMP_S: Final = 120.0
THERMAL_SLOWDOWN: Final = 0x40
HARMFUL_CLOCK_BITS: Final = 0x8 | THERMAL_SLOWDOWN | 0x80
IDLE_CLOCK_BIT: Final = 0x1

_LINK_SHARE: Final = 0.3
"""Share of its NVLinks' speed that a simulated GPU at full load uses, in each direction."""
_BYTES_PER_MB: Final = 1_000_000

XID_UNCORRECTED: Final = frozenset({48, 94, 95})
"""Memory errors that the ECC counters show as well."""
XID_LOST: Final = frozenset({79})
XID_RECOVERY: Final = {48: 1, 94: 4, 95: 1}
"""XID → the driver's request after it: GPU reset (1), drain and reset (4)."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load, 0 to 1: ``work`` moves power and clocks within seconds, ``warmth`` follows it within two minutes."""

    work: float
    warmth: float


def share_of(seed: int, *words: object) -> float:
    """Return a number from −1 to 1, the same for the same words."""
    digest = hashlib.blake2b(repr((seed, *words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / (1 << 63) - 1


def load_at(seed: int, uuid: str, now_ms: int) -> Load:
    phase_s = (share_of(seed, uuid, "phase") + 1) / 2 * PERIOD_S
    position_s = (now_ms / 1000 + phase_s) % PERIOD_S
    return Load(_trapezoid(position_s, POWER_RAMP_S), _trapezoid(position_s, HEAT_RAMP_S))


def _trapezoid(position_s: float, ramp_s: float) -> float:
    """Return the height: up over ``ramp_s`` from 0, down over ``ramp_s`` from BUSY_S."""
    if position_s < BUSY_S:
        return min(1.0, position_s / ramp_s)
    return max(0.0, 1.0 - (position_s - BUSY_S) / ramp_s)


def healthy_readings(profile: HardwareProfile, load: Load, noise: float) -> dict[str, float]:
    """Return every metric except ``energy_j``. ``noise``: −1 to 1."""
    temperature_c = round(_between(profile.idle_temperature_c, profile.busy_temperature_c, load.warmth) + 1.5 * noise)
    is_busy = load.work > 0.0
    over_links = round(_LINK_SHARE * load.work * profile.num_nvlinks * profile.nvlink_mb_per_s * _BYTES_PER_MB)
    zeros = (
        "ecc_corrected_volatile",
        "ecc_uncorrected_volatile",
        "ecc_corrected_aggregate",
        "ecc_uncorrected_aggregate",
        "remapped_rows_corrected",
        "remapped_rows_uncorrected",
        "remap_pending",
        "remap_failure",
        "recovery_action",
        "pcie_replays",
        "nvlink_crc_errors",
        "nvlink_replays",
        "nvlink_recoveries",
    )
    return {
        "temperature_c": temperature_c,
        "memory_temperature_c": temperature_c + round(4 + 8 * load.warmth),
        "temperature_margin_c": profile.slowdown_c - temperature_c,
        "power_w": round(_between(profile.idle_power_w, profile.busy_power_w, load.work) * (1 + 0.03 * noise), 1),
        "power_limit_w": profile.power_limit_w,
        "sm_clock_mhz": _between(profile.idle_sm_clock_mhz, profile.busy_sm_clock_mhz, 1.0 if is_busy else 0.0),
        "memory_clock_mhz": profile.memory_clock_mhz,
        "clock_event_reasons": 0 if is_busy else IDLE_CLOCK_BIT,
        "utilisation_percent": round(max(0.0, min(100.0, 97 * load.work + 2 * noise))) if is_busy else 0,
        "memory_utilisation_percent": round(max(0.0, 52 * load.work + 3 * noise)) if is_busy else 0,
        "memory_used_mib": round(profile.memory_mib * 0.82) if is_busy else 4,
        "num_processes": 1 if is_busy else 0,
        "pcie_generation": profile.pcie_generation if is_busy else 1,
        "pcie_width": 16,
        "nvlink_active_links": profile.num_nvlinks,
        "nvlink_sent_bytes_per_s": over_links,
        "nvlink_received_bytes_per_s": over_links,
        **dict.fromkeys(zeros, 0.0),
    }


def _between(low: float, high: float, share: float) -> float:
    return low + (high - low) * share


def is_lost_by(fault: Fault) -> bool:
    return fault.kind == "lost" or (fault.kind == "xid" and fault.code in XID_LOST)


def with_faults(profile: HardwareProfile, readings: dict[str, float], faults: Iterable[Fault]) -> dict[str, float]:
    """Return the readings of a GPU that has these faults."""
    ill = dict(readings)
    for fault in faults:
        _apply(profile, ill, fault)
    return ill


def _apply(profile: HardwareProfile, ill: dict[str, float], fault: Fault) -> None:
    match fault.kind:
        case "xid" if fault.code in XID_UNCORRECTED:
            _count_ecc(ill, "uncorrected", fault.count)
            ill["recovery_action"] = max(ill["recovery_action"], XID_RECOVERY[fault.code])
        case "ecc_uncorrected":
            _count_ecc(ill, "uncorrected", fault.count)
        case "ecc_corrected":
            _count_ecc(ill, "corrected", fault.count)
        case "row_remap_pending":
            ill["remapped_rows_uncorrected"] += 1
            ill["remap_pending"] = 1
        case "row_remap_failure":
            ill["remap_failure"] = 1
        case "clock_event":
            _slow_down(ill, fault.bits)
        case "heat":
            ill["temperature_c"] = fault.temperature_c
            ill["temperature_margin_c"] = profile.slowdown_c - fault.temperature_c
            if fault.temperature_c >= profile.slowdown_c:
                _slow_down(ill, THERMAL_SLOWDOWN)
        case "nvlink_down":
            ill["nvlink_active_links"] = max(0, profile.num_nvlinks - fault.count)
        case _:
            pass  # other XIDs, lost and late show in no reading


def _count_ecc(ill: dict[str, float], kind: str, count: int) -> None:
    ill[f"ecc_{kind}_volatile"] += count
    ill[f"ecc_{kind}_aggregate"] += count


def _slow_down(ill: dict[str, float], bits: int) -> None:
    ill["clock_event_reasons"] = int(ill["clock_event_reasons"]) | bits
    if bits & HARMFUL_CLOCK_BITS:
        ill["sm_clock_mhz"] *= 0.6
        ill["power_w"] *= 0.7
