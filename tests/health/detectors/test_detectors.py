"""Detectors: what a rise, a standing fault, a rate and an event say, and what says nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.detectors.detector import Findings
from health.detectors.load.clock_events import HW_SLOWDOWN, HW_THERMAL, POWER_BRAKE, SW_THERMAL
from health.detectors.registry import DETECTORS, GpuMemory, closings_of, judge_sample, judge_signal
from muster.domain.evidence.findings import EventKind, GpuSample, Severity, Source, Trust
from tests.health.case_factory import GPU, MINUTE, NODE, NOW_MS, POLICY, SECOND, lost_sample, sample, signal

INTERVAL = 10 * SECOND


def judged(samples: Iterable[GpuSample]) -> list[Findings]:
    """The findings of each sample in turn, of a GPU never seen before."""
    memory, found = GpuMemory(NODE), []
    for each in samples:
        memory, findings = judge_sample(memory, each, POLICY, each.at_ms)
        found.append(findings)
    return found


def series(**readings: Sequence[float | None]) -> list[GpuSample]:
    """One sample each interval."""
    length = len(next(iter(readings.values())))
    return [
        sample(NOW_MS + at * INTERVAL, **{name: values[at] for name, values in readings.items()})
        for at in range(length)
    ]


def keys(found: list[Findings]) -> list[list[str]]:
    return [[each.fault_key for each in findings] for findings in found]


def test_a_healthy_gpu_has_no_findings() -> None:
    assert keys(judged(series(power_w=[300.0, 310.0, 305.0], clock_event_reasons=[0.0, 1.0, 4.0]))) == [[], [], []]


def test_a_gpu_that_supports_nothing_has_no_findings() -> None:
    blank = [GpuSample(GPU, NOW_MS + at, (None,) * 29) for at in range(3)]
    assert keys(judged(blank)) == [[], [], []]


def test_uncorrected_errors_condemn_at_first_sight_and_then_by_their_rise_alone() -> None:
    found = judged(series(ecc_uncorrected_volatile=[5.0, 5.0, 7.0, 7.0]))
    assert keys(found) == [["ecc_uncorrected"], [], ["ecc_uncorrected"], []]
    assert found[0][0].values == {"errors": 5.0}
    finding = found[2][0]
    assert finding.severity is Severity.CONDEMNING
    assert finding.trust is Trust.MEASURED
    assert finding.threatens_correctness
    assert finding.values == {"errors": 2.0}


def test_one_error_in_both_counters_is_one() -> None:
    found = judged(series(ecc_uncorrected_volatile=[0.0, 1.0], ecc_uncorrected_aggregate=[8.0, 9.0]))
    assert [each.values["errors"] for each in found[1]] == [1.0]


def test_a_standing_fault_is_stated_again_to_the_millisecond() -> None:
    again_ms = int(POLICY.evidence.restate_s * 1000)
    times = (NOW_MS, NOW_MS + again_ms - 1, NOW_MS + again_ms, NOW_MS + 2 * again_ms - 1, NOW_MS + 2 * again_ms)
    found = judged(sample(at_ms, recovery_action=1.0) for at_ms in times)
    assert [len(findings) for findings in found] == [1, 0, 1, 0, 1]


def test_counters_that_go_down_are_a_driver_reload_and_no_finding() -> None:
    assert keys(
        judged(series(ecc_uncorrected_volatile=[7.0, 0.0, 0.0], remapped_rows_uncorrected=[3.0, 0.0, 0.0]))
    ) == [
        ["ecc_uncorrected"],
        [],
        [],
    ]


def test_an_error_behind_a_driver_reload_is_seen_in_the_aggregate() -> None:
    found = judged(series(ecc_uncorrected_volatile=[7.0, 1.0], ecc_uncorrected_aggregate=[7.0, 8.0]))
    assert keys(found) == [["ecc_uncorrected"], ["ecc_uncorrected"]]
    assert found[1][0].values == {"errors": 1.0}


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_rise_across_a_failed_poll_is_seen_once(is_lost: bool) -> None:  # noqa: FBT001  # a case of pytest's
    gap = replace(lost_sample(NOW_MS + INTERVAL), is_lost=is_lost)
    found = judged(
        [
            sample(NOW_MS, ecc_uncorrected_aggregate=1.0),
            gap,
            sample(NOW_MS + 2 * INTERVAL, ecc_uncorrected_aggregate=2.0),
            sample(NOW_MS + 3 * INTERVAL, ecc_uncorrected_aggregate=2.0),
        ]
    )
    assert [keys(found)[2], keys(found)[3]] == [["ecc_uncorrected"], []]


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=12))
def test_counters_never_give_a_negative_rise(counts: list[int | None]) -> None:
    values: list[float | None] = [None if count is None else float(count) for count in counts]
    for findings in judged(series(ecc_uncorrected_volatile=values)):
        assert all(each.values["errors"] > 0 for each in findings)


def test_a_remap_that_waits_is_reported_when_it_begins_and_again_each_ten_minutes() -> None:
    every_minute = [sample(NOW_MS + at * MINUTE, remap_pending=1.0) for at in range(21)]
    told = [at for at, findings in enumerate(judged(every_minute)) if findings]
    assert told == [0, 10, 20]


def test_a_remap_that_comes_back_is_reported_at_once() -> None:
    assert keys(judged(series(remap_pending=[1.0, 0.0, 1.0]))) == [["row_remap:pending"], [], ["row_remap:pending"]]


def test_remaps_are_as_bad_as_their_remedy() -> None:
    pending, failed, used_up = judged(
        [
            sample(NOW_MS, remap_pending=1.0),
            sample(NOW_MS + INTERVAL, remap_failure=1.0),
            sample(NOW_MS + 2 * INTERVAL, remapped_rows_uncorrected=512.0),
        ]
    )
    assert [(each.fault_key, each.severity) for each in (*pending, *failed)] == [
        ("row_remap:pending", Severity.DEGRADED),
        ("row_remap:failure", Severity.CONDEMNING),
    ]
    assert {each.fault_key for each in used_up} == {"row_remap:exhausted", "row_remap:uncorrected"}


def test_newly_remapped_rows_are_to_be_watched() -> None:
    found = judged(series(remapped_rows_uncorrected=[1.0, 2.0, 2.0]))
    assert keys(found) == [[], ["row_remap:uncorrected"], []]
    assert found[1][0].severity is Severity.WARNING


@pytest.mark.parametrize(
    ("total", "key", "severity"),
    [(10.0, "corrected_remaps:few", Severity.INFO), (11.0, "corrected_remaps:many", Severity.WARNING)],
)
def test_rows_remapped_after_correctable_errors_are_to_be_watched_past_ten(
    total: float, key: str, severity: Severity
) -> None:
    found = judged(series(remapped_rows_corrected=[total, total, total]))
    assert keys(found) == [[], [], []], "what a board came with is no rise"
    first, rise = judged(series(remapped_rows_corrected=[total - 1, total]))
    assert first == ()
    assert [(each.fault_key, each.severity) for each in rise] == [(key, severity)]


@pytest.mark.parametrize(
    ("value", "severity"),
    [(1.0, Severity.CONDEMNING), (2.0, Severity.CONDEMNING), (3.0, Severity.DEGRADED), (4.0, Severity.DEGRADED)],
)
def test_what_the_driver_requests_is_a_finding(value: float, severity: Severity) -> None:
    (findings,) = judged([sample(recovery_action=value)])
    assert [each.severity for each in findings] == [severity]


def test_an_unknown_recovery_action_is_only_watched() -> None:
    (findings,) = judged([sample(recovery_action=9.0)])
    assert [(each.fault_key, each.severity) for each in findings] == [("recovery_action:monitor", Severity.WARNING)]


@pytest.mark.parametrize("reasons", [0x1, 0x2, 0x4, 0x10, 0x100])
def test_idle_power_cap_and_settings_are_no_faults(reasons: int) -> None:
    assert not any(judged(series(clock_event_reasons=[float(reasons)] * 30)))


@pytest.mark.parametrize(
    ("reasons", "fault", "severity"),
    [
        (HW_SLOWDOWN, "clock_events:hw_slowdown", Severity.DEGRADED),
        (HW_SLOWDOWN | HW_THERMAL, "clock_events:hw_thermal", Severity.DEGRADED),
        (HW_SLOWDOWN | POWER_BRAKE, "clock_events:power_brake", Severity.WARNING),
        (SW_THERMAL, "clock_events:sw_thermal", Severity.WARNING),
    ],
)
def test_clocks_limited_are_one_finding_by_their_cause(reasons: int, fault: str, severity: Severity) -> None:
    found = judged(series(clock_event_reasons=[float(reasons)] * 9))
    assert keys(found) == [[]] * 5 + [[fault]] + [[]] * 3
    assert found[5][0].severity is severity


def test_clocks_limited_in_five_of_ten_samples_are_no_finding() -> None:
    assert not any(judged(series(clock_event_reasons=[float(HW_SLOWDOWN), 0.0] * 20)))


def test_clocks_limited_in_six_of_ten_samples_are_a_finding_once() -> None:
    pattern = [float(HW_SLOWDOWN)] * 6 + [0.0] * 4
    found = judged(series(clock_event_reasons=pattern * 3))
    assert sum(map(len, found)) == 1


def test_a_lost_gpu_condemns_once_but_does_not_threaten_correctness() -> None:
    lost = [lost_sample(NOW_MS + at * INTERVAL) for at in range(5)]
    found = judged([sample(NOW_MS - INTERVAL), *lost])
    assert keys(found) == [[], ["gpu_lost"], [], [], [], []]
    assert found[1][0].severity is Severity.CONDEMNING
    assert not found[1][0].threatens_correctness


def test_a_sample_that_is_not_newer_states_nothing() -> None:
    memory, _ = judge_sample(GpuMemory(NODE), sample(NOW_MS), POLICY, NOW_MS)
    late = sample(NOW_MS, remap_failure=1.0)
    assert judge_sample(memory, late, POLICY, NOW_MS) == (memory, ())


def test_an_onset_is_never_in_the_future() -> None:
    ahead = sample(NOW_MS + MINUTE, remap_pending=1.0)
    _, findings = judge_sample(GpuMemory(NODE), ahead, POLICY, NOW_MS)
    assert [each.onset_ms for each in findings] == [NOW_MS]


def test_the_same_samples_give_the_same_findings() -> None:
    samples = series(clock_event_reasons=[72.0] * 12, remap_pending=[0.0, 1.0] * 6, ecc_uncorrected_volatile=[0.0] * 12)
    assert judged(samples) == judged(samples)


def test_an_xid_is_judged_by_the_catalogue() -> None:
    (found,) = judge_signal(signal(code=95), POLICY)
    assert (found.fault_key, found.severity, found.threatens_correctness) == ("xid:95", Severity.CONDEMNING, True)
    assert found.gpu_uuid == GPU
    assert found.trust is Trust.MEASURED


def test_an_xid_reported_by_a_job_is_only_reported() -> None:
    (found,) = judge_signal(signal(code=95, source=Source.JOB), POLICY)
    assert found.trust is Trust.REPORTED


def test_an_xid_of_a_gpu_that_cannot_be_named_is_about_the_node() -> None:
    (found,) = judge_signal(signal(code=79, gpu=None), POLICY)
    assert (found.gpu_uuid, found.node_id) == (None, NODE)


def test_an_xid_154_is_judged_by_its_text() -> None:
    text = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    (found,) = judge_signal(signal(code=154, text=text), POLICY)
    assert (found.fault_key, found.severity) == ("xid:154:reboot_node", Severity.CONDEMNING)
    (bare,) = judge_signal(signal(code=154), POLICY)
    assert (bare.fault_key, bare.severity) == ("xid:154", Severity.INFO)


def test_eight_seven_eight_is_one_finding_that_closes() -> None:
    gone = signal(EventKind.GPU_COUNT, gpu=None, before=8.0, now=7.0)
    back = signal(EventKind.GPU_COUNT, gpu=None, at_ms=NOW_MS + MINUTE, before=7.0, now=8.0)
    (found,) = judge_signal(gone, POLICY)
    assert (found.fault_key, found.gpu_uuid, found.values) == ("gpu_count", None, {"expected": 8.0, "found": 7.0})
    assert judge_signal(back, POLICY) == ()
    assert closings_of(gone, POLICY) == ()
    assert [each.fault_key for each in closings_of(back, POLICY)] == ["gpu_count"]


def test_a_gpu_that_is_found_closes_its_loss() -> None:
    (found,) = judge_signal(signal(EventKind.GPU_LOST, source=Source.AGENT), POLICY)
    assert found.fault_key == "gpu_lost"
    back = signal(EventKind.GPU_FOUND, source=Source.AGENT)
    assert judge_signal(back, POLICY) == ()
    assert [(each.fault_key, each.gpu_uuid) for each in closings_of(back, POLICY)] == [("gpu_lost", GPU)]


def test_every_rule_is_named_and_versioned() -> None:
    assert {
        "xid",
        "ecc_uncorrected",
        "row_remap",
        "row_remap_rise",
        "recovery_action",
        "clock_events",
        "gpu_lost",
        "gpu_count",
    } < set(DETECTORS)


def test_every_rule_has_its_section_of_the_policy_and_no_section_is_of_none() -> None:
    assert set(DETECTORS) == set(type(POLICY.detectors).model_fields)
