"""What rose of a GPU within a window."""

from muster.domain.evidence.findings import Severity
from tests.health.limits.limit import MINUTE, RATES, X16, Limit

GPU_RATES = {
    "throttle_seconds": Limit(
        RATES,
        {"hw_thermal_s": 35.9, **MINUTE},
        {"hw_thermal_s": 36.0, **MINUTE},
        "clock_events:hw_thermal",
        Severity.DEGRADED,
    ),
    "power_brake_seconds": Limit(
        RATES,
        {"power_brake_s": 35.9, **MINUTE},
        {"power_brake_s": 36.0, **MINUTE},
        "clock_events:power_brake",
        Severity.WARNING,
    ),
    "corrected_sram": Limit(
        RATES,
        {"ecc_corrected_sram_total": 10_000},
        {"ecc_corrected_sram_total": 10_001},
        "corrected_errors:sram",
        Severity.DEGRADED,
    ),
    "corrected_dram": Limit(
        RATES,
        {"ecc_corrected_dram_total": 20_000_000},
        {"ecc_corrected_dram_total": 20_000_001},
        "corrected_errors:dram",
        Severity.DEGRADED,
    ),
    "pcie_replays_generation_4": Limit(
        RATES,
        {"pcie_replays": 16, "pcie_generation": 4, **X16},
        {"pcie_replays": 17, "pcie_generation": 4, **X16},
        "pcie_replays",
        Severity.WARNING,
    ),
    "pcie_replays_generation_5": Limit(
        RATES,
        {"pcie_replays": 31, "pcie_generation": 5, **X16},
        {"pcie_replays": 32, "pcie_generation": 5, **X16},
        "pcie_replays",
        Severity.WARNING,
    ),
    "pcie_errors": Limit(
        RATES,
        {"pcie_correctable_errors": 32, **MINUTE},
        {"pcie_correctable_errors": 33, **MINUTE},
        "pcie_errors",
        Severity.WARNING,
    ),
    "nvlink_crc": Limit(
        RATES,
        {"crc_errors": 5_999, "link": 7, **MINUTE},
        {"crc_errors": 6_000, "link": 7, **MINUTE},
        "nvlink_crc:link7",
        Severity.DEGRADED,
    ),
    "nvlink_windows": Limit(
        RATES, {"bad_windows": 15, "link": 7}, {"bad_windows": 16, "link": 7}, "nvlink_windows:link7", Severity.DEGRADED
    ),
    "nvlink_rises": Limit(RATES, {"replays": 0, **MINUTE}, {"replays": 1, **MINUTE}, "nvlink_rises", Severity.INFO),
}
