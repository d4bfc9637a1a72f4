"""The tracker of progress on virtual time: hangs are found in time, clean windows of any shape never."""

import random
from collections.abc import Iterator

import pytest

from muster.domain.policy.watch import WatchPolicy
from tests.scaled import examples
from tests.watch.progress.worlds import Rank, World, gang, trains
from watch.phases import Phase
from watch.progress.durations import Durations
from watch.progress.tracker import Tracker
from watch.reports import ProcessState, RankReport


def stepping(num_ranks: int = 2, step_s: float = 1.0, *, steps_s: float = 60.0) -> World:
    """Ranks that have trained for a while without anything but steps."""
    world = World([Rank(number) for number in range(num_ranks)])

    def script(rank: Rank) -> Iterator[float]:
        rank.phase = Phase.FIRST_STEP
        yield 5.0
        while True:
            rank.step, rank.phase, rank.ticks = rank.step + 1, Phase.STEP, rank.ticks + 1
            yield step_s

    for rank in world.ranks:
        rank.script = script(rank)
    assert world.watch(steps_s) is None
    return world


@pytest.mark.parametrize("seed", range(examples(1000, 60)))
def test_a_clean_window_is_never_overdue(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # a seeded world
    world = World(gang(rng.choice([1, 2, 4]), seed, rng.choice([0.1, 1.0, 10.0, 60.0])))
    assert world.watch(1200.0) is None


@pytest.mark.parametrize("step_s", [0.2, 1.0, 10.0])
def test_a_rank_that_stops_in_a_step_is_found_within_the_limit(step_s: float) -> None:
    world = stepping(step_s=step_s, steps_s=60 + 10 * step_s)
    stopped_s = world.now_s
    for rank in world.ranks:
        rank.script = None
    world.ranks[0].step += 1
    found_s, overdue = world.watch(120.0) or (0.0, None)
    assert overdue is not None
    assert found_s - stopped_s <= 55
    assert (overdue.phase, overdue.ranks) == (Phase.STEP, (1,))


def test_a_rank_that_evaluates_for_an_hour_keeps_the_waiting_ones_from_an_alarm() -> None:
    world = stepping(num_ranks=3)
    for rank in world.ranks:
        rank.script = None
    world.ranks[0].phase, world.ranks[0].is_declared = Phase.EVALUATION, True
    assert world.watch(3600.0) is None


def test_a_busy_loop_in_a_step_does_not_lengthen_its_limit() -> None:
    world = stepping()
    for rank in world.ranks:
        rank.script, rank.cpu_share, rank.children_cpu_share = None, 1.0, 1.0
    assert world.watch(60.0) is not None


@pytest.mark.parametrize("work", [{"io": 1e6}, {"moves": True}], ids=str)
def test_own_work_in_a_step_counts_of_the_rank_that_the_others_wait_for(work: dict[str, object]) -> None:
    """Rank 0 exports the model while rank 1 waits for it in the next step."""
    for number, is_overdue in ((0, False), (1, True)):
        world = stepping()
        for rank in world.ranks:
            rank.script = None
        world.ranks[1].step += 1
        for name, value in work.items():
            setattr(world.ranks[number], name, value)
        assert (world.watch(100.0) is not None) == is_overdue
        assert world.watch(250.0) is not None


def test_a_second_without_input_does_not_end_a_restore() -> None:
    tracker = Tracker(WatchPolicy())
    for second in range(600):
        rate = 0.0 if second % 60 == 50 else 5e8
        reports = [RankReport(rank, Phase.RESTORE, still_s=float(second), io_bytes_per_s=rate) for rank in range(8)]
        assert tracker.take(reports, float(second)) is None
    idle = [RankReport(0, Phase.RESTORE, still_s=600.0 + second, io_bytes_per_s=0.0) for second in range(400)]
    assert any(tracker.take([report], report.still_s) for report in idle)


def test_a_watch_that_begins_late_judges_no_step_before_it_knows_some() -> None:
    tracker = Tracker(WatchPolicy())
    for second in range(120):
        assert tracker.take([RankReport(0, Phase.STEP, 9, still_s=200.0 + second)], float(second)) is None
    durations = Durations.of_document({"step": [20.0, 20.0, 20.0], "lunch": [1.0], "save": ["x"]})
    assert durations.document() == {"step": [20.0, 20.0, 20.0]}
    tracker = Tracker(WatchPolicy(), durations)
    assert tracker.take([RankReport(0, Phase.STEP, 9, still_s=200.0)], 0.0) is None
    overdue = None
    for second in range(1, 40):
        overdue = tracker.take([RankReport(0, Phase.STEP, 9, still_s=200.0 + second)], float(second))
    assert overdue is not None


@pytest.mark.parametrize(
    ("phase", "rank_is", "is_overdue"),
    [
        (Phase.DATA, {}, True),
        (Phase.DATA, {"cpu_share": 0.9, "moves": True}, False),
        (Phase.DATA, {"children_cpu_share": 7.9}, False),
        (Phase.SAVE, {}, True),
        (Phase.SAVE, {"io": 1e6}, False),
        (Phase.SAVE, {"process": ProcessState.BLOCKED}, False),
        (Phase.EVALUATION, {"cpu_share": 1.0}, True),
        (Phase.EVALUATION, {"cpu_share": 1.0, "moves": True}, False),
        (Phase.COMPILE, {"cpu_share": 1.0, "moves": True}, False),
    ],
    ids=str,
)
def test_between_steps_the_limit_follows_from_what_the_rank_does(
    phase: Phase, rank_is: dict[str, object], *, is_overdue: bool
) -> None:
    world = stepping()
    for rank in world.ranks:
        rank.script, rank.phase = None, phase
        for name, value in rank_is.items():
            setattr(rank, name, value)
    assert (world.watch(100.0) is not None) == is_overdue


def test_a_disk_that_answers_no_more_is_found_once_saves_are_known() -> None:
    world = stepping(num_ranks=1)
    (rank,) = world.ranks
    rank.script = None
    for _ in range(3):
        rank.phase = Phase.SAVE
        assert world.watch(3.0) is None
        rank.phase, rank.step = Phase.STEP, rank.step + 1
        assert world.watch(3.0) is None
    rank.phase, rank.process = Phase.SAVE, ProcessState.BLOCKED
    assert world.watch(60.0) is not None


def test_longer_steps_make_a_longer_limit_and_a_restored_step_is_none() -> None:
    tracker = Tracker(WatchPolicy())
    at_s = 0.0
    for phase, step in [(Phase.RESTORE, 0), (Phase.FIRST_STEP, 5000), *((Phase.STEP, 5000 + n) for n in range(1, 9))]:
        at_s += 9.0
        tracker.take([RankReport(0, phase, step)], at_s)
    assert tracker.durations.known(Phase.STEP) == (9.0,) * 7
    assert tracker.limit_s(RankReport(0, Phase.STEP, 5009)) == 36.0


def test_the_next_attempt_knows_what_the_one_before_learnt() -> None:
    durations = Durations()
    for _ in range(3):
        durations.add(Phase.STEP, 20.0)
    tracker = Tracker(WatchPolicy(), durations)
    tracker.take([RankReport(0, Phase.STEP, 7)], 0.0)
    assert tracker.limit_s(RankReport(0, Phase.STEP, 7)) == 80.0


def test_programs_without_a_sensor_may_be_quiet_for_long() -> None:
    tracker = Tracker(WatchPolicy())
    quiet = RankReport(0, Phase.IMPORT, still_s=1700.0, has_sensor=False)
    assert tracker.take([quiet], 1.0) is None
    assert tracker.limit_s(quiet, has_any_sensor=True) == WatchPolicy().known.start_s
    overdue = None
    for at_s in range(2, 40):
        overdue = tracker.take([RankReport(0, Phase.IMPORT, still_s=1801.0, has_sensor=False)], float(at_s))
    assert overdue is not None
    assert overdue.limit_s == 1800.0


def test_after_a_suspended_host_nothing_is_judged_at_once() -> None:
    world = stepping()
    for rank in world.ranks:
        rank.script = None
    world.now_s += 3600.0
    assert world.watch(25.0) is None
    assert world.watch(10.0) is not None


def test_a_rank_that_has_ended_does_not_wait_for_the_others() -> None:
    world = stepping()
    for rank in world.ranks:
        rank.script = None
    world.ranks[0].phase = Phase.END
    found = world.watch(60.0)
    assert found is not None
    assert found[1].phase is Phase.STEP


def test_a_watch_that_is_off_finds_nothing() -> None:
    tracker = Tracker(WatchPolicy(is_on=False))
    tracker.take([RankReport(0, Phase.STEP, 1)], 0.0)
    assert tracker.take([RankReport(0, Phase.STEP, 1, still_s=1e6)], 1.0) is None


def test_a_job_of_one_rank_that_changes_its_number_of_steps_is_clean() -> None:
    rank = Rank(0)
    rank.script = trains(rank, random.Random(3), 0.5)  # noqa: S311  # a seeded world
    world = World([rank])
    assert world.watch(600.0) is None
    rank.step = 0
    assert world.watch(600.0) is None
