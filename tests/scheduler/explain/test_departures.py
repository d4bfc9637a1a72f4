"""What-if of departures: a job that has to leave continues where the planner would place it, and others stay."""

from dataclasses import replace

from muster.domain.ids import AttemptId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.explain.departures import Departure, after_departures
from scheduler.model import Plan, Question, WaitingJob, Workload
from scheduler.planner import plan
from tests.scheduler.fleets import NOW_MS, hold, job, of_host, racks, running

LEAVING = AttemptId("leaving")


def question(*queue: WaitingJob, tier: str = "on_demand") -> Question:
    """Two hosts of eight GPUs: one attempt has all of the first, and the first host is cordoned."""
    gpus = hold(racks({"r0": [8, 8]}), of_host("r0h0"))
    cordoned = [
        replace(gpu, facts=replace(gpu.facts, is_cordoned=True)) if gpu.node_id == "r0h0" else gpu for gpu in gpus
    ]
    workload = Workload(NOW_MS, (running("leaving", of_host("r0h0"), tier=tier),))
    return Question(DEFAULT_POLICY, cordoned, list(queue), workload)


def planned(cycle: Question) -> Plan:
    return plan(cycle.gpus, cycle.queue, cycle.policy, cycle.workload)


def test_a_job_that_leaves_a_cordoned_host_continues_on_the_other() -> None:
    after = after_departures(question(), [Departure(LEAVING, job("mine", gpus=8))])
    assert after.workload.running == ()
    (placed,) = planned(after).placements
    assert [(placed.job_id, node_id) for node_id, _ in placed.parts] == [("mine", "r0h1")]


def test_its_gpus_are_kept_for_it_and_no_other_job_takes_them() -> None:
    base = replace(question(job("other", gpus=8), job("third", gpus=8, at=1)), gpus=hold(racks({"r0": [8, 8]}), ()))
    mine = job("mine", gpus=8, at=9)
    kept = after_departures(base, [Departure(LEAVING, replace(mine, interrupted_ms=NOW_MS))])
    (own,) = kept.workload.holds
    assert set(own.gpus) == set(of_host("r0h0"))
    freed = after_departures(base, [Departure(LEAVING, mine, keeps_its_gpus=False)])
    assert freed.workload.holds == ()
    assert {one.job_id for one in planned(freed).placements} == {"other", "third"}


def test_one_that_ends_frees_its_gpus_and_waits_nowhere() -> None:
    base = question(job("next", gpus=8))
    base = replace(base, gpus=hold(racks({"r0": [8]}), of_host("r0h0")))
    assert planned(base).placements == ()
    after = after_departures(base, [Departure(LEAVING, None)])
    assert [one.job_id for one in planned(after).placements] == ["next"]
    assert [one.job_id for one in after.queue] == ["next"]


def test_a_job_that_waits_already_is_in_the_queue_once() -> None:
    mine = job("mine", gpus=8)
    after = after_departures(question(mine), [Departure(AttemptId("ended"), mine)])
    assert after.queue == [mine]
