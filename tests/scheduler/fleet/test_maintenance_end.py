"""The end of planned work: the next window of a node, with all windows that begin before its end; the holds by then."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import NodeId
from scheduler.fleet.maintenance_end import maintenance_ends_of
from scheduler.model import GpuView, Plan, WaitingJob, Workload
from scheduler.planner import plan
from tests.scaled import examples
from tests.scheduler.fleets import FIT, MINUTE_MS, NOW_MS, hold, host, job, of_host, queueing, racks, running

A, B = NodeId("a"), NodeId("b")


def test_windows_that_meet_are_one_and_a_later_one_is_not_foreseen() -> None:
    windows = [(A, 500, 600), (A, 0, 100), (A, 50, 80), (A, 100, 200), (B, 30, 40)]
    assert maintenance_ends_of(windows) == {A: 200, B: 40}
    assert maintenance_ends_of([]) == {}


def under_work(path: str, names: Sequence[str]) -> list[GpuView]:
    cordoned = replace(FIT, is_cordoned=True)
    return [view for name in names for view in host(name, 8, facts=cordoned, path=(path,))]


def assigned_by(
    backfill: Literal["easy", "conservative"], queue: list[WaitingJob]
) -> list[tuple[str, set[str], int, int]]:
    """Holds: job, hosts, idle GPUs, and in how many minutes. Rack a is under work for an hour, the attempts in
    rack b ends in two.
    """
    gpus = [*under_work("a", ["a0", "a1"]), *racks({"b": [0, 0], "c": [8]})]
    busy = [running(f"r{number}", of_host(f"bh{number}"), tier="on_demand", ends_minutes=120) for number in range(2)]
    over_ms = {NodeId(name): NOW_MS + 60 * MINUTE_MS for name in ("a0", "a1")}
    policy = queueing(backfill=backfill, holds_per_cohort=2)
    decided = plan(gpus, queue, policy, Workload(NOW_MS, tuple(busy), maintenance_ends=over_ms))
    node_of = {view.uuid: view.node_id for view in gpus}
    return [
        (one.job_id, {node_of[gpu] for gpu in one.gpus}, one.num_free, (one.until_ms - NOW_MS) // MINUTE_MS)
        for one in decided.holds
    ]


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_a_place_is_on_hold_where_planned_work_is_over_first_and_for_one_alone(
    backfill: Literal["easy", "conservative"],
) -> None:
    gang = replace(job("gang", nodes=2, gpus=8, required="rack", at=NOW_MS - 2), expected_s=7200.0)
    wide = replace(job("wide", nodes=3, gpus=8, at=NOW_MS - 1), expected_s=14400.0)
    assert assigned_by(backfill, [gang, wide]) == [
        ("gang", {"a0", "a1"}, 0, 60),
        ("wide", {"bh0", "bh1", "ch0"}, 8, 120),
    ]


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_one_that_needs_what_work_is_done_on_has_it_kept_with_what_is_idle(
    backfill: Literal["easy", "conservative"],
) -> None:
    all_of_them = replace(job("all", nodes=5, gpus=8, at=NOW_MS - 1), expected_s=14400.0)
    assert assigned_by(backfill, [all_of_them])[0] == ("all", {"a0", "a1", "bh0", "bh1", "ch0"}, 8, 120)


@dataclass(frozen=True)
class Hours:
    """Of one host, in minutes: until when a job runs there; from when until when work is planned on it."""

    busy_until: int
    closes: int
    opens: int

    def is_closed(self, at: int) -> bool:
        return self.closes <= at < self.opens


def fleet_at(hosts: list[Hours], at: int) -> tuple[list[GpuView], Workload]:
    gpus: list[GpuView] = []
    attempts = []
    closings, over_ms = {}, {}
    for number, one in enumerate(hosts):
        name = f"h{number}"
        views = host(name, 8, facts=replace(FIT, is_cordoned=one.is_closed(at)), path=(f"r{number % 2}",))
        if one.busy_until > at:
            views = hold(views, of_host(name))
            attempts.append(running(name, of_host(name), tier="on_demand", ends_minutes=one.busy_until - at))
        gpus += views
        if one.opens > at:
            closings[NodeId(name)] = NOW_MS + max(one.closes, 0) * MINUTE_MS
            over_ms[NodeId(name)] = NOW_MS + one.opens * MINUTE_MS
    now_ms = NOW_MS + at * MINUTE_MS
    moved = tuple(replace(each, ends_ms=(each.ends_ms or 0) + at * MINUTE_MS) for each in attempts)
    return gpus, Workload(now_ms, moved, maintenance_starts=closings, maintenance_ends=over_ms)


@st.composite
def some_hours(draw: st.DrawFn) -> Hours:
    """Jobs there end before work begins: else they would get stop requests, which no forecast contains."""
    closes = draw(st.sampled_from([-10, 20, 40, 60]))
    opens = draw(st.sampled_from([-5, closes + 25, closes + 55]))
    busy_until = draw(st.sampled_from([0, 0, 10, 30, 50]))
    return Hours(0 if opens > 0 and busy_until > closes else busy_until, closes, opens)


@settings(max_examples=examples(600))
@given(
    st.lists(some_hours(), min_size=2, max_size=5),
    st.integers(1, 3),
    st.sampled_from([5, 15, 30, 60]),
    st.sampled_from(["rack", None]),
    st.sampled_from(["easy", "conservative"]),
)
def test_a_place_is_on_hold_from_the_first_moment_at_which_the_gang_would_be_placed(
    hosts: list[Hours], nodes: int, minutes: int, required: str | None, backfill: Literal["easy", "conservative"]
) -> None:
    policy = queueing(backfill=backfill)
    wanted = job("j", nodes=nodes, gpus=8, required=required, at=NOW_MS)
    wanted = replace(wanted, expected_s=minutes * 60)

    def decided(at: int) -> Plan:
        gpus, workload = fleet_at(hosts, at)
        return plan(gpus, [wanted], policy, workload)

    moments = sorted({0, *(one.busy_until for one in hosts), *(one.opens for one in hosts if one.opens > 0)})
    first = next((at for at in moments if decided(at).placements), None)
    if first == 0:
        return
    assert [(one.until_ms - NOW_MS) // MINUTE_MS for one in decided(0).holds] == ([] if first is None else [first])
