"""Backfill: a place is held for the first pending job, and only jobs that end before its start may use it."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.queue import QueuePolicy
from scheduler.forecast.end_times import CLEANING_MS
from scheduler.holds import backfill
from scheduler.model import GpuView, Plan, RunningAttempt, WaitingJob, Workload
from scheduler.planner import plan
from tests.scaled import examples
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, job, of_host, racks, running

DAY_MINUTES = 24 * 60


def decide(
    gpus: Sequence[GpuView],
    queue: Sequence[WaitingJob],
    attempts: Sequence[RunningAttempt],
    policy: Policy | None = None,
) -> Plan:
    return plan(list(gpus), list(queue), policy or DEFAULT_POLICY, Workload(NOW_MS, tuple(attempts)))


def waiting(name: str, *, nodes: int = 1, gpus: int = 8, ago: float = 0, wall: float | None = None) -> WaitingJob:
    """Queued ``ago`` minutes ago, with a wall time of ``wall`` minutes."""
    came = job(name, nodes=nodes, gpus=gpus, at=NOW_MS - int(ago * MINUTE_MS))
    return replace(came, expected_s=None if wall is None else wall * 60)


BUSY = [running("a0", of_host("r0h0"), tier="on_demand", ends_minutes=60)]
FLEET = racks({"r0": [0, 8]})
"""Host r0h0 is held until an hour from now, host r0h1 is idle."""


def placed(decided: Plan) -> list[str]:
    return [item.job_id for item in decided.placements]


def why(decided: Plan, name: str) -> str:
    return next(item.why for item in decided.waiting if item.job_id == name)


def test_the_example_that_opens_the_module() -> None:
    for wall, starts_on in [(60, ["r0h1"]), (61, []), (None, [])]:
        decided = decide(FLEET, [waiting("gang", nodes=2, ago=600, wall=60), waiting("other", wall=wall)], BUSY)
        assert [node for one in decided.placements for node, _ in one.parts] == starts_on
        (held,) = decided.holds
        assert (held.job_id, held.until_ms) == ("gang", NOW_MS + 60 * MINUTE_MS)
    assert "A job with a wall time of up to 60 minutes may start on r0h1 now; one with 61" in (backfill.__doc__ or "")


def test_a_gang_has_the_hosts_kept_that_it_will_start_on() -> None:
    decided = decide(FLEET, [waiting("gang", nodes=2, ago=10)], BUSY)
    (held,) = decided.holds
    assert (held.job_id, held.num_free, held.until_ms) == ("gang", 8, NOW_MS + 60 * MINUTE_MS)
    assert set(held.gpus) == {*of_host("r0h0"), *of_host("r0h1")}
    assert "become free by 1970-01-01T17:40:00Z without reclaim, and 8 of the 16" in why(decided, "gang")


def test_only_what_is_gone_before_runs_on_what_is_on_hold() -> None:
    gang = waiting("gang", nodes=2, ago=600, wall=60)
    for wall, passes in [(59, True), (60, True), (61, False), (None, False)]:
        decided = decide(FLEET, [gang, waiting("small", gpus=4, wall=wall)], BUSY)
        assert placed(decided) == (["small"] if passes else []), wall
        assert decided.holds[0].job_id == "gang"
        if not passes:
            assert "GPUs that are held until about 1970-01-01T17:40:00Z for a gang before it" in why(decided, "small")


def test_what_is_not_on_hold_is_passed_by_any() -> None:
    fleet = racks({"r0": [0, 8, 8]})
    queue = [waiting("gang", nodes=3, ago=600, wall=60), waiting("small", gpus=4)]
    assert placed(decide(fleet, queue, BUSY)) == []
    queue[0] = replace(queue[0], nodes=2)
    assert placed(decide(fleet, queue, BUSY)) == ["gang"]
    queue = [waiting("rack", nodes=2, gpus=8, ago=600, wall=60), waiting("small", gpus=4)]
    assert placed(decide(racks({"r0": [0, 8], "r1": [4]}), queue, BUSY)) == ["small"]


def test_four_free_hosts_of_sixteen_are_on_hold_as_far_as_the_gang_needs_them() -> None:
    """The rest ends in an hour: jobs that end before may start; others only where the gang leaves hosts over."""
    fleet = racks({"r0": [8] * 4 + [0] * 12})
    busy = [running(f"a{n}", of_host(f"r0h{n}"), tier="on_demand", ends_minutes=60) for n in range(4, 16)]
    behind = [waiting("short", nodes=2, wall=50), waiting("long", nodes=2, wall=90)]
    assert placed(decide(fleet, [waiting("gang", nodes=16, ago=6000, wall=60), *behind], busy)) == ["short"]
    assert placed(decide(fleet, [waiting("gang", nodes=14, ago=6000, wall=60), *behind], busy)) == ["short", "long"]


def test_two_that_pass_do_not_take_the_same_gpus() -> None:
    queue = [waiting("gang", nodes=2, ago=600, wall=60), *(waiting(f"s{n}", gpus=5, wall=30) for n in range(2))]
    decided = decide(FLEET, queue, BUSY)
    assert placed(decided) == ["s0"]
    uuids = [uuid for item in decided.placements for _, part in item.parts for uuid in part]
    assert len(uuids) == len(set(uuids)) == 5


def test_what_starts_in_the_same_cycle_counts_as_one_that_runs() -> None:
    """Of four hosts two are free in an hour, and a short job takes a third: the fourth is not for one of 20 hours."""
    fleet = racks({"r0": [0, 0, 8, 8]})
    busy = [running("a0", [*of_host("r0h0"), *of_host("r0h1")], tier="on_demand", ends_minutes=60)]
    gang, long = waiting("gang", nodes=4, ago=30, wall=60), waiting("long", wall=20 * 60)
    short = waiting("short", ago=600, wall=10)
    decided = decide(fleet, [short, gang, long], busy)
    assert placed(decided) == ["short"]
    assert decided.holds[0].until_ms == NOW_MS + 60 * MINUTE_MS
    decided = decide(fleet, [waiting("short", ago=600, wall=90), gang, long], busy)
    assert (placed(decided), decided.holds[0].until_ms) == (["short"], NOW_MS + 90 * MINUTE_MS)
    decided = decide(fleet, [waiting("endless", ago=600_000), gang, long], busy)
    assert placed(decided) == ["endless", "long"], "one end is unknown: nothing can be held"


@given(st.data())
@settings(max_examples=examples(60))
def test_none_that_came_in_the_same_cycle_makes_the_head_wait_longer(data: st.DataObject) -> None:
    """Whatever is placed next to it, the head's place starts no later than with only the jobs before it."""
    num_hosts = data.draw(st.integers(3, 6))
    num_busy = data.draw(st.integers(1, num_hosts - 1))
    fleet = racks({"r0": [0] * num_busy + [8] * (num_hosts - num_busy)})
    ends = data.draw(st.lists(st.integers(5, 120), min_size=num_busy, max_size=num_busy))
    busy = [running(f"a{n}", of_host(f"r0h{n}"), tier="on_demand", ends_minutes=end) for n, end in enumerate(ends)]
    gang = waiting("gang", nodes=num_hosts, ago=100_000, wall=300)
    walls = data.draw(st.lists(st.integers(1, 400), max_size=5))
    behind = [waiting(f"j{n}", ago=5, wall=wall) for n, wall in enumerate(walls)]
    alone, beside = decide(fleet, [gang], busy), decide(fleet, [gang, *behind], busy)
    assert beside.holds[0].until_ms == alone.holds[0].until_ms
    assert all(walls[int(name[1:])] <= max(ends) for name in placed(beside))


def test_an_attempt_without_a_wall_time_is_expected_to_end_as_others_like_it() -> None:
    like_it = NOW_MS + 40 * MINUTE_MS
    busy = [replace(running("a0", of_host("r0h0"), tier="on_demand", minutes=90), predicted_ms=like_it)]
    decided = decide(FLEET, [waiting("gang", nodes=2, ago=1200, wall=60), waiting("small", gpus=4, wall=50)], busy)
    assert (placed(decided), decided.holds[0].until_ms) == ([], like_it)


def test_what_outlasts_what_others_like_it_took_is_expected_to_take_half_as_long_again() -> None:
    busy = running("a0", of_host("r0h0"), tier="on_demand", minutes=90)
    outlasting = [replace(busy, predicted_ms=NOW_MS - 10 * MINUTE_MS)]
    queue = [waiting("gang", nodes=2, ago=1200, wall=60), waiting("long", gpus=4, wall=31)]
    decided = decide(FLEET, [*queue, waiting("short", gpus=4, wall=30)], outlasting)
    assert (placed(decided), decided.holds[0].until_ms) == (["short"], NOW_MS + 30 * MINUTE_MS), "80 minutes, then 120"


def test_what_outstays_its_deadline_is_no_longer_counted_on() -> None:
    busy = running("a0", of_host("r0h0"), tier="on_demand", minutes=90, ends_minutes=-2)
    decided = decide(FLEET, [waiting("gang", nodes=2, ago=1200, wall=60), waiting("small", gpus=4, wall=50)], [busy])
    assert (placed(decided), decided.holds) == (["small"], ())


def test_without_a_known_end_nothing_is_on_hold_before_the_gang_starves() -> None:
    busy = [running("a0", of_host("r0h0"), tier="on_demand", minutes=90)]
    small = waiting("small", gpus=4)
    young = waiting("gang", nodes=2, ago=DAY_MINUTES - 1)
    assert placed(decide(FLEET, [young, small], busy)) == ["small"]
    old = waiting("gang", nodes=2, ago=DAY_MINUTES)
    decided = decide(FLEET, [old, small], busy)
    assert placed(decided) == []
    assert decided.holds[0].until_ms == NOW_MS + 90 * MINUTE_MS, "it is expected to run as long again"


def test_a_gang_that_never_fits_holds_nothing() -> None:
    decided = decide(FLEET, [waiting("gang", nodes=3, ago=9 * DAY_MINUTES), waiting("small", gpus=4)], BUSY)
    assert decided.holds == ()
    assert placed(decided) == ["small"]


def test_holds_are_as_many_as_the_policy_has_of_a_cohort() -> None:
    fleet = racks({"r0": [0, 8], "r1": [0, 8]})
    busy = [running(f"a{n}", of_host(f"r{n}h0"), tier="on_demand", ends_minutes=60 + n) for n in range(2)]
    queue = [waiting(f"g{n}", nodes=2, ago=100 - n, wall=60) for n in range(2)]
    queue = [replace(gang, required_level="rack") for gang in queue]
    for most, expected in [(0, []), (1, ["g0"]), (2, ["g0", "g1"])]:
        policy = DEFAULT_POLICY.model_copy(update={"queue": QueuePolicy(holds_per_cohort=most)})
        assert [held.job_id for held in decide(fleet, queue, busy, policy).holds] == expected


def test_a_higher_tier_takes_what_is_on_hold_for_a_lower_one() -> None:
    gang = waiting("gang", nodes=2, ago=600, wall=60)
    urgent = replace(waiting("urgent", gpus=8), tier="reserved")
    decided = decide(FLEET, [gang, urgent], BUSY)
    assert placed(decided) == ["urgent"]


def test_short_jobs_go_first_and_long_ones_come_to_their_turn() -> None:
    short, long = waiting("short", wall=60), waiting("long", wall=10 * 60, ago=30)
    assert placed(decide(racks({"r0": [8]}), [short, long], [])) == ["short"]
    aged = waiting("long", wall=10 * 60, ago=24 * 60 * 14)
    assert placed(decide(racks({"r0": [8]}), [short, aged], [])) == ["long"]
    by_age = DEFAULT_POLICY.model_copy(update={"queue": QueuePolicy(ageing_exponent=0)})
    assert placed(decide(racks({"r0": [8]}), [waiting("young"), waiting("old", ago=1)], [], by_age)) == ["old"]


def test_what_is_being_cleaned_comes_free_soon_and_the_hold_stands_meanwhile() -> None:
    gang, small = waiting("gang", nodes=2, ago=600, wall=60), waiting("small", gpus=4)
    workload = Workload(NOW_MS, cleaning=tuple(GpuUuid(uuid) for uuid in of_host("r0h0")))
    decided = plan(FLEET, [gang, small], DEFAULT_POLICY, workload)
    assert placed(decided) == []
    assert (decided.holds[0].num_free, decided.holds[0].until_ms) == (8, NOW_MS + CLEANING_MS)


def test_a_starving_gang_keeps_what_is_idle_though_the_young_are_expected_to_end_first() -> None:
    fleet = racks({"r0": [8, 8, 0, 0, 0, 0]})
    young = [running(f"a{n}", of_host(f"r0h{n}"), tier="on_demand", minutes=0.5) for n in range(2, 6)]
    queue = [waiting("gang", nodes=4, ago=2 * DAY_MINUTES), waiting("small", gpus=4)]
    decided = decide(fleet, queue, young)
    assert placed(decided) == []
    assert decided.holds[0].num_free == 16


def test_what_outstays_its_end_frees_nothing_and_idles_none() -> None:
    stuck = [running("a0", of_host("r0h0"), tier="on_demand", ends_minutes=-5)]
    decided = decide(FLEET, [waiting("gang", nodes=2, ago=10), waiting("small", gpus=4)], stuck)
    assert (decided.holds, placed(decided)) == ((), ["small"])


def test_what_has_run_before_goes_on_before_others_and_keeps_its_own_gpus() -> None:
    again = replace(
        waiting("again", nodes=1, ago=600, wall=24 * 60),
        keep=((NodeId("r0h1"), tuple(GpuUuid(uuid) for uuid in of_host("r0h1"))),),
    )
    decided = decide(FLEET, [waiting("gang", nodes=2, ago=600, wall=60), again], BUSY)
    assert placed(decided) == ["again"]


def test_a_hold_ends_when_reclaim_would_help() -> None:
    """The spot job on r0h0 has its minimum run behind it in 25 minutes; its wall time ends in ten hours."""
    spot = [running("a0", of_host("r0h0"), minutes=5, ends_minutes=600)]
    gang = replace(waiting("gang", nodes=2, ago=600, wall=60), tier="reserved")
    decided = decide(FLEET, [gang, waiting("nine-hours", gpus=4, wall=540), waiting("brief", gpus=4, wall=20)], spot)
    assert placed(decided) == ["brief"]
    assert decided.holds[0].until_ms == NOW_MS + 25 * MINUTE_MS


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from([None, 5, 30, 60, 120])), min_size=2, max_size=5),
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 8), st.sampled_from([None, 4, 29, 60, 200]), st.integers(0, 3000)),
        min_size=1,
        max_size=6,
    ),
)
def test_none_delays_the_start_that_was_guaranteed(
    hosts: list[tuple[int, float | None]], jobs: list[tuple[int, int, float | None, int]]
) -> None:
    """At the hold's time, once every job with a wall time until then has ended, the gang's own GPUs are free."""
    fleet = racks({"r0": [free for free, _ in hosts]})
    attempts = [
        running(f"a{n}", of_host(f"r0h{n}", 8 - free, free), tier="on_demand", minutes=45, ends_minutes=ends)
        for n, (free, ends) in enumerate(hosts)
        if free < 8
    ]
    queue = [
        waiting(f"j{n}", nodes=nodes, gpus=gpus, wall=wall, ago=ago) for n, (nodes, gpus, wall, ago) in enumerate(jobs)
    ]
    decided = decide(fleet, queue, attempts)
    walls = {item.job_id: item.expected_s for item in queue}
    for held in decided.holds:
        for item in decided.placements:
            on_held = set(held.gpus) & {uuid for _, part in item.parts for uuid in part}
            wall_s = walls[item.job_id]
            assert not on_held or (wall_s is not None and NOW_MS + wall_s * 1000 <= held.until_ms)
    promised = [uuid for held in decided.holds for uuid in held.gpus]
    assert len(promised) == len(set(promised)), "GPUs that are held for one job are held for no other"
    assert sorted([*placed(decided), *(item.job_id for item in decided.waiting)]) == sorted(walls)
