"""Every rule over states and rates at its own limit: just below it says nothing, at it there is a finding."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from health.detectors import ports
from health.detectors.detector import Tells
from health.detectors.pcie_replays import limit_per_minute
from health.detectors.registry import RULES, TELLS, closings_of, judge_signal
from muster.domain.evidence import EventKind, GpuSignal, Severity, Source
from muster.domain.health_policy import HealthPolicy
from muster.domain.state_readings import PORT_COUNTERS, PORT_RATES, PORT_STATE, VALUES_OF, words_text
from tests.health.case_factory import GPU, NODE, NOW_MS, POLICY, signal
from tests.health.test_repeats import noted

NODE_KINDS = {
    EventKind.HOST_STATE,
    EventKind.HOST_RATES,
    EventKind.PORT_STATE,
    EventKind.PORT_RATES,
    EventKind.PAIR_PROBE,
}


@dataclass(frozen=True)
class Limit:
    """``below`` says nothing; ``at`` is the fault ``key``."""

    kind: EventKind
    below: Mapping[str, float]
    at: Mapping[str, float]
    key: str
    severity: Severity
    text: str = ""


def told(kind: EventKind, values: Mapping[str, float], text: str = "") -> GpuSignal:
    gpu = None if kind in NODE_KINDS else GPU
    source = Source.HOST if gpu is None else Source.NVML
    return replace(signal(kind, gpu=gpu, source=source, text=text), values=dict(values))


STATE, RATES = EventKind.GPU_STATE, EventKind.GPU_RATES
HOST, HOST_RATES = EventKind.HOST_STATE, EventKind.HOST_RATES
PORT, PORT_RATE = EventKind.PORT_STATE, EventKind.PORT_RATES
SEEN = {"was_active": 1}
MINUTE = {"window_s": 60.0}
X16 = {"pcie_width": 16.0, **MINUTE}
RDMA = "mlx5_0/1"
LIMITS = {
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
    "one_gpu_missing": Limit(
        HOST,
        {"expected_gpus": 8, "found_gpus": 8},
        {"expected_gpus": 8, "found_gpus": 7},
        "gpu_count",
        Severity.WARNING,
    ),
    "cpu_pressure": Limit(HOST, {"cpu_pressure": 0.9}, {"cpu_pressure": 0.91}, "host_pressure:cpu", Severity.WARNING),
    "memory_pressure": Limit(
        HOST, {"memory_pressure": 0.2}, {"memory_pressure": 0.21}, "host_pressure:memory", Severity.WARNING
    ),
    "io_pressure": Limit(HOST, {"io_pressure": 0.5}, {"io_pressure": 0.51}, "host_pressure:io", Severity.WARNING),
    "clock_offset": Limit(
        HOST, {"clock_offset_s": -1.0}, {"clock_offset_s": -1.1}, "host_clock:offset", Severity.WARNING
    ),
    "disk_low": Limit(
        HOST, {"disk_free_fraction": 0.05}, {"disk_free_fraction": 0.049}, "host_disk:low", Severity.WARNING
    ),
    "drivers": Limit(HOST, {"drivers": 0}, {"drivers": 1}, "host_drivers", Severity.DEGRADED),
    "clock_steps": Limit(
        HOST_RATES, {"clock_steps": 0, **MINUTE}, {"clock_steps": 1, **MINUTE}, "host_clock:steps", Severity.WARNING
    ),
    "retransmits": Limit(
        HOST_RATES,
        {"tcp_segments": 1000, "tcp_retransmits": 20, **MINUTE},
        {"tcp_segments": 1000, "tcp_retransmits": 21, **MINUTE},
        "host_network:retransmits",
        Severity.WARNING,
    ),
    "retransmits_of_few": Limit(
        HOST_RATES,
        {"tcp_segments": 999, "tcp_retransmits": 999, **MINUTE},
        {"tcp_segments": 1000, "tcp_retransmits": 999, **MINUTE},
        "host_network:retransmits",
        Severity.WARNING,
    ),
    "drops": Limit(
        HOST_RATES,
        {"softnet_dropped": 3_000, "udp_receive_errors": 3_000, **MINUTE},
        {"softnet_dropped": 3_000, "udp_receive_errors": 3_001, **MINUTE},
        "host_network:drops",
        Severity.WARNING,
    ),
    "port_down": Limit(PORT, {"state": 4, **SEEN}, {"state": 3, **SEEN}, f"port_down:{RDMA}", Severity.DEGRADED, RDMA),
    "port_disabled": Limit(
        PORT,
        {"state": 1, "physical_state": 3, **SEEN},
        {"state": 1, "physical_state": 2, **SEEN},
        f"port_down:{RDMA}",
        Severity.DEGRADED,
        RDMA,
    ),
    "roce_without_carrier": Limit(
        PORT,
        {"state": 4, "physical_state": 5, "is_ethernet": 1, **SEEN},
        {"state": 1, "physical_state": 3, "is_ethernet": 1, **SEEN},
        f"port_down:{RDMA}",
        Severity.DEGRADED,
        RDMA,
    ),
    "ethernet_disabled": Limit(
        PORT,
        {"state": 1, "physical_state": 3, "is_ethernet": 1, **SEEN},
        {"state": 1, "physical_state": 2, "is_ethernet": 1, **SEEN},
        "port_down:eth0",
        Severity.WARNING,
        "eth0",
    ),
    "ethernet_down": Limit(
        PORT,
        {"state": 4, "is_ethernet": 1, **SEEN},
        {"state": 1, "is_ethernet": 1, **SEEN},
        "port_down:eth0",
        Severity.WARNING,
        "eth0",
    ),
    "port_count": Limit(
        HOST,
        {"expected_ports": 8, "found_ports": 8},
        {"expected_ports": 8, "found_ports": 7},
        "port_count",
        Severity.DEGRADED,
    ),
    "port_rate": Limit(
        PORT,
        {"state": 4, "rate_gbps": 400, "best_rate_gbps": 400},
        {"state": 4, "rate_gbps": 200, "best_rate_gbps": 400},
        f"port_rate:{RDMA}",
        Severity.DEGRADED,
        RDMA,
    ),
    "port_flap": Limit(
        PORT, {"state": 4, "was_down_s": 24.9}, {"state": 4, "was_down_s": 25}, f"port_flap:{RDMA}", Severity.INFO, RDMA
    ),
    **{
        counter: Limit(
            PORT_RATE,
            {counter: 0, **MINUTE},
            {counter: 1, **MINUTE},
            f"port_fatal:{RDMA}",
            Severity.DEGRADED,
            RDMA,
        )
        for counter in (
            "link_downed",
            "excessive_buffer_overrun_errors",
            "local_link_integrity_errors",
            "rnr_nak_retry_err",
        )
    },
    "symbol_errors_an_hour": Limit(
        PORT_RATE,
        {"symbol_error": 120, "window_s": 3600},
        {"symbol_error": 121, "window_s": 3600},
        f"port_fatal:{RDMA}",
        Severity.DEGRADED,
        RDMA,
    ),
    "recoveries": Limit(
        PORT_RATE,
        {"link_error_recovery": 5, **MINUTE},
        {"link_error_recovery": 6, **MINUTE},
        f"port_degraded:{RDMA}",
        Severity.WARNING,
        RDMA,
    ),
    "slow_restarts": Limit(
        PORT_RATE,
        {"roce_slow_restart": 600, **MINUTE},
        {"roce_slow_restart": 601, **MINUTE},
        f"port_degraded:{RDMA}",
        Severity.WARNING,
        RDMA,
    ),
    **{
        f"{'_and_'.join(counters)}": Limit(
            PORT_RATE,
            {**dict.fromkeys(counters, per_s * 60 / len(counters)), **MINUTE},
            {**dict.fromkeys(counters, per_s * 60 / len(counters) + 1), **MINUTE},
            f"{rule}:{port}",
            Severity.WARNING,
            port,
        )
        for rule, port, per_s, *counters in (
            ("port_degraded", RDMA, 10, "port_rcv_errors"),
            ("port_degraded", "eth0", 10, "rx_errors", "tx_errors"),
            ("port_transport", RDMA, 100, "port_xmit_discards"),
            ("port_transport", RDMA, 1, "local_ack_timeout_err"),
            ("port_transport", RDMA, 100, "out_of_sequence", "packet_seq_err"),
        )
    },
    "carrier_changes": Limit(
        PORT_RATE,
        {"carrier_changes": 2, **MINUTE},
        {"carrier_changes": 3, **MINUTE},
        "port_degraded:eth0",
        Severity.WARNING,
        "eth0",
    ),
    "probe_loss": Limit(
        EventKind.PAIR_PROBE,
        {"sent": 1000, "lost": 10},
        {"sent": 1000, "lost": 11},
        "pair_probe:loss:node_2",
        Severity.WARNING,
        "node_2",
    ),
    "probe_latency": Limit(
        EventKind.PAIR_PROBE,
        {"sent": 1000, "round_trip_p99_us": 5000},
        {"sent": 1000, "round_trip_p99_us": 5001},
        "pair_probe:latency:node_2",
        Severity.WARNING,
        "node_2",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_just_below_its_limit_a_rule_says_nothing(name: str) -> None:
    limit = LIMITS[name]
    assert judge_signal(told(limit.kind, limit.below, limit.text), POLICY) == ()


@pytest.mark.parametrize("name", LIMITS)
def test_at_its_limit_a_rule_finds_its_fault(name: str) -> None:
    limit = LIMITS[name]
    (found,) = judge_signal(told(limit.kind, limit.at, limit.text), POLICY)
    assert (found.fault_key, found.severity) == (limit.key, limit.severity)
    assert (found.gpu_uuid, found.node_id) == (None if limit.kind in NODE_KINDS else GPU, NODE)
    assert found.summary


STATES = [
    name
    for name, limit in LIMITS.items()
    if TELLS[limit.key.partition(":")[0]] is Tells.STATE
    and limit.kind is not HOST_RATES
    and limit.severity is not Severity.INFO
]


@pytest.mark.parametrize("name", [*STATES, "persistence_off"])
def test_a_state_that_is_told_well_again_ends_its_fault(name: str) -> None:
    limit = LIMITS[name]
    standing = closings_of(told(limit.kind, limit.at, limit.text), POLICY)
    well = closings_of(told(limit.kind, limit.below, limit.text), POLICY)
    assert limit.key not in {each.fault_key for each in standing}
    assert limit.key in {each.fault_key for each in well}


def test_what_is_told_of_one_reading_ends_no_fault_of_another() -> None:
    assert [each.fault_key for each in closings_of(told(STATE, {"inforom_valid": 1}), POLICY)] == ["inforom"]


def test_every_value_in_the_tables_has_a_name_that_agents_tell() -> None:
    known = {**VALUES_OF, PORT: PORT_STATE, PORT_RATE: PORT_RATES}
    strange = {
        name: value
        for name, limit in LIMITS.items()
        for value in {*limit.below, *limit.at}
        if value not in known[limit.kind]
    }
    assert strange == {}


def test_a_fleet_may_say_how_many_ports_and_how_fast_a_host_must_have() -> None:
    """Such as gpud expects of an H100: 8 ports at 400 Gb/s."""
    floor = HealthPolicy.model_validate({"detectors": {"port_count": {"ports_min": 8}, "port_rate": {"gbps_min": 400}}})
    for kind, values, text, num in (
        (HOST, {"expected_ports": 7, "found_ports": 7}, "", 1),
        (HOST, {"expected_ports": 8, "found_ports": 8}, "", 0),
        (PORT, {"state": 4, "rate_gbps": 200}, RDMA, 1),
        (PORT, {"state": 4, "rate_gbps": 400}, RDMA, 0),
        (PORT, {"state": 4, "rate_gbps": 100}, "eth0", 0),
    ):
        assert len(judge_signal(told(kind, values, text), floor)) == num
        assert judge_signal(told(kind, values, text), POLICY) == ()


def test_every_counter_of_a_port_is_judged_or_said_not_to_be() -> None:
    judged = {name for limit in LIMITS.values() if limit.kind is PORT_RATE for name in limit.at}
    not_judged = set(PORT_COUNTERS) - judged
    assert not_judged == {"port_rcv_remote_physical_errors", "rx_dropped"}
    for name in not_judged:
        assert f"``{name}``" in (ports.__doc__ or "")
        assert judge_signal(told(PORT_RATE, {name: 10**9, **MINUTE}, RDMA), POLICY) == ()


def test_lost_packets_however_often_hold_no_node() -> None:
    lost = [
        replace(told(PORT_RATE, {"local_ack_timeout_err": 10**6, **MINUTE}, RDMA), signal_id=f"{at}", at_ms=NOW_MS + at)
        for at in range(0, 3_600_000, 60_000)
    ]
    assert {each.fault_key for each in noted(lost).values()} == {f"port_transport:{RDMA}"}


@pytest.mark.parametrize("model", ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA A40", ""])
def test_of_a_board_for_a_slot_no_nvlinks_are_expected(model: str) -> None:
    few = told(STATE, {"nvlink_links": 4, "nvlink_mb_per_s": 1000}, words_text({"model": model}))
    assert judge_signal(few, POLICY) == ()


def test_every_rule_over_states_and_rates_stands_in_the_table() -> None:
    tested = {limit.key.partition(":")[0] for limit in LIMITS.values()}
    over_events = {rule.name for rule in RULES if rule.tells in {Tells.STATE, Tells.RATE}}
    assert over_events - tested == {"throttle_seconds"}, "whose faults are those of clock_events"


@pytest.mark.parametrize(
    ("generation", "lanes", "limit"),
    [(1, 16, 3), (2, 16, 5), (3, 16, 8), (4, 16, 16), (5, 16, 31), (6, 16, 62), (7, 16, 62), (5, 8, 16), (4, 1, 1)],
)
def test_pcie_replays_are_allowed_by_generation_and_lanes(generation: int, lanes: int, limit: int) -> None:
    assert limit_per_minute(generation, lanes, POLICY) == limit


def test_two_missing_gpus_are_the_hosts_fault_and_one_is_not() -> None:
    (found,) = judge_signal(told(HOST, {"expected_gpus": 8, "found_gpus": 6}), POLICY)
    assert found.severity is Severity.DEGRADED


def test_a_disk_that_is_full_is_another_and_worse_fault_than_one_that_fills_up() -> None:
    (found,) = judge_signal(told(HOST, {"disk_free_fraction": 0.009}), POLICY)
    assert (found.fault_key, found.severity) == ("host_disk:full", Severity.DEGRADED)


def test_symbol_errors_by_the_second_are_a_bad_link_beside_being_fatal() -> None:
    found = judge_signal(told(PORT_RATE, {"symbol_error": 601, **MINUTE}, RDMA), POLICY)
    assert {each.fault_key for each in found} == {f"port_fatal:{RDMA}", f"port_degraded:{RDMA}"}


def test_a_rise_without_a_window_is_no_rate() -> None:
    assert judge_signal(told(RATES, {"pcie_replays": 900, "pcie_generation": 5, "pcie_width": 16}), POLICY) == ()


def test_a_state_of_no_gpu_says_nothing() -> None:
    assert judge_signal(signal(STATE, gpu=None, sram_threshold_exceeded=1), POLICY) == ()


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("Non-fatal, Link 32 egress non-posted PRIV error", Severity.WARNING),
        ("Fatal, Link 32 egress non-posted PRIV error", Severity.DEGRADED),
    ],
)
def test_an_nvswitch_is_the_nodes_matter_and_as_bad_as_its_own_word(text: str, severity: Severity) -> None:
    (found,) = judge_signal(signal(EventKind.SXID, code=12028, source=Source.KERNEL_LOG, text=text), POLICY)
    assert (found.fault_key, found.gpu_uuid, found.severity) == ("sxid:12028", None, severity)


def test_more_of_an_nvswitchs_error_is_no_second_one() -> None:
    text = "Severity 0 Engine instance 28 Sub-engine instance 00"
    assert judge_signal(signal(EventKind.SXID, code=12028, source=Source.KERNEL_LOG, text=text), POLICY) == ()


@pytest.mark.parametrize("seen", [{}, {"was_active": 0}])
def test_a_port_that_nobody_saw_up_is_not_down(seen: dict[str, float]) -> None:
    assert judge_signal(told(PORT, {"state": 1, "physical_state": 2, **seen}, RDMA), POLICY) == ()


def test_the_name_of_a_port_is_made_fit_for_a_key() -> None:
    (found,) = judge_signal(told(PORT, {"state": 1, **SEEN}, "mlx5 0\n<b>" + "x" * 200), POLICY)
    assert found.fault_key == "port_down:mlx5_0_b_" + "x" * 55
    assert found.onset_ms == NOW_MS
