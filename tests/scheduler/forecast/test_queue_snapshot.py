"""The pending jobs of one plan: equal ones together, as if each were computed by itself."""

from dataclasses import replace

from muster.domain.ids import NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import FleetState
from scheduler.forecast.queue_snapshot import queue_snapshot_of
from scheduler.model import Question, WaitingJob, Workload
from scheduler.planner import plan_on
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, host, job


def kinds_of(queue: list[WaitingJob], closings: dict[NodeId, int] | None = None) -> list[list[int]]:
    gpus = [gpu for number in range(2) for gpu in host(f"h{number}", 8)]
    asked = Question(DEFAULT_POLICY, gpus, queue, Workload(NOW_MS, maintenance_starts=closings or {}))
    state = FleetState(gpus, DEFAULT_POLICY)
    line = queue_snapshot_of(state, asked, plan_on(state, queue, DEFAULT_POLICY, asked.workload))
    assert [one.job_id for one in line.jobs] == [one.job_id for one in queue]
    return [list(kind.numbers) for kind in line.kinds]


def large(name: str, at: int, **changes: object) -> WaitingJob:
    return replace(job(name, nodes=9, gpus=8, at=at), **changes)  # type: ignore[arg-type]  # as the tests name them


def test_jobs_of_one_tenant_that_ask_for_the_same_are_one_kind_in_their_order() -> None:
    queue = [large("a", 0), large("b", 1, nodes=10), large("c", 2), large("d", 3, tenant_id="other"), large("e", 4)]
    assert kinds_of(queue) == [[0, 2, 4], [1], [3]]


def test_how_long_a_job_runs_reports_kinds_apart_only_where_a_closing_does() -> None:
    queue = [large("a", 0, expected_s=600.0), large("b", 1, expected_s=660.0), large("c", 2, expected_s=7200.0)]
    queue.sort(key=lambda one: one.expected_s or 0)
    assert kinds_of(queue) == [[0, 1, 2]]
    assert kinds_of(queue, {NodeId("h0"): NOW_MS + 60 * MINUTE_MS}) == [[0, 1], [2]]


def test_a_tier_that_is_gone_is_of_no_kind() -> None:
    assert kinds_of([large("a", 0), large("b", 1, tier="gone")]) == [[0]]


def test_what_has_a_place_kept_is_taken_out_of_its_kind() -> None:
    gpus = host("h0", 8)
    queue = [large(name, at) for at, name in enumerate("abc")]
    asked = Question(DEFAULT_POLICY, gpus, queue, Workload(NOW_MS))
    state = FleetState(gpus, DEFAULT_POLICY)
    line = queue_snapshot_of(state, asked, plan_on(state, queue, DEFAULT_POLICY, asked.workload))
    assert [list(kind.numbers) for kind in line.kinds_apart({0})] == [[1, 2], [0]]
    assert [list(kind.numbers) for kind in line.kinds_apart({0, 1, 2})] == [[0], [1], [2]]
