"""States of a GPU that are reported when they change and each hour."""

from muster.domain.evidence.findings import Severity
from muster.domain.evidence.state_readings import words_text
from tests.health.limits.limit import STATE, Limit

GPU_STATES = {
    "sram_threshold": Limit(
        STATE, {"sram_threshold_exceeded": 0}, {"sram_threshold_exceeded": 1}, "sram_threshold", Severity.CONDEMNING
    ),
    "remap_banks": Limit(STATE, {"remap_banks_none": 0}, {"remap_banks_none": 1}, "remap_banks", Severity.DEGRADED),
    "retired_pages": Limit(
        STATE,
        {"retired_pages_single_bit": 62, "retired_pages_double_bit": 0},
        {"retired_pages_single_bit": 63, "retired_pages_double_bit": 0},
        "retired_pages:used_up",
        Severity.CONDEMNING,
    ),
    "retired_pages_pending": Limit(
        STATE, {"retired_pages_pending": 0}, {"retired_pages_pending": 1}, "retired_pages:pending", Severity.DEGRADED
    ),
    "retired_pages_double_bit": Limit(
        STATE,
        {"retired_pages_double_bit": 0},
        {"retired_pages_double_bit": 1},
        "retired_pages:double_bit:1",
        Severity.INFO,
    ),
    "inforom": Limit(STATE, {"inforom_valid": 1}, {"inforom_valid": 0}, "inforom", Severity.DEGRADED),
    "unrepairable_memory": Limit(
        STATE, {"unrepairable_memory": 0}, {"unrepairable_memory": 1}, "unrepairable_memory", Severity.CONDEMNING
    ),
    "ecc_off": Limit(STATE, {"ecc_enabled": 1}, {"ecc_enabled": 0}, "gpu_settings:ecc", Severity.DEGRADED),
    "persistence_off": Limit(
        STATE, {"persistence_enabled": 1}, {"persistence_enabled": 0}, "gpu_settings:persistence", Severity.INFO
    ),
    "application_clocks": Limit(
        STATE,
        {"application_clock_mhz": 1980, "default_application_clock_mhz": 1980},
        {"application_clock_mhz": 1755, "default_application_clock_mhz": 1980},
        "gpu_settings:application_clocks",
        Severity.WARNING,
    ),
    **{
        f"nvlinks_of_{model.replace(' ', '_')}": Limit(
            STATE,
            {"nvlink_links": links},
            {"nvlink_links": links - 1},
            "nvlink_count:links",
            Severity.DEGRADED,
            words_text({"model": model}),
        )
        for model, links in (
            ("NVIDIA A100-SXM4-80GB", 12),
            ("NVIDIA H100 80GB HBM3", 18),
            ("NVIDIA H200", 18),
            ("NVIDIA B200", 18),
            ("NVIDIA GB200", 18),
        )
    },
    **{
        f"nvlink_rate_of_{model.replace(' ', '_')}": Limit(
            STATE,
            {"nvlink_links": 18, "nvlink_mb_per_s": least_mb_per_s},
            {"nvlink_links": 18, "nvlink_mb_per_s": least_mb_per_s - 0.1},
            "nvlink_count:rate",
            Severity.WARNING,
            words_text({"model": model}),
        )
        for model, least_mb_per_s in (("NVIDIA H100 80GB HBM3", 26_562.5 * 0.94), ("NVIDIA B200", 53_125 * 0.94))
    },
    "power_limit": Limit(
        STATE,
        {"power_limit_w": 693.0, "default_power_limit_w": 700.0},
        {"power_limit_w": 692.9, "default_power_limit_w": 700.0},
        "power_limit",
        Severity.WARNING,
    ),
    "pcie_generation": Limit(
        STATE,
        {"pcie_loaded_generation": 5, "pcie_max_generation": 5},
        {"pcie_loaded_generation": 4, "pcie_max_generation": 5},
        "pcie_link:generation",
        Severity.DEGRADED,
    ),
    "pcie_width": Limit(
        STATE,
        {"pcie_loaded_width": 16, "pcie_max_width": 16},
        {"pcie_loaded_width": 8, "pcie_max_width": 16},
        "pcie_link:width",
        Severity.DEGRADED,
    ),
    "p2p": Limit(
        STATE, {"p2p_blamed": 0, "nvlink_links": 18}, {"p2p_blamed": 1, "nvlink_links": 18}, "p2p", Severity.DEGRADED
    ),
    "idle_busy": Limit(STATE, {"idle_sm_percent": 50}, {"idle_sm_percent": 50.1}, "idle_busy", Severity.WARNING),
    "idle_busy_without_gpm": Limit(
        STATE, {"idle_utilisation_percent": 90}, {"idle_utilisation_percent": 91}, "idle_busy", Severity.WARNING
    ),
    "nvlink_down": Limit(STATE, {"nvlink_links_down": 0}, {"nvlink_links_down": 1}, "nvlink_down", Severity.DEGRADED),
    "nvlink_to_nothing": Limit(
        STATE, {"nvlink_links_to_nothing": 0}, {"nvlink_links_to_nothing": 1}, "nvlink_to_nothing", Severity.DEGRADED
    ),
    "fabric_state": Limit(STATE, {"fabric_state": 3}, {"fabric_state": 2}, "fabric_state:not_ready", Severity.DEGRADED),
    "fabric_status": Limit(
        STATE,
        {"fabric_state": 3, "fabric_status": 0},
        {"fabric_state": 3, "fabric_status": 999},
        "fabric_state:failed",
        Severity.DEGRADED,
    ),
    "fabric_bandwidth": Limit(
        STATE,
        {"fabric_health_bits": 0b10},
        {"fabric_health_bits": 0b01},
        "fabric_health:bandwidth",
        Severity.DEGRADED,
    ),
    "fabric_recovery": Limit(
        STATE,
        {"fabric_health_bits": 0b1000},
        {"fabric_health_bits": 0b0100},
        "fabric_health:recovery",
        Severity.WARNING,
    ),
    "fabric_configuration": Limit(
        STATE,
        {"fabric_health_bits": 1 << 8},
        {"fabric_health_bits": 2 << 8},
        "fabric_health:configuration",
        Severity.DEGRADED,
    ),
    "fabric_partition": Limit(
        STATE,
        {"fabric_health_bits": 1 << 12},
        {"fabric_health_bits": 2 << 12},
        "fabric_health:partition",
        Severity.WARNING,
    ),
    "fabric_manager": Limit(
        STATE,
        {"fabric_health_bits": 1 << 14},
        {"fabric_health_bits": 2 << 14},
        "fabric_health:manager",
        Severity.WARNING,
    ),
    "fabric_unhealthy": Limit(
        STATE,
        {"fabric_health_bits": 0, "fabric_health_summary": 1},
        {"fabric_health_bits": 0, "fabric_health_summary": 2},
        "fabric_health:summary",
        Severity.DEGRADED,
    ),
    "fabric_limited": Limit(
        STATE,
        {"fabric_health_bits": 0, "fabric_health_summary": 1},
        {"fabric_health_bits": 0, "fabric_health_summary": 3},
        "fabric_health:summary",
        Severity.WARNING,
    ),
}
