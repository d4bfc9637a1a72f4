"""Nodes that close for planned work: who would still run then goes elsewhere, and is told what would bring it there."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from muster.domain.ids import NodeId
from muster.domain.policy import DEFAULT_POLICY
from muster.domain.wait_reasons import WaitReason
from scheduler.model import GpuView, Parts, Plan, Reason, WaitingJob, Workload
from scheduler.planner import plan
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, job, of_host, racks

RACKS = racks({"r0": [8, 8], "r1": [8, 8]})
IN_AN_HOUR = {NodeId("r0h0"): NOW_MS + 60 * MINUTE_MS, NodeId("r0h1"): NOW_MS + 60 * MINUTE_MS}


def lasting(one: WaitingJob, minutes: float | None) -> WaitingJob:
    return replace(one, expected_s=None if minutes is None else minutes * 60)


def decide(queue: list[WaitingJob], gpus: list[GpuView] = RACKS) -> Plan:
    return plan(gpus, queue, DEFAULT_POLICY, Workload(now_ms=NOW_MS, closings=IN_AN_HOUR))


def nodes_of(decided: Plan, name: str) -> list[str]:
    return [node for placed in decided.placements if placed.job_id == name for node, _ in placed.parts]


@pytest.mark.parametrize(
    ("minutes", "nodes"), [(61, ["r1h0", "r1h1"]), (None, ["r1h0", "r1h1"]), (60, ["r0h0", "r0h1"])]
)
def test_only_who_is_gone_before_is_placed_where_a_node_closes(minutes: float | None, nodes: list[str]) -> None:
    assert nodes_of(decide([lasting(job("j", nodes=2, gpus=8, required="rack"), minutes)]), "j") == nodes


def test_one_that_goes_on_is_not_kept_where_it_could_not_stay() -> None:
    last: Parts = ((NodeId("r0h0"), tuple(of_host("r0h0"))),)  # type: ignore[arg-type]  # names as the fleet has them
    assert nodes_of(decide([lasting(job("j", gpus=8, keep=last), 90)]), "j") == ["r1h0"]
    assert nodes_of(decide([lasting(job("j", gpus=8, keep=last), 30)]), "j") == ["r0h0"]


def test_who_waits_for_it_is_told_by_its_token_and_in_words() -> None:
    (waiting,) = decide([lasting(job("j", nodes=4, gpus=8), 90)]).waiting
    assert waiting.verdict.binding is WaitReason.MAINTENANCE
    assert Reason(WaitReason.MAINTENANCE, 16, 2) in waiting.verdict.reasons
    assert "16 of the free on hosts that close for planned work before it would end, the first at " in waiting.why
    closes_at = datetime.fromtimestamp((NOW_MS + 60 * MINUTE_MS) / 1000, UTC)
    assert f"the first at {closes_at:%Y-%m-%dT%H:%M:%SZ})" in waiting.why
    assert "with every GPU idle it fits if it ends before hosts close for planned work" in waiting.why
    assert "even with every GPU idle" not in waiting.why, "which is said of what can never fit"


def test_who_would_not_fit_without_the_planned_work_either_is_told_so() -> None:
    (waiting,) = decide([lasting(job("j", nodes=5, gpus=8), 90)]).waiting
    assert "even with every GPU idle, the largest cohort has only 4 of 5 hosts" in waiting.why
    assert "if it ends before" not in waiting.why


def test_jobs_that_meet_the_same_closing_fail_together_and_others_do_not() -> None:
    long = [lasting(job(f"long-{number}", nodes=4, gpus=8, at=number), 90 + number) for number in range(3)]
    decided = decide([*long, lasting(job("short", nodes=4, gpus=8, at=9), 50)])
    assert nodes_of(decided, "short") == ["r0h0", "r0h1", "r1h0", "r1h1"]
    assert len(decided.waiting) == 3
