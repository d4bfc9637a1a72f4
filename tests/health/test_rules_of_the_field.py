"""The table of the field's rules: each by its source's number and window, what it finds there, and that a little less
finds nothing. Its first column names the rule; the second, the detector's fault.

Where a number hangs on a model, a register or a port, ``test_detectors_by_threshold``, ``test_repeats`` and
``test_heat`` go through all of them; here each rule stands once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import pytest

from health.detectors.registry import RULES as DETECTORS
from health.detectors.registry import GpuMemory, judge_sample, judge_signal
from health.detectors.repeats import repairs_of
from health.noting import Place, note
from muster.domain.evidence import EventKind, Evidence, Finding, GpuSample, GpuSignal, Severity, Source
from muster.domain.ids import EvidenceId
from muster.domain.state_readings import words_text
from tests.health.case_factory import DAY, HOUR, MINUTE, NODE, NOW_MS, POLICY, SECOND, lost_sample, sample, signal

Keys = dict[str, Severity]
STATE, RATES, HOST = EventKind.GPU_STATE, EventKind.GPU_RATES, EventKind.HOST_STATE
PORT, PORT_RATES = EventKind.PORT_STATE, EventKind.PORT_RATES
ECC_ON_LINK = "NVLink: fatal error detected on link 2(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
SM = "Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address"
RDMA = "mlx5_0/1"
CARD = "mlx5_core 0000:3b:00.0: Port module event: module 1, Cable error, Power budget exceeded"
H100, A100, B200 = (words_text({"model": name}) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "B200"))


def noted(findings: Iterable[Finding]) -> Keys:
    """What is left once all were noted, each as it happened: with what their repetition means."""
    known: dict[EvidenceId, Evidence] = {}
    numbers = count()
    for each in findings:
        list(note(each, Place(known), POLICY, each.onset_ms, lambda: EvidenceId(f"ev_{next(numbers)}")))
    return {each.fault_key: each.severity for each in known.values()}


def told(*signals: GpuSignal) -> Keys:
    return noted(found for each in signals for found in judge_signal(each, POLICY))


def state(text: str = "", **values: float) -> Keys:
    return told(replace(signal(STATE, text=text), values=values))


def rates(window_s: float = 60.0, **values: float) -> Keys:
    return told(replace(signal(RATES), values={"window_s": window_s, **values}))


def of_node(kind: EventKind, text: str = "", **values: float) -> Keys:
    return told(replace(signal(kind, gpu=None, source=Source.HOST, text=text), values=values))


def port_rates(window_s: float = 60.0, **values: float) -> Keys:
    return of_node(PORT_RATES, RDMA, window_s=window_s, **values)


def xids(code: int, gap_ms: int, times: int, text: str = "") -> Keys:
    return told(
        *(signal(code=code, at_ms=NOW_MS + at * gap_ms, text=text, source=Source.KERNEL_LOG) for at in range(times))
    )


def sampled(*samples: GpuSample, model: str = "") -> Keys:
    memory, found = GpuMemory(NODE, model=model), list[Finding]()
    for each in samples:
        memory, findings = judge_sample(memory, each, POLICY, each.at_ms)
        found += findings
    return noted(found)


def rise(name: str, before: float, after: float) -> Keys:
    return sampled(sample(NOW_MS, **{name: before}), sample(NOW_MS + 10 * SECOND, **{name: after}))


def clocks(bit: int, times: int) -> Keys:
    held = [bit] * times + [0] * (10 - times)
    return sampled(
        *(sample(NOW_MS + at * 10 * SECOND, clock_event_reasons=float(is_set)) for at, is_set in enumerate(held))
    )


def flaps(times: int, down_s: float) -> Keys:
    up = {"state": 4.0, "was_down_s": down_s}
    return told(
        *(
            replace(signal(PORT, gpu=None, source=Source.HOST, at_ms=NOW_MS + at * MINUTE, text=RDMA), values=up)
            for at in range(times)
        )
    )


def bad_link(times: int) -> Keys:
    values = {"link_error_recovery": 6.0, "window_s": 60.0}
    return told(
        *(
            replace(signal(PORT_RATES, gpu=None, at_ms=NOW_MS + at * MINUTE, text=RDMA), values=values)
            for at in range(times)
        )
    )


def cards(times: int, gap_ms: int) -> Keys:
    return told(
        *(
            signal(EventKind.NIC_DRIVER, gpu=None, at_ms=NOW_MS + at * gap_ms, source=Source.KERNEL_LOG, text=CARD)
            for at in range(times)
        )
    )


def retired(first: float, second: float, gap_ms: int) -> Keys:
    pages = ((NOW_MS, first), (NOW_MS + gap_ms, second))
    return told(*(signal(STATE, at_ms=at_ms, retired_pages_double_bit=each) for at_ms, each in pages))


def repairs(times: int) -> Keys:
    return noted(repairs_of(NODE, [NOW_MS - at * DAY for at in range(times)], POLICY, NOW_MS))


@dataclass(frozen=True)
class Rule:
    """``at`` finds ``fault``; ``short_of`` it does not."""

    fault: str
    severity: Severity
    source: str
    at: Callable[[], Keys]
    short_of: Callable[[], Keys]


INFO, WARNING, DEGRADED, CONDEMNING = Severity
AGAIN: dict[str, Rule] = {
    "five_repairs_on_a_node_in_seven_days": Rule(
        "repair_repeats", DEGRADED, "NVSentinel", lambda: repairs(5), lambda: repairs(4)
    ),
    "five_bursts_of_fatal_xids_in_a_day": Rule(
        "fatal_repeats:hold", CONDEMNING, "NVSentinel", lambda: xids(62, HOUR, 5), lambda: xids(62, HOUR, 4)
    ),
    "a_burst_ends_with_three_minutes": Rule(
        "fatal_repeats:hold",
        CONDEMNING,
        "NVSentinel",
        lambda: xids(62, 3 * MINUTE + 1, 5),
        lambda: xids(62, 3 * MINUTE, 5),
    ),
    "an_xid_that_sticks_is_one_for_three_hours": Rule(
        "fatal_repeats:hold",
        CONDEMNING,
        "NVSentinel",
        lambda: xids(95, 3 * HOUR + 1, 5),
        lambda: xids(95, 3 * HOUR, 5),
    ),
    "xid_31_twice_in_a_day": Rule(
        "mmu_fault_repeats", INFO, "NVSentinel", lambda: xids(31, DAY - 1, 2), lambda: xids(31, DAY, 2)
    ),
    "xid_13_twice_in_a_day_in_one_tpc": Rule(
        "sm_exception_repeats", INFO, "NVSentinel", lambda: xids(13, DAY - 1, 2, SM), lambda: xids(13, DAY, 2, SM)
    ),
    "xid_13_of_one_burst_of_fifteen_seconds": Rule(
        "sm_exception_repeats",
        INFO,
        "NVSentinel",
        lambda: xids(13, 15 * SECOND + 1, 2, SM),
        lambda: xids(13, 15 * SECOND, 2, SM),
    ),
    "copy_engines_again_in_a_day": Rule(
        "copy_engine_repeats", INFO, "NVIDIA", lambda: xids(39, DAY - 1, 2), lambda: xids(39, DAY, 2)
    ),
    "more_than_two_of_a_bit_of_xid_74_on_one_link": Rule(
        "link_bit_repeats:link2:1.4",
        CONDEMNING,
        "NVIDIA",
        lambda: xids(74, HOUR, 3, ECC_ON_LINK),
        lambda: xids(74, HOUR, 2, ECC_ON_LINK),
    ),
    "xid_79_again_in_thirty_days": Rule(
        "bus_repeats:hold", CONDEMNING, "NVIDIA", lambda: xids(79, 30 * DAY - 1, 2), lambda: xids(79, 30 * DAY, 2)
    ),
    "xid_119_thrice": Rule(
        "gsp_repeats:hold", CONDEMNING, "NVIDIA", lambda: xids(119, DAY, 3), lambda: xids(119, DAY, 2)
    ),
    "xid_136_again": Rule(
        "reset_repeats:hold", CONDEMNING, "NVIDIA", lambda: xids(136, DAY, 2), lambda: xids(136, DAY, 1)
    ),
    "three_faults_of_network_cards_in_an_hour": Rule(
        "nic_driver_repeats", DEGRADED, "NVSentinel", lambda: cards(3, MINUTE), lambda: cards(3, HOUR // 2)
    ),
    "a_bad_link_thrice_in_an_hour": Rule(
        f"nic_repeats:{RDMA}", DEGRADED, "NVSentinel", lambda: bad_link(3), lambda: bad_link(2)
    ),
}
MEMORY: dict[str, Rule] = {
    "a_remap_that_waits": Rule(
        "row_remap:pending",
        DEGRADED,
        "gpud; DCGM; Azure",
        lambda: sampled(sample(remap_pending=1.0)),
        lambda: sampled(sample(remap_pending=0.0)),
    ),
    "a_remap_that_failed": Rule(
        "row_remap:failure",
        CONDEMNING,
        "gpud; DCGM; Azure",
        lambda: sampled(sample(remap_failure=1.0)),
        lambda: sampled(sample(remap_failure=0.0)),
    ),
    "512_rows_remapped": Rule(
        "row_remap:exhausted",
        CONDEMNING,
        "DCGM",
        lambda: sampled(sample(remapped_rows_uncorrected=512.0)),
        lambda: sampled(sample(remapped_rows_uncorrected=511.0)),
    ),
    "a_bank_without_a_spare_row": Rule(
        "remap_banks", DEGRADED, "NVIDIA", lambda: state(remap_banks_none=1), lambda: state(remap_banks_none=0)
    ),
    "more_than_ten_rows_remapped_after_correctable_errors": Rule(
        "corrected_remaps:many",
        WARNING,
        "SuperBench",
        lambda: rise("remapped_rows_corrected", 10, 11),
        lambda: rise("remapped_rows_corrected", 9, 10),
    ),
    "more_than_ten_of_them_in_a_week": Rule(
        "corrected_remaps:rate",
        DEGRADED,
        "SuperBench",
        lambda: rise("remapped_rows_corrected", 0, 11),
        lambda: rise("remapped_rows_corrected", 0, 10),
    ),
    "a_double_bit_error_rises": Rule(
        "ecc_uncorrected",
        CONDEMNING,
        "DCGM; Azure",
        lambda: rise("ecc_uncorrected_volatile", 0, 1),
        lambda: rise("ecc_uncorrected_volatile", 1, 1),
    ),
    "corrected_errors_in_sram": Rule(
        "corrected_errors:sram",
        DEGRADED,
        "Azure",
        lambda: rates(ecc_corrected_sram_total=10_001),
        lambda: rates(ecc_corrected_sram_total=10_000),
    ),
    "corrected_errors_in_dram": Rule(
        "corrected_errors:dram",
        DEGRADED,
        "Azure",
        lambda: rates(ecc_corrected_dram_total=20_000_001),
        lambda: rates(ecc_corrected_dram_total=20_000_000),
    ),
    "the_sram_threshold_flag": Rule(
        "sram_threshold",
        CONDEMNING,
        "DCGM; NVML",
        lambda: state(sram_threshold_exceeded=1),
        lambda: state(sram_threshold_exceeded=0),
    ),
    "63_retired_pages": Rule(
        "retired_pages:used_up",
        CONDEMNING,
        "DCGM",
        lambda: state(retired_pages_single_bit=63, retired_pages_double_bit=0),
        lambda: state(retired_pages_single_bit=62, retired_pages_double_bit=0),
    ),
    "more_than_15_pages_after_double_bit_errors_two_of_them_in_a_week": Rule(
        "retired_pages:week",
        CONDEMNING,
        "DCGM",
        lambda: retired(14, 16, 7 * DAY - SECOND),
        lambda: retired(13, 15, 7 * DAY - SECOND),
    ),
    "retired_pages_that_wait": Rule(
        "retired_pages:pending",
        DEGRADED,
        "DCGM",
        lambda: state(retired_pages_pending=1),
        lambda: state(retired_pages_pending=0),
    ),
    "a_corrupt_inforom": Rule(
        "inforom", DEGRADED, "NVSentinel", lambda: state(inforom_valid=0), lambda: state(inforom_valid=1)
    ),
    "off_the_bus": Rule(
        "gpu_lost", CONDEMNING, "NVSentinel", lambda: sampled(lost_sample(NOW_MS)), lambda: sampled(sample())
    ),
}
CLOCKS: dict[str, Rule] = {
    **{
        f"six_of_ten_samples_with_{name}": Rule(
            f"clock_events:{name}", severity, "gpud", partial(clocks, bit, 6), partial(clocks, bit, 5)
        )
        for bit, name, severity in (
            (0x8, "hw_slowdown", DEGRADED),
            (0x20, "sw_thermal", WARNING),
            (0x40, "hw_thermal", DEGRADED),
            (0x80, "power_brake", WARNING),
        )
    },
    "held_down_by_heat_for_six_tenths_of_a_window": Rule(
        "clock_events:hw_thermal", DEGRADED, "gpud", lambda: rates(hw_thermal_s=36.0), lambda: rates(hw_thermal_s=35.9)
    ),
    "application_clocks_under_the_boards_own": Rule(
        "gpu_settings:application_clocks",
        WARNING,
        "Azure",
        lambda: state(application_clock_mhz=1755, default_application_clock_mhz=1980),
        lambda: state(application_clock_mhz=1980, default_application_clock_mhz=1980),
    ),
    "a_power_limit_under_the_boards_own": Rule(
        "power_limit",
        WARNING,
        "NVML; Azure",
        lambda: state(power_limit_w=692.9, default_power_limit_w=700.0),
        lambda: state(power_limit_w=693.0, default_power_limit_w=700.0),
    ),
    "persistence_mode_off": Rule(
        "gpu_settings:persistence",
        INFO,
        "Azure",
        lambda: state(persistence_enabled=0),
        lambda: state(persistence_enabled=1),
    ),
    "hotter_than_gpu_max": Rule(
        "temperature:gpu",
        DEGRADED,
        "gpud",
        lambda: sampled(sample(temperature_c=95.1)),
        lambda: sampled(sample(temperature_c=95.0)),
    ),
    "hbm_hotter_than_mem_max": Rule(
        "temperature:memory",
        DEGRADED,
        "gpud",
        lambda: sampled(sample(memory_temperature_c=105.1)),
        lambda: sampled(sample(memory_temperature_c=105.0)),
    ),
    "two_degrees_past_the_margin_of_an_h100": Rule(
        "thermal_margin",
        DEGRADED,
        "NVSentinel ADR-042",
        lambda: sampled(sample(temperature_margin_c=-2.1), model="NVIDIA H100 80GB HBM3"),
        lambda: sampled(sample(temperature_margin_c=-2.0), model="NVIDIA H100 80GB HBM3"),
    ),
    "three_degrees_past_the_margin_of_a_b200": Rule(
        "thermal_margin",
        DEGRADED,
        "NVSentinel ADR-042",
        lambda: sampled(sample(temperature_margin_c=-3.1), model="NVIDIA B200"),
        lambda: sampled(sample(temperature_margin_c=-3.0), model="NVIDIA B200"),
    ),
}
LINKS: dict[str, Rule] = {
    "pcie_replays_of_x16_generation_4": Rule(
        "pcie_replays",
        WARNING,
        "DCGM",
        lambda: rates(pcie_replays=17, pcie_generation=4, pcie_width=16),
        lambda: rates(pcie_replays=16, pcie_generation=4, pcie_width=16),
    ),
    "pcie_replays_of_x16_generation_5": Rule(
        "pcie_replays",
        WARNING,
        "DCGM",
        lambda: rates(pcie_replays=32, pcie_generation=5, pcie_width=16),
        lambda: rates(pcie_replays=31, pcie_generation=5, pcie_width=16),
    ),
    "480_correctable_pcie_errors_in_15_minutes": Rule(
        "pcie_errors",
        WARNING,
        "DCGM",
        lambda: rates(900.0, pcie_correctable_errors=481),
        lambda: rates(900.0, pcie_correctable_errors=480),
    ),
    "fewer_pcie_lanes_under_load": Rule(
        "pcie_link:width",
        DEGRADED,
        "DCGM",
        lambda: state(pcie_loaded_width=8, pcie_max_width=16),
        lambda: state(pcie_loaded_width=16, pcie_max_width=16),
    ),
    "nvlink_replays_rise": Rule("nvlink_rises", INFO, "DCGM", lambda: rates(replays=1), lambda: rates(replays=0)),
    "100_flit_crc_errors_a_second": Rule(
        "nvlink_crc", DEGRADED, "DCGM", lambda: rates(crc_errors=6_000), lambda: rates(crc_errors=5_999)
    ),
    "more_than_15_of_30_minutes": Rule(
        "nvlink_windows", DEGRADED, "NVRx", lambda: rates(bad_windows=16), lambda: rates(bad_windows=15)
    ),
    "an_nvlink_is_down": Rule(
        "nvlink_down",
        DEGRADED,
        "Azure; gpud; DCGM",
        lambda: state(nvlink_links_down=1),
        lambda: state(nvlink_links_down=0),
    ),
    "an_nvlink_to_nothing": Rule(
        "nvlink_to_nothing",
        DEGRADED,
        "gpud",
        lambda: state(nvlink_links_to_nothing=1),
        lambda: state(nvlink_links_to_nothing=0),
    ),
    "18_nvlinks_of_an_h100": Rule(
        "nvlink_count:links",
        DEGRADED,
        "NVSentinel; DCGM",
        lambda: state(H100, nvlink_links=17),
        lambda: state(H100, nvlink_links=18),
    ),
    "12_nvlinks_of_an_a100": Rule(
        "nvlink_count:links",
        DEGRADED,
        "NVSentinel; DCGM",
        lambda: state(A100, nvlink_links=11),
        lambda: state(A100, nvlink_links=12),
    ),
    "nvlinks_at_the_rate_of_a_b200": Rule(
        "nvlink_count:rate",
        WARNING,
        "NVSentinel; DCGM",
        lambda: state(B200, nvlink_links=18, nvlink_mb_per_s=49_937),
        lambda: state(B200, nvlink_links=18, nvlink_mb_per_s=49_938),
    ),
    "fewer_ports_than_there_were": Rule(
        "port_count",
        DEGRADED,
        "gpud",
        lambda: of_node(HOST, expected_ports=8, found_ports=7),
        lambda: of_node(HOST, expected_ports=8, found_ports=8),
    ),
    "a_port_slower_than_it_was": Rule(
        f"port_rate:{RDMA}",
        DEGRADED,
        "gpud",
        lambda: of_node(PORT, RDMA, state=4, rate_gbps=200, best_rate_gbps=400),
        lambda: of_node(PORT, RDMA, state=4, rate_gbps=400, best_rate_gbps=400),
    ),
    "a_port_is_down": Rule(
        f"port_down:{RDMA}",
        DEGRADED,
        "gpud",
        lambda: of_node(PORT, RDMA, state=1, physical_state=2, was_active=1),
        lambda: of_node(PORT, RDMA, state=4, physical_state=5, was_active=1),
    ),
    "three_flaps": Rule(f"port_flaps:{RDMA}", DEGRADED, "gpud", lambda: flaps(3, 25), lambda: flaps(2, 25)),
    "a_flap_of_25_seconds": Rule(f"port_flaps:{RDMA}", DEGRADED, "gpud", lambda: flaps(3, 25), lambda: flaps(3, 24.9)),
    **{
        f"{name}_rises": Rule(
            f"port_fatal:{RDMA}",
            DEGRADED,
            "NVSentinel",
            partial(port_rates, **{name: 1}),
            partial(port_rates, **{name: 0}),
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
        lambda: port_rates(3600.0, symbol_error=121),
        lambda: port_rates(3600.0, symbol_error=120),
    ),
    **{
        f"more_than_{limit}_{name}_in_{window_s}_s": Rule(
            f"{fault}:{RDMA}",
            WARNING,
            "NVSentinel",
            partial(port_rates, window_s, **{name: limit + 1}),
            partial(port_rates, window_s, **{name: limit}),
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
        lambda: of_node(HOST, expected_gpus=8, found_gpus=7),
        lambda: of_node(HOST, expected_gpus=8, found_gpus=8),
    ),
}
TABLE: dict[str, Rule] = {**AGAIN, **MEMORY, **CLOCKS, **LINKS}


@pytest.mark.parametrize("name", TABLE)
def test_each_rule_of_the_field_at_its_number_and_short_of_it(name: str) -> None:
    rule = TABLE[name]
    assert rule.at().get(rule.fault) is rule.severity
    assert rule.fault not in rule.short_of()


def test_each_rule_is_a_detectors() -> None:
    """A window's seconds of throttling are told as the samples' fault."""
    detectors: Sequence[str] = [rule.name for rule in DETECTORS]
    assert {rule.fault.partition(":")[0] for rule in TABLE.values()} <= set(detectors)


@pytest.mark.parametrize("bit", [0x1, 0x4, 0x10, 0x100])
def test_what_holds_clocks_down_and_is_no_fault(bit: int) -> None:
    """Idle, the power cap, a peer's boost and a display."""
    assert clocks(bit, 10) == {}
