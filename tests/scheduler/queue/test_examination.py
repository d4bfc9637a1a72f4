"""The bound on what a cycle examines: every job is tried, and each is examined within one round over the queue."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.ids import NodeId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.model import GpuView, Plan, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.queue import examination
from scheduler.queue.examination import LEAST, Examination, most_computed
from scheduler.solve.placement_rule import LabelRule, PlacementRule
from tests.scheduler.fleets import NOW_MS, host, job, racks, running, standing

NUM_HOSTS, NUM_JOBS = 32, 60
FULL = racks({f"r{number}": [0] * 8 for number in range(NUM_HOSTS // 8)})
NODES = [NodeId(f"r{rack}h{number}") for rack in range(NUM_HOSTS // 8) for number in range(8)]
HEAD = LEAST // 2


def avoiding(number: int) -> WaitingJob:
    """A job that no other job is like: it avoids a pair of hosts of its own."""
    pair = frozenset({NODES[number % NUM_HOSTS], NODES[(number + 1 + number // NUM_HOSTS) % NUM_HOSTS]})
    return replace(job(f"j{number:02}", nodes=2, gpus=8, at=number), avoid_nodes=pair)


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle computes no more than ``LEAST`` times."""
    monkeypatch.setattr(examination, "WORK", 0)


def cycle(queue: Sequence[WaitingJob], begins: int | None, gpus: Sequence[GpuView] = FULL) -> Plan:
    return plan(gpus, queue, DEFAULT_POLICY, Workload(NOW_MS), examined_from=begins)


def examined(decided: Plan) -> list[str]:
    return [one.job_id for one in decided.waiting if one.verdict.binding is not WaitReason.EXAMINED_LATER]


@pytest.mark.usefixtures("bounded")
def test_each_cycle_examines_the_head_and_a_part_of_the_rest_until_each_job_was_examined() -> None:
    queue, begins, seen = [avoiding(number) for number in range(NUM_JOBS)], 0, list[list[str]]()
    exact = {one.job_id: one for one in cycle(queue, None).waiting}
    for _ in range(NUM_JOBS):
        decided = cycle(queue, begins)
        assert all(exact[one.job_id] == one for one in decided.waiting if one.job_id in set(examined(decided)))
        assert {one.job_id for one in decided.waiting} == set(exact), "each job is tried, examined or not"
        seen.append(examined(decided))
        begins = decided.examined_until
        if not begins:
            break
    assert {len(found) for found in seen[:-1]} == {LEAST}
    assert all(found[:HEAD] == seen[0][:HEAD] for found in seen)
    rest = [one for found in seen for one in found[HEAD:]]
    assert sorted({*rest, *seen[0][:HEAD]}) == sorted(exact)
    assert len(rest) == NUM_JOBS - HEAD, "none twice before all others"


def test_a_queue_of_few_kinds_is_examined_whole() -> None:
    decided = cycle([avoiding(number) for number in range(NUM_JOBS)], 0)
    assert (len(examined(decided)), decided.examined_until) == (NUM_JOBS, 0)


@pytest.mark.usefixtures("bounded")
def test_a_job_that_is_not_examined_starts_all_the_same_where_it_fits() -> None:
    idle = [*FULL, *host("free", 8, path=("r9",))]
    queue = [*(avoiding(number) for number in range(NUM_JOBS)), job("last", gpus=8, at=NUM_JOBS)]
    assert [one.job_id for one in cycle(queue, 0, idle).placements] == ["last"]


@pytest.mark.usefixtures("bounded")
def test_jobs_by_labels_of_their_own_are_tried_in_turn() -> None:
    """A try counts the hosts of a label, so a cycle tries a part of them; each starts within the round."""
    idle = [
        replace(view, labels=(("own", f"l{number}"),))
        for number in range(NUM_HOSTS)
        for view in host(f"h{number:02}", 8, path=("r0",))
    ]
    rules = [PlacementRule(labels=LabelRule(required=(("own", frozenset({f"l{one}"})),))) for one in range(NUM_HOSTS)]
    waiting = {f"j{one:02}": replace(job(f"j{one:02}", gpus=8, at=one), rule=rules[one]) for one in range(NUM_HOSTS)}
    begins, num_cycles = 0, 0
    while waiting:
        decided = cycle(list(waiting.values()), begins, idle)
        assert len(decided.placements) <= LEAST
        for placement in decided.placements:
            del waiting[placement.job_id]
        begins, num_cycles = decided.examined_until, num_cycles + 1
        assert num_cycles <= NUM_HOSTS // HEAD


@pytest.mark.usefixtures("bounded")
def test_a_round_goes_on_behind_more_standing_reclaims_than_a_cycle_computes() -> None:
    """Each of their jobs is tried in each cycle, and computes why it waits."""
    num_reclaimed, num_others = LEAST + 2, LEAST + 5
    victims = [running(f"v{one}", [f"{NODES[one]}-{slot}" for slot in range(8)]) for one in range(num_reclaimed)]
    reclaims = tuple(standing(f"v{one}", f"b{one}", victims[one].gpus) for one in range(num_reclaimed))
    workload = Workload(NOW_MS, running=tuple(victims), reclaims=reclaims)
    queue = [job(f"b{one}", gpus=8, tier="reserved", at=one) for one in range(num_reclaimed)]
    queue += [avoiding(number) for number in range(num_others)]
    begins, seen = 0, set[str]()
    for _ in range(num_others):
        decided = plan(FULL, queue, DEFAULT_POLICY, workload, examined_from=begins)
        seen.update(examined(decided))
        assert decided.examined_until == 0 or decided.examined_until > begins
        begins = decided.examined_until
        if not begins:
            break
    assert seen == {one.job_id for one in queue}


COSTS = st.tuples(st.integers(0, 3), st.booleans())
"""What a job computes, and whether it is never put off."""


@given(st.lists(COSTS, min_size=1, max_size=80), st.integers(0, 100))
def test_a_round_comes_to_each_position_whatever_a_job_costs(costs: list[tuple[int, bool]], begins: int) -> None:
    seen, num_hosts = set[int](), 1_000_000
    for _ in range(len(costs) + 2):
        one, computed = Examination(num_hosts, begins), 0
        for position, (cost, is_never_put_off) in enumerate(costs):
            one.next_job()
            if is_never_put_off or one.admits():
                seen.add(position)
                computed += 0 if is_never_put_off else cost
                for _ in range(cost):
                    one.computed()
        assert computed < most_computed(num_hosts) + 3 + 3
        assert one.until == 0 or one.until > begins
        begins = one.until
    assert seen == set(range(len(costs)))


def test_the_bound_falls_with_the_hosts() -> None:
    found = [most_computed(num_hosts) for num_hosts in (100, 1_250, 12_500, 1_000_000)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == LEAST
