"""Where wall times are exact, and nothing is lost, each job starts by its first firm start (I31)."""

from dataclasses import dataclass, field, replace

import pytest

from muster.domain.ids import TenantId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from scheduler.fleet.topology import FleetState
from scheduler.model import Plan, Question, WaitingJob, Workload
from scheduler.planner import plan_on
from scheduler.quota.tenancy import Quota, Tenancy
from simulator.planning.firm_starts import fault_of_firm_starts
from simulator.planning.lending import fault_of_lent
from simulator.traces import by_policy
from simulator.traces.by_policy import PolicyQueue, RunTimes
from simulator.traces.generated import LAWS, generated
from simulator.traces.jobs import TraceJob
from simulator.traces.planned import Decision, Expected, PlannedQueue

NUM_NODES, GPUS_PER_NODE, NUM_JOBS = 24, 8, 100
NUM_BEFORE = 5
"""Firm starts before another tenant gets a guarantee."""


def policy_with(**fields: object) -> Policy:
    return DEFAULT_POLICY.model_copy(update={"queue": DEFAULT_POLICY.queue.model_copy(update=fields)})


def whole_hosts(law: str, seed: int) -> list[TraceJob]:
    """Of a generated trace: single GPUs become some hosts, so that many jobs have to wait."""
    jobs = generated(
        LAWS[law], num_jobs=NUM_JOBS, num_nodes=NUM_NODES, gpus_per_node=GPUS_PER_NODE, load=1.0, seed=seed
    )
    sized = [(job, job.num_nodes if job.num_nodes > 1 else 1 + job.gpus % 5) for job in jobs]
    return [TraceJob(job.submit_s, job.duration_s, nodes * GPUS_PER_NODE, nodes, GPUS_PER_NODE) for job, nodes in sized]


@dataclass
class Reported:
    """The first firm start of each job of one play, and the jobs whose firm start was postponed."""

    queue: PlannedQueue
    first_ms: dict[int, int] = field(default_factory=dict)
    postponed: set[int] = field(default_factory=set)

    def note(self, decision: Decision) -> None:
        for one in decision.decided.waiting:
            number = decision.numbers[one.job_id]
            if one.firm_start is not None:
                self.first_ms.setdefault(number, one.firm_start.latest_ms)
            if one.postponed is not None:
                self.postponed.add(number)


def played(jobs: list[TraceJob], policy: Policy = DEFAULT_POLICY, padding: float = 1.0) -> Reported:
    """``padding``: the wall time of each job in its run time."""
    wall_times_s = [job.duration_s * padding for job in jobs]
    told = Reported(PlannedQueue(jobs, Expected(wall_times_s, [None] * len(jobs)), NUM_NODES, GPUS_PER_NODE, policy))
    told.queue.play(told.note)
    return told


@pytest.mark.parametrize("holds_per_cohort", [1, 3])
@pytest.mark.parametrize("law", LAWS)
def test_no_job_starts_after_its_first_firm_start(law: str, holds_per_cohort: int) -> None:
    told = played(whole_hosts(law, 5), policy_with(holds_per_cohort=holds_per_cohort, firm_within_s=14_400))
    assert len(told.first_ms) >= NUM_JOBS / 20
    late = {number for number, latest_ms in told.first_ms.items() if told.queue.started_ms[number] > latest_ms}
    assert (late, told.postponed) == (set(), set())


def test_the_player_of_any_policy_keeps_them_too() -> None:
    jobs, policy = whole_hosts("steady", 5), policy_with(firm_within_s=14_400)
    known = RunTimes([job.duration_s for job in jobs], [None] * NUM_JOBS)
    queue = PolicyQueue(jobs, known, policy, Tenancy(), NUM_NODES, GPUS_PER_NODE)
    first_ms: dict[int, int] = {}

    def note(decided: Plan) -> None:
        for one in decided.waiting:
            if one.firm_start is not None:
                first_ms.setdefault(int(one.job_id), one.firm_start.latest_ms)

    played_by = queue.play(note)
    assert len(first_ms) >= NUM_JOBS / 20
    assert [number for number, latest_ms in first_ms.items() if played_by.started_s[number] * 1000 > latest_ms] == []


@dataclass
class WithGuarantees:
    """A play of jobs of two tenants, each plan of which is checked: no false reason, no guarantee lent."""

    queue: PolicyQueue
    first_ms: dict[int, int] = field(default_factory=dict)
    postponed: set[int] = field(default_factory=set)
    num_plans: int = 0

    def planned(self, state: FleetState, queue: list[WaitingJob], policy: Policy, workload: Workload) -> Plan:
        gpus = list(self.queue._gpus())
        decided = plan_on(state, queue, policy, workload)
        asked = Question(policy, gpus, queue, workload)
        assert (fault_of_firm_starts(asked, decided), fault_of_lent(asked, decided)) == (None, None)
        self.num_plans += 1
        return decided

    def note(self, decided: Plan) -> None:
        for one in decided.waiting:
            if one.firm_start is not None:
                self.first_ms.setdefault(int(one.job_id), one.firm_start.latest_ms)
            if one.postponed is not None:
                self.postponed.add(int(one.job_id))


@pytest.mark.parametrize("is_set_later", [False, True])
def test_guarantees_and_firm_starts_are_kept_together(monkeypatch: pytest.MonkeyPatch, *, is_set_later: bool) -> None:
    """Tenant ``a`` has the only guarantee, and in the end ``b`` has one too: no start is late without a true reason."""
    own, others = (TenantId("a"), "on_demand"), (TenantId("b"), "reserved")
    jobs = [
        replace(job, tenant="aaab"[number % 4], tier="reserved" if number % 20 == 3 else "on_demand")
        for number, job in enumerate(whole_hosts("steady", 5))
    ]
    known = RunTimes([job.duration_s for job in jobs], [None] * NUM_JOBS)
    policy = policy_with(firm_within_s=14_400)
    queue = PolicyQueue(jobs, known, policy, Tenancy(quotas={own: Quota(16)}), NUM_NODES, GPUS_PER_NODE)
    told = WithGuarantees(queue)
    monkeypatch.setattr(by_policy, "plan_on", told.planned)

    def note(decided: Plan) -> None:
        told.note(decided)
        if is_set_later and len(told.first_ms) >= NUM_BEFORE:
            queue.tenancy = Tenancy(quotas={own: Quota(16), others: Quota(32)})

    started_s = queue.play(note).started_s
    late = {number for number, latest_ms in told.first_ms.items() if started_s[number] * 1000 > latest_ms}
    assert told.first_ms, "some starts are firm"
    assert {jobs[number].tenant for number in told.first_ms} == {"a"}
    assert late <= told.postponed
