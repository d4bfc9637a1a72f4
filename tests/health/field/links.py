"""PCIe, NVLink, network ports, and how many GPUs a host has."""

from muster.domain.evidence.state_readings import words_text
from tests.health.field.judged import (
    DEGRADED,
    HOST,
    INFO,
    PORT,
    RDMA,
    WARNING,
    Rule,
    flaps,
    of_node,
    port_rates,
    rates,
    state,
)

H100, A100, B200 = (words_text({"model": name}) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "B200"))
LINKS: dict[str, Rule] = {
    "pcie_replays_of_x16_generation_4": Rule(
        "pcie_replays",
        WARNING,
        "DCGM",
        rates(pcie_replays=17, pcie_generation=4, pcie_width=16),
        rates(pcie_replays=16, pcie_generation=4, pcie_width=16),
    ),
    "pcie_replays_of_x16_generation_5": Rule(
        "pcie_replays",
        WARNING,
        "DCGM",
        rates(pcie_replays=32, pcie_generation=5, pcie_width=16),
        rates(pcie_replays=31, pcie_generation=5, pcie_width=16),
    ),
    "480_correctable_pcie_errors_in_15_minutes": Rule(
        "pcie_errors",
        WARNING,
        "DCGM",
        rates(900.0, pcie_correctable_errors=481),
        rates(900.0, pcie_correctable_errors=480),
    ),
    "fewer_pcie_lanes_under_load": Rule(
        "pcie_link:width",
        DEGRADED,
        "DCGM",
        state(pcie_loaded_width=8, pcie_max_width=16),
        state(pcie_loaded_width=16, pcie_max_width=16),
    ),
    "a_lower_pcie_generation_under_load": Rule(
        "pcie_link:generation",
        DEGRADED,
        "DCGM",
        state(pcie_loaded_generation=3, pcie_max_generation=5),
        state(pcie_loaded_generation=5, pcie_max_generation=5),
    ),
    "an_idle_pcie_link_downshifts": Rule(
        "pcie_link:generation",
        DEGRADED,
        "DCGM",
        state(pcie_loaded_generation=1, pcie_max_generation=5),
        state(pcie_generation=1, pcie_max_generation=5),
    ),
    "nvlink_recoveries_rise": Rule("nvlink_rises", INFO, "DCGM", rates(recoveries=1), rates(recoveries=0)),
    "not_registered_with_its_fabric": Rule(
        "fabric_state:not_ready", DEGRADED, "NVML fabric info", state(fabric_state=2), state(fabric_state=3)
    ),
    "a_fabric_of_degraded_bandwidth": Rule(
        "fabric_health:bandwidth",
        DEGRADED,
        "NVML fabric info",
        state(fabric_health_bits=0b01),
        state(fabric_health_bits=0b10),
    ),
    "drivers_of_two_versions": Rule(
        "host_drivers", DEGRADED, "NVIDIA", of_node(HOST, drivers=1), of_node(HOST, drivers=0)
    ),
    "nvlink_replays_rise": Rule("nvlink_rises", INFO, "DCGM", rates(replays=1), rates(replays=0)),
    "100_flit_crc_errors_a_second": Rule(
        "nvlink_crc", DEGRADED, "DCGM", rates(crc_errors=6_000), rates(crc_errors=5_999)
    ),
    "more_than_15_of_30_minutes": Rule(
        "nvlink_windows", DEGRADED, "NVRx", rates(bad_windows=16), rates(bad_windows=15)
    ),
    "an_nvlink_is_down": Rule(
        "nvlink_down",
        DEGRADED,
        "Azure; gpud; DCGM",
        state(nvlink_links_down=1),
        state(nvlink_links_down=0),
    ),
    "a_pair_of_gpus_is_not_ok": Rule(
        "p2p",
        DEGRADED,
        "gpud",
        state(p2p_blamed=1, nvlink_links=18),
        state(p2p_blamed=0, nvlink_links=18),
    ),
    "an_nvlink_to_nothing": Rule(
        "nvlink_to_nothing",
        DEGRADED,
        "gpud",
        state(nvlink_links_to_nothing=1),
        state(nvlink_links_to_nothing=0),
    ),
    "18_nvlinks_of_an_h100": Rule(
        "nvlink_count:links",
        DEGRADED,
        "NVSentinel; DCGM",
        state(H100, nvlink_links=17),
        state(H100, nvlink_links=18),
    ),
    "12_nvlinks_of_an_a100": Rule(
        "nvlink_count:links",
        DEGRADED,
        "NVSentinel; DCGM",
        state(A100, nvlink_links=11),
        state(A100, nvlink_links=12),
    ),
    "nvlinks_at_the_rate_of_a_b200": Rule(
        "nvlink_count:rate",
        WARNING,
        "NVSentinel; DCGM",
        state(B200, nvlink_links=18, nvlink_mb_per_s=49_937),
        state(B200, nvlink_links=18, nvlink_mb_per_s=49_938),
    ),
    "fewer_ports_than_there_were": Rule(
        "port_count",
        DEGRADED,
        "gpud",
        of_node(HOST, expected_ports=8, found_ports=7),
        of_node(HOST, expected_ports=8, found_ports=8),
    ),
    "a_port_of_the_inventory_is_not_there": Rule(
        f"port_missing:{RDMA}",
        DEGRADED,
        "gpud; Azure",
        of_node(PORT, RDMA, is_missing=1),
        of_node(PORT, RDMA, is_missing=0),
    ),
    "a_port_slower_than_it_was": Rule(
        f"port_rate:{RDMA}",
        DEGRADED,
        "gpud",
        of_node(PORT, RDMA, state=4, rate_gbps=200, best_rate_gbps=400),
        of_node(PORT, RDMA, state=4, rate_gbps=400, best_rate_gbps=400),
    ),
    "a_port_is_down": Rule(
        f"port_down:{RDMA}",
        DEGRADED,
        "gpud",
        of_node(PORT, RDMA, state=1, physical_state=2, was_active=1),
        of_node(PORT, RDMA, state=4, physical_state=5, was_active=1),
    ),
    "down_for_25_seconds_and_back": Rule(f"port_flap:{RDMA}", INFO, "gpud", flaps(1, 25), flaps(1, 24.9)),
    "three_flaps": Rule(f"port_flaps:{RDMA}", DEGRADED, "gpud", flaps(3, 25), flaps(2, 25)),
    "a_flap_of_25_seconds": Rule(f"port_flaps:{RDMA}", DEGRADED, "gpud", flaps(3, 25), flaps(3, 24.9)),
    **{
        f"{name}_rises": Rule(
            f"port_fatal:{RDMA}",
            DEGRADED,
            "NVSentinel",
            port_rates(**{name: 1}),
            port_rates(**{name: 0}),
        )
        for name in (
            "link_downed",
            "excessive_buffer_overrun_errors",
            "local_link_integrity_errors",
            "rnr_nak_retry_err",
        )
    },
    "more_than_120_symbol_errors_an_hour": Rule(
        f"port_fatal:{RDMA}",
        DEGRADED,
        "NVSentinel",
        port_rates(3600.0, symbol_error=121),
        port_rates(3600.0, symbol_error=120),
    ),
    **{
        f"more_than_{limit}_{name}_in_{window_s}_s": Rule(
            f"{fault}:{RDMA}",
            WARNING,
            "NVSentinel",
            port_rates(window_s, **{name: limit + 1}),
            port_rates(window_s, **{name: limit}),
        )
        for fault, name, limit, window_s in (
            ("port_degraded", "symbol_error", 600, 60.0),
            ("port_degraded", "link_error_recovery", 5, 60.0),
            ("port_degraded", "roce_slow_restart", 600, 60.0),
            ("port_degraded", "carrier_changes", 2, 60.0),
            ("port_degraded", "port_rcv_errors", 600, 60.0),
            ("port_transport", "port_xmit_discards", 6_000, 60.0),
            ("port_transport", "local_ack_timeout_err", 60, 60.0),
        )
    },
    "a_gpu_is_missing": Rule(
        "gpu_count",
        WARNING,
        "gpud; Azure; NICo",
        of_node(HOST, expected_gpus=8, found_gpus=7),
        of_node(HOST, expected_gpus=8, found_gpus=8),
    ),
}
