"""What holds clocks down: heat, power, settings."""

from tests.health.case_factory import sample
from tests.health.field.judged import DEGRADED, INFO, WARNING, Rule, clocks, node_reports, rates, sampled, state

CLOCKS: dict[str, Rule] = {
    **{
        f"six_of_ten_samples_with_{name}": Rule(
            f"clock_events:{name}", severity, "gpud", clocks(bit, 6), clocks(bit, 5)
        )
        for bit, name, severity in (
            (0x8, "hw_slowdown", DEGRADED),
            (0x20, "sw_thermal", WARNING),
            (0x40, "hw_thermal", DEGRADED),
            (0x80, "power_brake", WARNING),
        )
    },
    "held_down_by_heat_for_six_tenths_of_a_window": Rule(
        "clock_events:hw_thermal",
        DEGRADED,
        "gpud",
        rates(hw_thermal_s=36.0),
        rates(hw_thermal_s=35.9),
        reported_by="throttle_seconds",
    ),
    "ecc_is_off": Rule("gpu_settings:ecc", DEGRADED, "Azure", state(ecc_enabled=0), state(ecc_enabled=1)),
    "application_clocks_under_the_boards_own": Rule(
        "gpu_settings:application_clocks",
        WARNING,
        "Azure",
        state(application_clock_mhz=1755, default_application_clock_mhz=1980),
        state(application_clock_mhz=1980, default_application_clock_mhz=1980),
    ),
    "a_power_limit_under_the_boards_own": Rule(
        "power_limit",
        WARNING,
        "NVML; Azure",
        state(power_limit_w=692.9, default_power_limit_w=700.0),
        state(power_limit_w=693.0, default_power_limit_w=700.0),
    ),
    "persistence_mode_off": Rule(
        "gpu_settings:persistence",
        INFO,
        "Azure",
        state(persistence_enabled=0),
        state(persistence_enabled=1),
    ),
    **{
        f"{what}_not_equal_across_a_node": Rule(
            f"node_mismatch:{reading}",
            WARNING,
            "Azure",
            node_reports(name, 1),
            node_reports(name, 0),
        )
        for what, name, reading in (
            ("vbios", "vbios_differs", "vbios_version"),
            ("persistence_mode", "persistence_differs", "persistence_enabled"),
            ("application_clocks", "clocks_differ", "application_clock_mhz"),
        )
    },
    "hotter_than_gpu_max": Rule(
        "temperature:gpu",
        DEGRADED,
        "gpud",
        sampled(sample(temperature_c=95.1)),
        sampled(sample(temperature_c=95.0)),
    ),
    "hbm_hotter_than_mem_max": Rule(
        "temperature:memory",
        DEGRADED,
        "gpud",
        sampled(sample(memory_temperature_c=105.1)),
        sampled(sample(memory_temperature_c=105.0)),
    ),
    "two_degrees_past_the_margin_of_an_h100": Rule(
        "thermal_margin",
        DEGRADED,
        "NVSentinel ADR-042",
        sampled(sample(temperature_margin_c=-2.1), model="NVIDIA H100 80GB HBM3"),
        sampled(sample(temperature_margin_c=-2.0), model="NVIDIA H100 80GB HBM3"),
    ),
    "three_degrees_past_the_margin_of_a_b200": Rule(
        "thermal_margin",
        DEGRADED,
        "NVSentinel ADR-042",
        sampled(sample(temperature_margin_c=-3.1), model="NVIDIA B200"),
        sampled(sample(temperature_margin_c=-3.0), model="NVIDIA B200"),
    ),
}
