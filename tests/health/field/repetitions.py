"""Repetitions within a window: the correlation rules of NVSentinel's analyzer and NVIDIA's catalogue."""

from tests.health.case_factory import DAY, HOUR, MINUTE, NOW_MS, SECOND, signal
from tests.health.field.judged import (
    CONDEMNING,
    DEGRADED,
    INFO,
    RDMA,
    Rule,
    bad_link,
    card_states,
    cards,
    one_after_the_other,
    repairs,
    reported,
    xids,
)

ECC_ON_LINK = "NVLink: fatal error detected on link 2(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
AGAIN_ON_LINK = "NVLink: fatal error detected on link 2(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
SM = "Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address"
AGAIN: dict[str, Rule] = {
    "five_repairs_on_a_node_in_seven_days": Rule("repair_repeats", DEGRADED, "NVSentinel", repairs(5), repairs(4)),
    "five_bursts_of_fatal_xids_in_a_day": Rule(
        "fatal_repeats:hold", CONDEMNING, "NVSentinel", xids(62, HOUR, 5), xids(62, HOUR, 4)
    ),
    "a_burst_ends_with_three_minutes": Rule(
        "fatal_repeats:hold",
        CONDEMNING,
        "NVSentinel",
        xids(62, 3 * MINUTE + 1, 5),
        xids(62, 3 * MINUTE, 5),
    ),
    "an_xid_that_sticks_is_one_for_three_hours": Rule(
        "fatal_repeats:hold",
        CONDEMNING,
        "NVSentinel",
        xids(95, 3 * HOUR + 1, 5),
        xids(95, 3 * HOUR, 5),
    ),
    "xid_31_twice_in_a_day": Rule("mmu_fault_repeats", INFO, "NVSentinel", xids(31, DAY - 1, 2), xids(31, DAY, 2)),
    "xid_31_on_one_gpu_and_not_on_several": Rule(
        "mmu_fault_repeats", INFO, "NVSentinel", xids(31, HOUR, 2), xids(31, HOUR, 2, alongside=True)
    ),
    "xid_13_of_one_tpc_and_not_of_two": Rule(
        "sm_exception_repeats",
        INFO,
        "NVSentinel",
        xids(13, HOUR, 2, SM),
        reported(
            *(signal(code=13, at_ms=NOW_MS + at * HOUR, text=SM.replace("TPC 1", f"TPC {at}")) for at in range(2))
        ),
    ),
    "xid_13_twice_in_a_day_in_one_tpc": Rule(
        "sm_exception_repeats", INFO, "NVSentinel", xids(13, DAY - 1, 2, SM), xids(13, DAY, 2, SM)
    ),
    "xid_13_of_one_burst_of_fifteen_seconds": Rule(
        "sm_exception_repeats",
        INFO,
        "NVSentinel",
        xids(13, 15 * SECOND + 1, 2, SM),
        xids(13, 15 * SECOND, 2, SM),
    ),
    "copy_engines_again_in_a_day": Rule("copy_engine_repeats", INFO, "NVIDIA", xids(39, DAY - 1, 2), xids(39, DAY, 2)),
    "more_than_two_of_a_bit_of_xid_74_on_one_link": Rule(
        "link_bit_repeats:link2:1.4",
        CONDEMNING,
        "NVIDIA",
        xids(74, HOUR, 3, ECC_ON_LINK),
        xids(74, HOUR, 2, ECC_ON_LINK),
    ),
    "xid_45_alone": Rule(
        "cleanup_alone",
        INFO,
        "NVIDIA",
        one_after_the_other((31, 0), (45, 5 * SECOND + 1)),
        one_after_the_other((31, 0), (45, 5 * SECOND)),
    ),
    "xid_79_again_in_thirty_days": Rule(
        "bus_repeats:hold", CONDEMNING, "NVIDIA", xids(79, 30 * DAY - 1, 2), xids(79, 30 * DAY, 2)
    ),
    "xid_119_thrice": Rule("gsp_repeats:hold", CONDEMNING, "NVIDIA", xids(119, DAY, 3), xids(119, DAY, 2)),
    "xid_136_again": Rule("reset_repeats:hold", CONDEMNING, "NVIDIA", xids(136, DAY, 2), xids(136, DAY, 1)),
    "a_bit_that_asks_for_diagnosis_again": Rule(
        "link_bit_repeats:link2:3.16",
        CONDEMNING,
        "NVIDIA",
        xids(74, HOUR, 2, AGAIN_ON_LINK),
        xids(74, HOUR, 1, AGAIN_ON_LINK),
    ),
    "three_faults_of_network_cards_in_an_hour": Rule(
        "nic_driver_repeats", DEGRADED, "NVSentinel", cards(3, MINUTE), cards(3, HOUR // 2)
    ),
    "a_card_whose_firmware_failed": Rule(
        "nic_driver:unrecoverable:0000:3b:00.0",
        DEGRADED,
        "NVSentinel; Linux mlx5_core",
        card_states("mlx5_core 0000:3b:00.0: health_care:152:(pid 9): unrecoverable hardware error"),
        card_states("mlx5_core 0000:3b:00.0: Port module event: module 1, Cable plugged"),
    ),
    "a_bad_link_thrice_in_an_hour": Rule(f"nic_repeats:{RDMA}", DEGRADED, "NVSentinel", bad_link(3), bad_link(2)),
}
