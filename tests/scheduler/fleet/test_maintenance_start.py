"""Nodes that close for planned work: a job that would still run then goes elsewhere, with advice how it could start."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import pytest

from muster.domain.ids import JobId, NodeId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import NEVER_MS, FleetState
from scheduler.holds.outcomes import Coming, Obstacle, Refused
from scheduler.model import GpuView, Parts, Plan, Reason, RunningAttempt, StandingReclaim, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.solver import request_of
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, job, of_host, queueing, racks, running, standing

RACKS = racks({"r0": [8, 8], "r1": [8, 8]})
IN_AN_HOUR = {NodeId("r0h0"): NOW_MS + 60 * MINUTE_MS, NodeId("r0h1"): NOW_MS + 60 * MINUTE_MS}


def lasting(one: WaitingJob, minutes: float | None) -> WaitingJob:
    return replace(one, expected_s=None if minutes is None else minutes * 60)


def decide(queue: list[WaitingJob], gpus: list[GpuView] = RACKS) -> Plan:
    return plan(gpus, queue, DEFAULT_POLICY, Workload(now_ms=NOW_MS, maintenance_starts=IN_AN_HOUR))


def nodes_of(decided: Plan, name: str) -> list[str]:
    return [node for placed in decided.placements if placed.job_id == name for node, _ in placed.parts]


@pytest.mark.parametrize(
    ("minutes", "nodes"), [(61, ["r1h0", "r1h1"]), (None, ["r1h0", "r1h1"]), (60, ["r0h0", "r0h1"])]
)
def test_only_what_is_gone_before_is_placed_where_a_node_closes(minutes: float | None, nodes: list[str]) -> None:
    assert nodes_of(decide([lasting(job("j", nodes=2, gpus=8, required="rack"), minutes)]), "j") == nodes


def test_one_that_goes_on_is_not_kept_where_it_could_not_stay() -> None:
    last: Parts = ((NodeId("r0h0"), tuple(of_host("r0h0"))),)  # type: ignore[arg-type]  # names as the fleet has them
    assert nodes_of(decide([lasting(job("j", gpus=8, keep=last), 90)]), "j") == ["r1h0"]
    assert nodes_of(decide([lasting(job("j", gpus=8, keep=last), 30)]), "j") == ["r0h0"]


def test_a_pending_job_for_it_is_reported_by_its_token_and_in_words() -> None:
    (waiting,) = decide([lasting(job("j", nodes=4, gpus=8), 90)]).waiting
    assert waiting.verdict.binding is WaitReason.MAINTENANCE
    assert Reason(WaitReason.MAINTENANCE, 16, 2) in waiting.verdict.reasons
    assert "16 of the free GPUs on hosts that close for planned work before it would end, the first at " in waiting.why
    closes_at = datetime.fromtimestamp((NOW_MS + 60 * MINUTE_MS) / 1000, UTC)
    assert f"the first at {closes_at:%Y-%m-%dT%H:%M:%SZ})" in waiting.why
    assert "with every GPU idle it fits if it ends before hosts close for planned work" in waiting.why
    assert "even with every GPU idle" not in waiting.why, "which is the text for jobs that can never fit"


def test_what_would_not_fit_without_the_planned_work_either_is_reported_so() -> None:
    (waiting,) = decide([lasting(job("j", nodes=5, gpus=8), 90)]).waiting
    assert "even with every GPU idle, the largest cohort has only 4 of 5 hosts" in waiting.why
    assert "if it ends before" not in waiting.why


def test_jobs_that_meet_the_same_closing_fail_together_and_others_do_not() -> None:
    long = [lasting(job(f"long-{number}", nodes=4, gpus=8, at=number), 90 + number) for number in range(3)]
    decided = decide([*long, lasting(job("short", nodes=4, gpus=8, at=9), 50)])
    assert nodes_of(decided, "short") == ["r0h0", "r0h1", "r1h0", "r1h1"]
    assert len(decided.waiting) == 3


def alongside_spot(
    queue: list[WaitingJob], *, closes_minutes: float, attempts: list[RunningAttempt], reclaims: list[StandingReclaim]
) -> Plan:
    """In one rack of two hosts, both of which close."""
    held = hold(racks({"r0": [8, 8]}), [uuid for attempt in attempts for uuid in attempt.gpus])
    closes_ms = NOW_MS + int(closes_minutes * MINUTE_MS)
    closings = {NodeId(name): closes_ms for name in ("r0h0", "r0h1")}
    peaks = {TenantId("owner"): 1_000}
    workload = Workload(NOW_MS, tuple(attempts), tuple(reclaims), peak_gpus=peaks, maintenance_starts=closings)
    return plan(held, queue, DEFAULT_POLICY, workload)


SPOT = [running("v", of_host("r0h0")), running("w", of_host("r0h1"), saved_minutes=60)]


def test_none_has_notice_for_a_job_that_would_not_end_in_time_after_it() -> None:
    """The notice is two minutes; a victim may leave before, and no plan counts on that."""
    gang = job("j", gpus=8, tier="reserved")
    late = alongside_spot([lasting(gang, 10)], closes_minutes=11.9, attempts=SPOT, reclaims=[])
    assert late.reclaims == ()
    assert "reclaim would help if it ended before hosts close for planned work" in late.waiting[0].why
    in_time = alongside_spot([lasting(gang, 10)], closes_minutes=12, attempts=SPOT, reclaims=[])
    assert [reclaim.beneficiary for reclaim in in_time.reclaims] == ["j"]


def test_one_that_would_not_end_in_time_hides_none_that_would() -> None:
    queue = [lasting(job("long", gpus=8, tier="reserved"), 10), lasting(job("short", gpus=8, tier="reserved", at=1), 2)]
    decided = alongside_spot(queue, closes_minutes=11, attempts=SPOT, reclaims=[])
    assert [reclaim.beneficiary for reclaim in decided.reclaims] == ["short"]


def test_what_is_reclaimed_is_withdrawn_where_planned_work_has_come_between() -> None:
    gang = lasting(job("j", gpus=8, tier="reserved"), 10)
    promised = [standing("v", "j", of_host("r0h0"), in_s=90)]
    decided = alongside_spot([gang], closes_minutes=11.5, attempts=SPOT, reclaims=promised)
    assert decided.withdrawals == (), "from the deadline on it ends just in time"
    decided = alongside_spot([gang], closes_minutes=11, attempts=SPOT, reclaims=promised)
    assert [one.victim for one in decided.withdrawals] == ["v"]


@pytest.mark.parametrize(("ends_minutes", "awaited"), [(1, Coming(NOW_MS + MINUTE_MS)), (1.5, None)])
def test_what_ends_within_the_notice_is_waited_for_only_if_the_job_then_ends_in_time(
    ends_minutes: float, awaited: Coming | None
) -> None:
    ending = running("ending", of_host("r0h0"), tier="reserved", ends_minutes=ends_minutes)
    held = hold(racks({"r0": [8, 8]}), [*of_host("r0h0"), *of_host("r0h1")])
    state = FleetState(held, DEFAULT_POLICY, ("rack",))
    closings = {NodeId(name): NOW_MS + 11 * MINUTE_MS for name in ("r0h0", "r0h1")}
    state.close(closings)
    reclaimer = Reclaimer(state, DEFAULT_POLICY, Workload(NOW_MS, (ending, SPOT[1]), maintenance_starts=closings))
    request = request_of(job("j", gpus=8, tier="reserved"), is_reclaimable=False)
    outcome = reclaimer.choose(JobId("j"), request, run_s=600)
    assert outcome == (awaited or Refused(Obstacle.CLOSING))


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_a_place_is_on_hold_where_the_gang_ends_before_the_closing_if_it_starts_by_then(
    backfill: Literal["easy", "conservative"],
) -> None:
    """If it started now it would be over in time in rack r0 too; when that becomes free it would not."""
    gpus = racks({"r0": [0, 0], "r1": [0, 0]})
    busy = [
        running(f"{rack}{number}", of_host(f"{rack}h{number}"), tier="on_demand", ends_minutes=minutes)
        for rack, minutes in (("r0", 20), ("r1", 30))
        for number in range(2)
    ]
    policy = queueing(backfill=backfill)
    workload = Workload(NOW_MS, tuple(busy), maintenance_starts=IN_AN_HOUR)
    for minutes, rack, until_minutes in ((40, "r0", 20), (50, "r1", 30)):
        gang = lasting(job("j", nodes=2, gpus=8, required="rack", at=NOW_MS), minutes)
        (held,) = plan(gpus, [gang], policy, workload).holds
        assert {gpu[:2] for gpu in held.gpus} == {rack}
        assert held.until_ms == NOW_MS + until_minutes * MINUTE_MS


def test_of_two_that_ask_for_the_same_the_one_that_ends_in_time_has_a_place() -> None:
    busy = [running(f"r{number}", of_host(f"r0h{number}"), tier="on_demand", ends_minutes=20) for number in range(2)]
    queue = [
        lasting(job("long", nodes=2, gpus=8, at=NOW_MS - 1), 50),
        lasting(job("short", nodes=2, gpus=8, at=NOW_MS), 40),
    ]
    workload = Workload(NOW_MS, tuple(busy), maintenance_starts=IN_AN_HOUR)
    decided = plan(racks({"r0": [0, 0]}), queue, DEFAULT_POLICY, workload)
    assert [held.job_id for held in decided.holds] == ["short"]


def test_a_fork_and_its_fleet_close_apart() -> None:
    state = FleetState(RACKS, DEFAULT_POLICY, ("rack",))
    state.close(IN_AN_HOUR)
    forked = state.fork(state.is_free.copy(), ("spot",))
    forked.close({})
    assert (state.closings_ms, forked.closings_ms) == ([NOW_MS + 60 * MINUTE_MS], [])
    state.close({})
    assert state.cell_closes_ms.tolist() == forked.cell_closes_ms.tolist() == [NEVER_MS] * 4
