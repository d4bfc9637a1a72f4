"""Repetitions: their findings, just below each count and at it, and what does not count."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

import pytest

from health.detectors.registry import GpuMemory, closings_of, judge_sample, judge_signal
from health.detectors.repeats.repair_repeats import repairs_of
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from health.evidence.state import is_open
from health.scoring.score import score
from muster.domain.evidence.findings import EventKind, Evidence, Finding, GpuSignal, Severity, Source, Suppression
from muster.domain.ids import EvidenceId
from muster.domain.policy.health import HealthPolicy
from tests.health.case_factory import DAY, GPU, HOUR, MINUTE, NODE, NOW_MS, POLICY, SECOND, finding, sample, signal

RDMA = "mlx5_0/1"
ECC_ON_LINK = "NVLink: fatal error detected on link 2(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
"""An XID 74 with bit 4 of the first register, that counts by its repetitions."""


def merged(
    signals: Iterable[GpuSignal], policy: HealthPolicy = POLICY, elsewhere: Sequence[Evidence] = ()
) -> EvidenceIndex:
    """The evidence that is left once all of them were noted, each as it happened."""
    known = EvidenceIndex()
    numbers = count()
    for each in signals:
        for found in judge_signal(each, policy):
            place = Place(known, lambda: elsewhere)
            for _ in merge(found, place, policy, each.at_ms, lambda: EvidenceId(f"ev_{next(numbers)}")):
                pass
    return known


def of(evidence: EvidenceIndex, prefix: str) -> list[Evidence]:
    return [each for each in evidence.values() if each.fault_key.startswith(prefix)]


def xids(code: int, gaps_ms: Sequence[int], text: str = "", source: Source = Source.KERNEL_LOG) -> list[GpuSignal]:
    """One at ``NOW_MS``, then one after each gap."""
    at_ms, found = NOW_MS, [signal(code=code, at_ms=NOW_MS, text=text, source=source)]
    for gap_ms in gaps_ms:
        at_ms += gap_ms
        found.append(signal(code=code, at_ms=at_ms, text=text, source=source))
    return found


@pytest.mark.parametrize(("gap_ms", "times"), [(DAY, 0), (DAY - SECOND, 1)])
def test_mmu_faults_twice_in_a_day_are_to_be_diagnosed(gap_ms: int, times: int) -> None:
    found = of(merged(xids(31, [gap_ms])), "mmu_fault_repeats")
    assert [each.severity for each in found] == [Severity.INFO] * times


def test_mmu_faults_on_other_gpus_of_the_node_too_are_the_programs() -> None:
    others = tuple(merged(xids(31, [])).values())
    assert of(merged(xids(31, [HOUR]), elsewhere=others), "mmu_fault_repeats") == []


def test_mmu_faults_of_one_burst_are_one() -> None:
    assert of(merged(xids(31, [6 * SECOND, 8 * SECOND])), "mmu_fault_repeats") == []


def test_mmu_faults_again_and_again_are_one_finding() -> None:
    assert len(of(merged(xids(31, [HOUR] * 12)), "mmu_fault_repeats")) == 1


@pytest.mark.parametrize(("gap_ms", "times"), [(DAY, 0), (DAY - SECOND, 1)])
@pytest.mark.parametrize("code", [39, 40, 41, 70, 72, 75, 77, 85, 126, 135])
def test_copy_engine_errors_twice_in_a_day_are_to_be_diagnosed(code: int, gap_ms: int, times: int) -> None:
    found = of(merged(xids(code, [gap_ms])), "copy_engine_repeats")
    assert [each.severity for each in found] == [Severity.INFO] * times
    others = tuple(merged(xids(39, [])).values())
    assert of(merged(xids(code, [gap_ms]), elsewhere=others), "copy_engine_repeats") == []


@pytest.mark.parametrize("code", [38, 42, 69, 73, 78, 86, 125, 136])
def test_what_is_no_copy_engine_is_counted_elsewhere(code: int) -> None:
    assert of(merged(xids(code, [HOUR])), "copy_engine_repeats") == []


@pytest.mark.parametrize("code", [13, 31])
def test_a_program_that_crashes_all_day_moves_no_gpu(code: int) -> None:
    text = "Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address"
    told = merged(xids(code, [HOUR] * 12, text))
    assert of(told, "mmu_fault" if code == 31 else "sm_exception")
    assert score(told.values(), POLICY, NOW_MS + 12 * HOUR).value == 100.0


@pytest.mark.parametrize(("second", "times"), [("GPC 3, TPC 1", 1), ("GPC 3, TPC 2", 0), ("GPC 2, TPC 1", 0)])
def test_sm_exceptions_twice_in_one_tpc_are_to_be_diagnosed(second: str, times: int) -> None:
    words = "Graphics SM Warp Exception on (GPC {}, SM 0): Out Of Range Address"
    told = [
        signal(code=13, source=Source.KERNEL_LOG, text=words.format("3, TPC 1").replace("GPC 3", "GPC 3")),
        signal(code=13, at_ms=NOW_MS + HOUR, source=Source.KERNEL_LOG, text=words.replace("GPC {}", second)),
    ]
    assert len(of(merged(told), "sm_exception_repeats")) == times


def test_sm_exceptions_within_fifteen_seconds_are_one() -> None:
    text = "Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address"
    assert of(merged(xids(13, [15 * SECOND], text)), "sm_exception_repeats") == []
    assert len(of(merged(xids(13, [15 * SECOND + 1], text)), "sm_exception_repeats")) == 1


@pytest.mark.parametrize(("times", "severity"), [(2, None), (3, Severity.CONDEMNING)])
def test_a_bit_of_an_nvlinks_register_three_times_in_a_day_condemns(times: int, severity: Severity | None) -> None:
    found = of(merged(xids(74, [HOUR] * (times - 1), ECC_ON_LINK)), "link_bit_repeats")
    assert [each.severity for each in found] == ([] if severity is None else [severity])


def test_a_bit_on_other_links_does_not_add_up() -> None:
    texts = [ECC_ON_LINK.replace("link 2", f"link {link}") for link in range(3)]
    told = [
        signal(code=74, at_ms=NOW_MS + at * HOUR, text=text, source=Source.KERNEL_LOG) for at, text in enumerate(texts)
    ]
    assert of(merged(told), "link_bit_repeats") == []


def test_two_errors_of_one_link_within_five_seconds_keep_the_bits_of_both() -> None:
    other = ECC_ON_LINK.replace("0x10", "0x20")
    told = [each for day in range(3) for each in two_texts(NOW_MS + day * HOUR, ECC_ON_LINK, other)]
    found = merged(told)
    assert len(of(found, "xid:74")) == 3
    assert [each.fault_key for each in of(found, "link_bit_repeats")] == [
        "link_bit_repeats:link2:1.4",
        "link_bit_repeats:link2:1.5",
    ]


def test_errors_of_two_links_at_once_are_counted_link_by_link() -> None:
    other = ECC_ON_LINK.replace("link 2", "link 3")
    found = merged([each for day in range(3) for each in two_texts(NOW_MS + day * HOUR, ECC_ON_LINK, other)])
    assert len(of(found, "xid:74")) == 6
    assert [each.fault_key for each in of(found, "link_bit_repeats")] == [
        "link_bit_repeats:link2:1.4",
        "link_bit_repeats:link3:1.4",
    ]


def two_texts(at_ms: int, first: str, second: str) -> list[GpuSignal]:
    return [
        signal(code=74, at_ms=at_ms + after, text=text, source=Source.KERNEL_LOG)
        for after, text in ((0, first), (4 * SECOND, second))
    ]


def test_gsp_errors_ask_for_a_reboot_then_for_the_board() -> None:
    keys = [[each.fault_key for each in of(merged(xids(119, [DAY] * more)), "gsp_repeats")] for more in range(3)]
    assert keys == [[], ["gsp_repeats:reboot"], ["gsp_repeats:reboot", "gsp_repeats:hold"]]


@pytest.mark.parametrize(("gap_ms", "times"), [(3 * HOUR, 0), (3 * HOUR + 1, 1), (30 * DAY - 1, 1), (30 * DAY, 0)])
def test_off_the_bus_again_within_thirty_days_holds_the_board(gap_ms: int, times: int) -> None:
    assert len(of(merged(xids(79, [gap_ms])), "bus_repeats:hold")) == times


@pytest.mark.parametrize("code", [136, 143])
def test_what_a_reset_did_not_mend_holds_the_board(code: int) -> None:
    assert [each.severity for each in of(merged(xids(code, [DAY])), "reset_repeats:hold")] == [Severity.CONDEMNING]


@pytest.mark.parametrize(("times", "found"), [(4, 0), (5, 1)])
def test_five_bursts_of_fatal_xids_in_a_day_hold_the_board(times: int, found: int) -> None:
    assert len(of(merged(xids(62, [HOUR] * (times - 1))), "fatal_repeats:hold")) == found


def test_fatal_xids_three_minutes_apart_are_one_burst() -> None:
    assert of(merged(xids(62, [3 * MINUTE] * 8)), "fatal_repeats") == []
    assert len(of(merged(xids(62, [3 * MINUTE + 1] * 8)), "fatal_repeats:hold")) == 1


def test_an_xid_that_sticks_is_one_burst_for_three_hours() -> None:
    assert of(merged(xids(95, [3 * HOUR] * 5)), "fatal_repeats") == []


def flap(at_ms: int) -> GpuSignal:
    return signal(
        EventKind.PORT_STATE, gpu=None, at_ms=at_ms, source=Source.HOST, text=RDMA, state=4.0, was_down_s=25.0
    )


@pytest.mark.parametrize(("times", "found"), [(2, 0), (3, 1)])
def test_a_port_that_flaps_three_times_is_the_nodes_fault(times: int, found: int) -> None:
    told = of(merged(flap(NOW_MS + at * MINUTE) for at in range(times)), "port_flaps")
    assert [(each.severity, each.gpu_uuid, each.fault_key) for each in told] == [
        (Severity.DEGRADED, None, f"port_flaps:{RDMA}")
    ] * found


def bad_link(at_ms: int) -> GpuSignal:
    return signal(
        EventKind.PORT_RATES,
        gpu=None,
        at_ms=at_ms,
        source=Source.HOST,
        text=RDMA,
        link_error_recovery=6.0,
        window_s=60.0,
    )


@pytest.mark.parametrize(("times", "found"), [(2, 0), (3, 1)])
def test_a_bad_link_three_times_in_an_hour_is_the_nodes_fault(times: int, found: int) -> None:
    evidence = merged(bad_link(NOW_MS + at * MINUTE) for at in range(times))
    assert len(of(evidence, "port_degraded")) == 1
    assert len(of(evidence, "nic_repeats")) == found


def retired(pages: float, at_ms: int) -> GpuSignal:
    return signal(EventKind.GPU_STATE, at_ms=at_ms, retired_pages_double_bit=pages)


@pytest.mark.parametrize(("pages", "found"), [(17.0, 0), (18.0, 1)])
def test_more_than_one_page_in_a_week_uses_a_board_up(pages: float, found: int) -> None:
    evidence = merged([retired(16.0, NOW_MS), retired(pages, NOW_MS + 7 * DAY - SECOND)])
    assert len(of(evidence, "retired_pages:week")) == found


def test_pages_count_from_the_first_on_and_stay_until_a_board_has_none() -> None:
    told = [retired(pages, NOW_MS + at * HOUR) for at, pages in enumerate((14.0, 17.0, 18.0))]
    assert [each.severity for each in of(merged(told), "retired_pages:week")] == [Severity.CONDEMNING]
    over = [{each.fault_key for each in closings_of(retired(pages, NOW_MS), POLICY)} for pages in (18.0, 0.0)]
    assert ["retired_pages:week" in each for each in over] == [False, True]


def missing(found: float, at_ms: int) -> GpuSignal:
    return signal(EventKind.HOST_STATE, gpu=None, source=Source.HOST, at_ms=at_ms, expected_gpus=8.0, found_gpus=found)


def test_a_count_of_gpus_that_rises_again_in_part_is_as_bad_as_what_is_missing_now() -> None:
    evidence = of(merged([missing(6.0, NOW_MS), missing(7.0, NOW_MS + HOUR), missing(7.0, NOW_MS + 2 * HOUR)]), "gpu_c")
    assert [(each.severity, is_open(each)) for each in evidence] == [
        (Severity.DEGRADED, False),
        (Severity.WARNING, True),
    ]


@pytest.mark.parametrize(("rows", "gap_ms", "found"), [(5.0, HOUR, 0), (6.0, HOUR, 1), (6.0, 7 * DAY, 0)])
def test_more_than_ten_rows_remapped_in_a_week_keep_new_jobs_away(rows: float, gap_ms: int, found: int) -> None:
    totals = ((NOW_MS - SECOND, 0.0), (NOW_MS, 5.0), (NOW_MS + gap_ms, 5.0 + rows))
    known = EvidenceIndex()
    memory, numbers = GpuMemory(NODE), count()
    for at_ms, total in totals:
        memory, findings = judge_sample(memory, sample(at_ms, remapped_rows_corrected=total), POLICY, at_ms)
        for each in findings:
            list(merge(each, Place(known), POLICY, at_ms, lambda: EvidenceId(f"ev_{next(numbers)}")))
    assert [each.severity for each in of(known, "corrected_remaps:rate")] == [Severity.DEGRADED] * found


def test_pages_of_more_than_a_week_ago_do_not_count() -> None:
    assert of(merged([retired(16.0, NOW_MS), retired(18.0, NOW_MS + 7 * DAY)]), "retired_pages:week") == []


@pytest.mark.parametrize(("times", "found"), [(4, 0), (5, 1)])
def test_five_repairs_on_one_node_in_a_week_are_the_nodes_fault(times: int, found: int) -> None:
    began = [NOW_MS - at * HOUR for at in range(times)]
    told = repairs_of(NODE, began, POLICY, NOW_MS)
    assert [(each.severity, each.gpu_uuid) for each in told] == [(Severity.DEGRADED, None)] * found
    assert repairs_of(NODE, [*began[:3], *[NOW_MS - 7 * DAY] * 9], POLICY, NOW_MS) == ()


def test_what_was_dismissed_does_not_count() -> None:
    known = merged(xids(79, []))
    known = EvidenceIndex(replace(each, is_dismissed=True) for each in known.values())
    (again,) = judge_signal(signal(code=79, at_ms=NOW_MS + DAY, source=Source.KERNEL_LOG), POLICY)
    list(merge(again, Place(known), POLICY, NOW_MS + DAY, lambda: EvidenceId("ev_again")))
    assert of(known, "bus_repeats") == []


def test_a_rule_that_is_off_finds_nothing_and_one_in_shadow_nothing_that_weighs() -> None:
    for mode, weights in (("off", []), ("shadow", [{Suppression.SHADOW}])):
        policy = HealthPolicy.model_validate({"detectors": {"bus_repeats": {"mode": mode}}})
        found = of(merged(xids(79, [4 * HOUR]), policy), "bus_repeats")
        assert [each.suppressed_by for each in found] == weights


def test_a_repetition_is_about_the_same_gpu() -> None:
    (found,) = of(merged(xids(79, [DAY])), "bus_repeats")
    assert (found.gpu_uuid, found.node_id, found.sources) == (GPU, NODE, (Source.KERNEL_LOG,))


def lost(at_ms: int) -> GpuSignal:
    return signal(EventKind.GPU_LOST, at_ms=at_ms, source=Source.AGENT)


def fell_off(at_ms: int) -> GpuSignal:
    return signal(code=79, at_ms=at_ms, source=Source.KERNEL_LOG)


def test_a_gpu_that_is_lost_again_is_off_the_bus_again_whoever_notified_of_it_first() -> None:
    later_ms = NOW_MS + 4 * HOUR
    for told in (
        [lost(NOW_MS), back(NOW_MS + MINUTE), lost(later_ms)],
        [lost(NOW_MS), fell_off(NOW_MS + SECOND), back(NOW_MS + MINUTE), lost(later_ms), fell_off(later_ms + SECOND)],
    ):
        assert len(of(merged(told), "bus_repeats:hold")) == 1


def back(at_ms: int) -> GpuSignal:
    return signal(EventKind.GPU_FOUND, at_ms=at_ms, source=Source.AGENT)


def requested_to_reset(at_ms: int) -> Finding:
    return replace(
        finding("recovery_action:reset_gpu", detector="recovery_action", severity=Severity.CONDEMNING), onset_ms=at_ms
    )


def test_what_the_driver_requests_first_takes_the_code_of_what_it_is_requested() -> None:
    known = EvidenceIndex()
    numbers = count()
    for day in range(3):
        at_ms = NOW_MS + day * DAY
        (xid,) = judge_signal(signal(code=119, at_ms=at_ms + SECOND, source=Source.KERNEL_LOG), POLICY)
        for each in (requested_to_reset(at_ms), xid):
            list(merge(each, Place(known), POLICY, each.onset_ms, lambda: EvidenceId(f"ev_{next(numbers)}")))
    asked = of(known, "recovery_action")
    assert [(each.values["code"], len(each.sources)) for each in asked] == [(119.0, 2)] * 3
    assert [each.fault_key for each in of(known, "gsp_repeats")] == ["gsp_repeats:reboot", "gsp_repeats:hold"]


def test_two_links_of_one_gpu_are_not_taken_for_one() -> None:
    first, second = (
        signal(code=74, at_ms=NOW_MS + at, text=ECC_ON_LINK.replace("link 2", f"link {at}"), source=Source.KERNEL_LOG)
        for at in range(2)
    )
    second = replace(second, text=second.text.replace("0x10", "0x20"))
    of_the_first = next(each for each in of(merged([first, second]), "xid:74") if each.values["link"] == 0)
    assert "bit_0_5" not in of_the_first.values


def bit_on_link(register: int, bit: int) -> str:
    words = [f"0x{1 << bit:x}" if number == register else "0x0" for number in range(1, 8)]
    return f"NVLink: fatal error detected on link 2({', '.join(words)})"


@pytest.mark.parametrize("bit", [16, 19])
@pytest.mark.parametrize(("times", "found"), [(1, []), (2, [Severity.CONDEMNING])])
def test_bits_16_and_19_of_the_third_register_condemn_at_the_second(
    bit: int, times: int, found: list[Severity]
) -> None:
    told = of(merged(xids(74, [HOUR] * (times - 1), bit_on_link(3, bit))), "link_bit_repeats")
    assert [each.severity for each in told] == found


@pytest.mark.parametrize(("register", "bit"), [(1, 27), (1, 29), (3, 17), (3, 18)])
@pytest.mark.parametrize(("times", "found"), [(1, []), (2, [Severity.WARNING])])
def test_bits_that_are_to_be_reported_if_repeated_warn_at_the_second(
    register: int, bit: int, times: int, found: list[Severity]
) -> None:
    told = of(merged(xids(74, [HOUR] * (times - 1), bit_on_link(register, bit))), "link_bit_repeats")
    assert [(each.severity, each.fault_key) for each in told] == [
        (severity, f"link_bit_repeats:link2:{register}.{bit}") for severity in found
    ]


@pytest.mark.parametrize(
    ("register", "bit"), [(1, 4), (1, 5), *((3, bit) for bit in (0, 1, 2, 6)), *((5, bit) for bit in (18, 19, 21, 28))]
)
@pytest.mark.parametrize(("times", "found"), [(2, 0), (3, 1)])
def test_ecc_bits_condemn_past_two(register: int, bit: int, times: int, found: int) -> None:
    told = of(merged(xids(74, [HOUR] * (times - 1), bit_on_link(register, bit))), "link_bit_repeats")
    assert [each.severity for each in told] == [Severity.CONDEMNING] * found
