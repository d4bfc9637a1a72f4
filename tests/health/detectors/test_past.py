"""The quick look agrees with the whole judgement, and standing faults end when they are seen to."""

from hypothesis import given
from hypothesis import strategies as st

from health.detectors.detector import Closing
from health.detectors.past import Past, Watched, is_quiet, judged, past_check_of, relevant_readings, watched_in
from muster.domain.evidence.findings import Finding, GpuSample, Severity
from muster.domain.gpu.metrics import INDEX, METRICS
from tests.health.case_factory import GPU, NODE, NOW_MS, POLICY, SECOND, lost_sample, sample

CHECK = past_check_of(POLICY)
COUNTER = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.0, 511.0, 512.0]))
FLAG = st.sampled_from([None, 0.0, 1.0])
READINGS = st.fixed_dictionaries(
    {
        "ecc_uncorrected_volatile": COUNTER,
        "ecc_uncorrected_aggregate": COUNTER,
        "remapped_rows_uncorrected": COUNTER,
        "remapped_rows_corrected": COUNTER,
        "remap_pending": FLAG,
        "remap_failure": FLAG,
        "recovery_action": st.sampled_from([None, 0.0, 1.0, 2.0, 9.0]),
        "clock_event_reasons": st.sampled_from([None, 0.0, 1.0, 4.0, 0x8, 0x20, 0x40, 0x80, 0x48]),
    }
)


@given(st.tuples(COUNTER, COUNTER, COUNTER, COUNTER), READINGS)
def test_a_quiet_sample_states_nothing_and_leaves_what_is_remembered(
    watched: Watched, readings: dict[str, float | None]
) -> None:
    seen = sample(NOW_MS, **readings)
    after, said = judged(Past(watched), NODE, seen, POLICY, NOW_MS)
    if is_quiet(watched, seen.values, CHECK):
        assert said == ()
        assert after == Past(watched)
    elif not said:
        assert after != Past(watched) or watched != watched_in(seen.values), "slow for a reason"


@given(st.tuples(COUNTER, COUNTER, COUNTER, COUNTER), READINGS, st.sampled_from([None, 0.0, 7.0]))
def test_whether_a_sample_is_quiet_hangs_on_the_readings_that_report_alone(
    watched: Watched, readings: dict[str, float | None], other: float | None
) -> None:
    rest = {metric.name: other for metric in METRICS if metric.name not in readings}
    plain, changed = sample(NOW_MS, **readings).values, sample(NOW_MS, **readings, **rest).values
    assert relevant_readings(plain) == relevant_readings(changed)
    assert is_quiet(watched, plain, CHECK) == is_quiet(watched, changed, CHECK)


def test_a_healthy_sample_is_quiet_whatever_else_it_reads() -> None:
    idle = sample(NOW_MS)
    busy = sample(NOW_MS, power_w=700.0, clock_event_reasons=4.0, ecc_corrected_volatile=9.0, temperature_c=80.0)
    assert is_quiet(watched_in(idle.values), busy.values, CHECK)


def reported_in_turn(*samples: GpuSample) -> list[tuple[str, str]]:
    past, told = Past(), []
    for each in samples:
        past, said = judged(past, NODE, each, POLICY, each.at_ms)
        told += [("begins" if isinstance(one, Finding) else "ends", one.fault_key) for one in said]
    return told


def test_a_standing_fault_ends_with_the_first_sample_that_reads_it_gone() -> None:
    pending, unread, over = (
        sample(NOW_MS + at * SECOND, remap_pending=value) for at, value in enumerate([1.0, None, 0.0])
    )
    fault = "row_remap:pending"
    assert reported_in_turn(pending, unread) == [("begins", fault)]
    assert reported_in_turn(pending, unread, over) == [("begins", fault), ("ends", fault)]


def test_a_lost_gpu_ends_no_other_fault() -> None:
    pending, lost = sample(NOW_MS, remap_pending=1.0), lost_sample(NOW_MS + SECOND)
    back = sample(NOW_MS + 2 * SECOND, remap_pending=1.0)
    assert reported_in_turn(pending, lost, back) == [
        ("begins", "row_remap:pending"),
        ("begins", "gpu_lost"),
        ("ends", "gpu_lost"),
    ]


def test_a_gpu_that_answers_nothing_is_not_back() -> None:
    silent = GpuSample(GPU, NOW_MS + SECOND, (None,) * len(METRICS))
    assert reported_in_turn(lost_sample(NOW_MS), silent) == [("begins", "gpu_lost")]


def test_another_recovery_action_is_another_fault() -> None:
    first, second = (sample(NOW_MS + at * SECOND, recovery_action=value) for at, value in enumerate([1.0, 2.0]))
    assert [what for what, _ in reported_in_turn(first, second)] == ["begins", "begins", "ends"]


def test_clocks_that_come_and_go_have_no_end() -> None:
    held = [sample(NOW_MS + at * SECOND, clock_event_reasons=0x40) for at in range(6)]
    free = [sample(NOW_MS + at * SECOND) for at in range(6, 30)]
    assert reported_in_turn(*held, *free) == [("begins", "clock_events:hw_thermal")]


def test_an_end_names_its_gpu_and_time() -> None:
    _, said = judged(Past(stated_ms={"gpu_lost": NOW_MS}), NODE, sample(NOW_MS + SECOND), POLICY, NOW_MS + SECOND)
    assert said == (Closing("gpu_lost", NODE, GPU, NOW_MS + SECOND),)


def test_counters_stand_where_the_metrics_state() -> None:
    values = [float(at) for at in range(len(METRICS))]
    names = (
        "ecc_uncorrected_volatile",
        "ecc_uncorrected_aggregate",
        "remapped_rows_uncorrected",
        "remapped_rows_corrected",
    )
    assert watched_in(values) == tuple(float(INDEX[name]) for name in names)


def first_check(past: Past = Past(), **readings: float | None) -> list[tuple[str, Severity]]:  # noqa: B008  # frozen
    found = judged(past, NODE, sample(NOW_MS, **readings), POLICY, NOW_MS)[1]
    return [(each.fault_key, each.severity) for each in found if isinstance(each, Finding)]


def test_volatile_uncorrected_errors_at_first_sight_condemn_as_a_rise_would() -> None:
    seen = first_check(ecc_uncorrected_volatile=2.0, ecc_uncorrected_aggregate=5.0)
    assert seen == [("ecc_uncorrected", Severity.CONDEMNING)]


def test_uncorrected_errors_of_a_boards_life_at_first_sight_warn_and_order_a_burn_in() -> None:
    assert first_check(ecc_uncorrected_aggregate=5.0) == [("ecc_history", Severity.WARNING)]
    assert "ecc_history" in POLICY.burn_in.requested_by
    assert first_check() == []


def test_a_restart_of_agent_or_server_is_no_first_sight() -> None:
    after, _ = judged(Past(), NODE, sample(ecc_uncorrected_volatile=2.0, ecc_uncorrected_aggregate=5.0), POLICY, NOW_MS)
    stored = Past(after.watched)
    assert first_check(stored, ecc_uncorrected_volatile=2.0, ecc_uncorrected_aggregate=5.0) == []
    assert first_check(stored, ecc_uncorrected_volatile=0.0, ecc_uncorrected_aggregate=5.0) == []
    risen = first_check(stored, ecc_uncorrected_volatile=1.0, ecc_uncorrected_aggregate=6.0)
    assert risen == [("ecc_uncorrected", Severity.CONDEMNING)]


def test_a_first_poll_without_the_counters_is_no_sight_of_them() -> None:
    blank, _ = judged(
        Past(), NODE, sample(ecc_uncorrected_volatile=None, ecc_uncorrected_aggregate=None), POLICY, NOW_MS
    )
    assert first_check(blank, ecc_uncorrected_volatile=1.0) == [("ecc_uncorrected", Severity.CONDEMNING)]
