"""A queue of many shapes: counts for a family of requests change no plan, and save the work of each size."""

import weakref
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from muster.domain.ids import AttemptId, JobId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.kept_values import KeptValues
from scheduler.fleet.topology import FleetState
from scheduler.holds.outcomes import Notified, Refused
from scheduler.holds.places import Holds
from scheduler.model import Plan, RunningAttempt, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.reclaim.release_effect import Due, Reach
from scheduler.solve import placing, solver
from scheduler.solve.placing import Placing
from scheduler.solve.solver import Request, most_nodes, place
from tests.scaled import examples
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, racks
from tests.scheduler.test_all_features import full_worlds
from tests.scheduler.test_plan_properties import World

MANY = settings(max_examples=examples(600))
ANY_NUMBER = 1_000_000


def larger(job: WaitingJob) -> WaitingJob:
    most = None if job.max_nodes is None else job.max_nodes * 2
    return replace(job, job_id=JobId(f"{job.job_id}-again"), nodes=job.nodes * 2, max_nodes=most)


def made_again(self: KeptValues[Any], stamp: Hashable, key: Hashable, make: Callable[[], Any]) -> Any:
    del self, stamp, key
    return make()


def counted_alone(state: FleetState, request: Request) -> bool:
    """The count of ``could_ever_fit`` for each request by itself."""
    own = state.for_tier(request.tier)
    return most_nodes(own, request, own.tier(request.tier).admitted_counts) >= request.nodes


def searched(self: Holds, request: Request) -> int | None:
    """The search of ``Holds.in_the_way`` for each request, whatever its family could have."""
    numbers = tuple(range(len(self._places)))
    with self.lifted(numbers):
        chosen = place(self._state, request)
    return None if chosen is None else self._first_of(chosen)


@MANY
@given(full_worlds())
def test_what_is_kept_and_left_out_for_a_family_changes_no_plan(world: World) -> None:
    # Each job twice, the second larger: it finds what the first one left, as the state was by then.
    again = [larger(one) for one in world.queue]
    many = replace(world, queue=[*world.queue, *again])
    decided = many.plan()
    assert decided == searched_for_each(many)
    told = {one.job_id: one for one in decided.waiting}
    # The next cycle lifts, removes and holds again the places of firm starts.
    carried = [
        replace(one, firm_start=told[one.job_id].firm_start, postponed=told[one.job_id].postponed)
        for one in many.queue
        if one.job_id in told
    ]
    later = replace(world, queue=[*carried, *(replace(one, job_id=JobId(f"{one.job_id}-new")) for one in world.queue)])
    assert later.plan() == searched_for_each(later)


def searched_for_each(world: World) -> Plan:
    """The plan with nothing kept and nothing left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptValues, "get", made_again)
        patch.setattr(Reclaimer, "_room_of", lambda *_: None)
        patch.setattr(Placing, "_fits_nowhere", lambda *_: False)
        patch.setattr(placing, "could_ever_fit", counted_alone)
        patch.setattr(Holds, "most_nodes", lambda *_: ANY_NUMBER)
        patch.setattr(Holds, "in_the_way", searched)
        return world.plan()


def counted_plan(num_sizes: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Plan jobs of so many sizes by 8 numbers of GPUs a host; return how often all hosts were examined."""
    passes = 0
    examined = solver.fitting_cells

    def fitting_cells(*arguments: Any) -> Any:
        nonlocal passes
        passes += 1
        return examined(*arguments)

    gpus = racks({f"r{number}": [0] * 16 for number in range(4)})
    running = tuple(
        RunningAttempt(
            AttemptId(f"a{number}"),
            JobId(f"r{number}"),
            TenantId("t"),
            "spot" if number % 2 else "on_demand",
            tuple(gpu.uuid for gpu in gpus[number * 8 : number * 8 + 8]),
            NOW_MS - 90 * MINUTE_MS,
            ends_ms=NOW_MS + number * MINUTE_MS if number % 4 else None,
        )
        for number in range(64)
    )
    queue = [
        WaitingJob(JobId(f"j{nodes}-{width}"), 1, "on_demand", nodes, 40 + nodes, width)
        for nodes in range(num_sizes)
        for width in range(1, 9)
    ]
    with monkeypatch.context() as patch:
        for module in ("scheduler.solve.solver", "scheduler.explain.exclusions", "scheduler.reclaim.victims"):
            patch.setattr(f"{module}.fitting_cells", fitting_cells)
        decided = plan(gpus, queue, DEFAULT_POLICY, Workload(NOW_MS, running))
    assert (len(decided.waiting), len({one.why for one in decided.waiting})) == (len(queue), len(queue))
    return passes


def test_ten_times_as_many_sizes_need_no_further_pass_over_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    few = counted_plan(12, monkeypatch)
    assert few <= 8 * 20  # some counts for each of 8 families
    assert counted_plan(120, monkeypatch) == few


def test_the_victims_of_a_family_are_counted_once_and_kept_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[weakref.ref[Any]] = []
    due = Reach.due

    def recorded(self: Reach, *arguments: Any) -> Due:
        found = due(self, *arguments)
        counted.append(weakref.ref(found.owner))
        return found

    monkeypatch.setattr(Reach, "due", recorded)
    gpus = racks({"r": [0] * 16})
    running = [
        RunningAttempt(
            AttemptId(f"a{node}"),
            JobId(f"r{node}"),
            TenantId(f"t{node}"),
            "spot",
            tuple(gpu.uuid for gpu in gpus[node * 8 : node * 8 + 8]),
            NOW_MS - 90 * MINUTE_MS,
        )
        for node in range(16)
    ]
    held = [replace(gpu, facts=replace(gpu.facts, is_assigned=True)) for gpu in gpus]
    reclaimer = Reclaimer(FleetState(held, DEFAULT_POLICY), DEFAULT_POLICY, Workload(NOW_MS, tuple(running)))
    for node_id in {gpu.node_id for gpu in gpus}:
        avoiding = Request("on_demand", 17, 8, avoid_nodes=frozenset({node_id}))
        assert isinstance(reclaimer.choose(JobId("j"), avoiding), Refused)
    assert len(counted) == 16
    assert sum(one() is not None for one in counted) == 1
    assert isinstance(reclaimer.choose(JobId("j"), Request("on_demand", 2, 8)), Notified)
    assert len(counted) == 17  # its search takes over what its refusal counted
