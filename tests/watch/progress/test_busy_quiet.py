"""Ranks without a sensor that use the processor: overdue after hours without any other change, never sooner."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.policy.watch import KnownLimits, WatchPolicy
from watch.phases import Phase
from watch.progress.gpu_work import LONGEST_GAP_S, GpuUse, GpuWork, was_idle
from watch.progress.tracker import Overdue, Tracker
from watch.reports import RankReport

POLICY = WatchPolicy()
LIMIT_S = POLICY.busy_quiet_s
SPANS = st.floats(0, 10 * LIMIT_S)


def bare(rank: int, still_s: float, busy_quiet_s: float | None) -> RankReport:
    return RankReport(rank, Phase.IMPORT, still_s=still_s, has_sensor=False, busy_quiet_s=busy_quiet_s)


def overdue_of(*reports: RankReport, policy: WatchPolicy = POLICY) -> Overdue | None:
    """Return what is found of ranks that stay as they are for a minute."""
    tracker = Tracker(policy)
    found = [tracker.take(reports, float(second)) for second in range(60)]
    assert found[0] is None, "one look is not enough"
    return found[-1]


def test_a_dead_loop_is_overdue_after_six_hours_and_not_before() -> None:
    assert LIMIT_S == 6 * 3600
    assert overdue_of(bare(0, 0.0, LIMIT_S)) is None
    overdue = overdue_of(bare(0, 0.0, LIMIT_S + 1))
    assert overdue == Overdue(Phase.IMPORT, 0, LIMIT_S, LIMIT_S + 1, (), is_busy=True)


def test_what_is_unknown_as_of_an_earlier_release_is_never_overdue() -> None:
    assert overdue_of(bare(0, 0.0, None)) is None
    assert overdue_of(bare(0, 0.0, 1e9), bare(1, 0.0, None)) is None
    assert overdue_of(bare(0, 1e9, 1e9), bare(1, 0.0, None)) is None


def test_a_rank_that_waits_for_the_one_in_the_loop_is_overdue_with_it() -> None:
    overdue = overdue_of(bare(0, LIMIT_S + 60, LIMIT_S + 60), bare(1, 0.0, LIMIT_S + 9))
    assert overdue is not None
    assert (overdue.is_busy, overdue.still_s) == (True, LIMIT_S + 9)


def test_ranks_that_do_nothing_at_all_are_overdue_by_their_own_limit() -> None:
    overdue = overdue_of(bare(0, POLICY.quiet_s + 1, POLICY.quiet_s + 1))
    assert overdue is not None
    assert (overdue.is_busy, overdue.limit_s) == (False, POLICY.quiet_s)


def test_the_limit_is_never_shorter_than_that_of_a_rank_without_processor_time() -> None:
    policy = WatchPolicy(quiet_s=86_400.0)
    assert overdue_of(bare(0, 0.0, LIMIT_S + 1), policy=policy) is None
    overdue = overdue_of(bare(0, 0.0, 86_401.0), policy=policy)
    assert overdue is not None
    assert overdue.limit_s == 86_400.0


def test_a_rank_with_a_sensor_is_judged_by_its_own_progress() -> None:
    stepping = RankReport(1, Phase.STEP, 9, still_s=0.0)
    assert overdue_of(bare(0, 0.0, 1e9), stepping) is None
    spinning = RankReport(0, Phase.STEP, 9, still_s=0.0, busy_quiet_s=1e9)
    assert overdue_of(spinning) is None


def test_a_watch_that_is_off_finds_no_loop() -> None:
    assert overdue_of(bare(0, 0.0, 1e9), policy=WatchPolicy(is_on=False)) is None


@given(st.lists(st.tuples(SPANS, st.none() | SPANS), min_size=1, max_size=5))
def test_no_set_of_ranks_is_overdue_by_it_while_one_of_them_may_work(spans: list[tuple[float, float | None]]) -> None:
    """Whatever the others do, a rank that is below both limits, or of which it is unknown, keeps them all."""
    overdue = overdue_of(*(bare(rank, *of_rank) for rank, of_rank in enumerate(spans)))
    if overdue is None:
        return
    if overdue.is_busy:
        assert all(busy_s is not None and busy_s > LIMIT_S for _, busy_s in spans)
    else:
        assert all(still_s > POLICY.quiet_s for still_s, _ in spans)


@given(SPANS, SPANS, st.floats(3600, LIMIT_S))
def test_longer_silence_is_never_judged_more_mildly(busy_s: float, more_s: float, limit_s: float) -> None:
    policy = WatchPolicy(busy_quiet_s=limit_s, known=KnownLimits(step_s=1.0))
    if overdue_of(bare(0, 0.0, busy_s), policy=policy) is not None:
        assert overdue_of(bare(0, 0.0, busy_s + more_s), policy=policy) is not None


@pytest.mark.parametrize(
    ("now", "is_used"),
    [
        ({"gpu.a.utilisation": 0.0, "gpu.a.power_w": 80.0}, False),
        ({"gpu.a.utilisation": 7.0, "gpu.a.power_w": 80.0}, True),
        ({"gpu.a.utilisation": 0.0, "gpu.a.power_w": 500.0}, True),
        ({"gpu.a.utilisation": 100.0, "gpu.a.power_w": 200.0}, False),
        ({"gpu.a.utilisation": 100.0}, True),
        ({}, None),
    ],
    ids=str,
)
def test_a_little_work_on_a_gpu_is_work_and_a_waiting_collective_is_none(
    now: dict[str, float], *, is_used: bool | None
) -> None:
    work = GpuWork()
    work.take({"gpu.a.utilisation": 100.0, "gpu.a.power_w": 640.0})
    assert work.is_used(["a"], now) is is_used
    assert work.is_used(["a", "b"], now) is (True if is_used else None), "of b nothing is known"
    assert work.is_used([], now) is False


def idle_at(*moments: float, used: float = 0.0) -> list[GpuUse]:
    return [GpuUse(at_s, used) for at_s in moments]


def test_a_gpu_was_idle_only_if_samples_of_the_whole_time_show_it() -> None:
    idle = idle_at(*range(0, 7200, 600), 7200)
    assert was_idle(idle, 0, 7200)
    assert not was_idle([], 0, 7200)
    assert not was_idle([*idle[:6], GpuUse(3600, 40.0), *idle[7:]], 0, 7200)
    assert not was_idle(idle_at(*(each.at_s for each in idle), used=math.nan), 0, 7200)
    assert not was_idle(idle[:4], 0, 7200), "nothing is known of the end"
    assert not was_idle(idle[5:], 0, 7200), "nothing is known of the begin"
    assert was_idle([GpuUse(-60, 99.0), *idle, GpuUse(7260, 99.0)], 0, 7200), "of another time"


@given(
    st.lists(st.builds(GpuUse, st.floats(0, 7200), st.sampled_from([0.0, 0.4, 3.0, math.nan])), max_size=40),
    st.floats(0, 7200),
)
def test_more_samples_of_work_never_make_a_gpu_idle(samples: list[GpuUse], at_s: float) -> None:
    assert not was_idle(sorted([*samples, GpuUse(at_s, 50.0)]), 0.0, 7200.0)
    if was_idle(sorted(samples), 0.0, 7200.0):
        seen = sorted(each.at_s for each in samples if not math.isnan(each.utilisation))
        assert seen[0] <= LONGEST_GAP_S
        assert seen[-1] >= 7200.0 - LONGEST_GAP_S


def early_of(*reports: RankReport, policy: WatchPolicy = POLICY) -> Overdue | None:
    """Return what is found where another judge has the readings of the GPUs."""
    tracker = Tracker(policy, lacks_gpu_readings=True)
    return [tracker.take(reports, float(second)) for second in range(60)][-1]


def test_ranks_of_gpus_that_another_reads_are_overdue_for_that_judge_sooner() -> None:
    assert early_of(bare(0, 0.0, POLICY.quiet_s)) is None
    early = Overdue(Phase.IMPORT, 0, POLICY.quiet_s, POLICY.quiet_s + 1, (), is_busy=True, needs_gpus=True)
    assert early_of(bare(0, 0.0, POLICY.quiet_s + 1)) == early
    assert overdue_of(bare(0, 0.0, POLICY.quiet_s + 1)) is None, "without such a judge"
    late = early_of(bare(0, 0.0, LIMIT_S + 1))
    assert late == Overdue(Phase.IMPORT, 0, LIMIT_S, LIMIT_S + 1, (), is_busy=True), "then it is overdue by itself"


def test_a_rank_that_may_work_keeps_the_others_from_that_judge() -> None:
    quiet = bare(0, 0.0, POLICY.quiet_s + 1)
    for other in (bare(1, 0.0, 5.0), bare(1, 0.0, None), RankReport(1, Phase.STEP, 9, still_s=0.0)):
        assert early_of(quiet, other) is None
    idle = early_of(bare(0, POLICY.quiet_s + 1, POLICY.quiet_s + 1))
    assert idle is not None
    assert not idle.needs_gpus, "a rank without processor time is overdue by itself"
