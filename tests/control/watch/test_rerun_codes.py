"""Exit codes 16 and 17 of a job that declares them: from the hosts' records to verdict, evidence and placement."""

from typing import Any, Literal

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import job_plans
from muster.db.models import Event, Node, VerdictRow
from muster.domain.job.verdicts import VerdictKind
from muster.domain.states import Cause, JobState
from tests.control.conftest import SetClock
from tests.control.watch.stalled_job import StalledJob
from tests.control.watch.test_reruns import SuspectJob
from tests.filled_once import filled_world
from tests.fleet_factory import enrol_host

LINE = "ERROR:megatron.core.rerun_state_machine:Rank {rank}, node n4, device 0, iteration #7: {words}!\nExiting now."
REPEATED = "First rerun: unexpected result is reproducible within the tolerance (7.0 = 7.0)"
Codes = Literal["megatron", "own"]


class DeclaredJob(SuspectJob):
    """A running job of two hosts with one rank each, and two more hosts, that declares its exit codes."""

    codes: Codes | None = "megatron"

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        for name in ("gamma", "delta"):
            enrol_host(units, name)
        StalledJob.__init__(self, units, clock, rerun_exit_codes=self.codes)

    def exit_all(self, code: int, words: str = "", *, at_fault: int = 1) -> None:
        """Let all ranks end with ``code``, as Megatron-LM's do, and only the one at fault write ``words``."""
        line = LINE.format(rank=at_fault, words=words)
        self.exit_with({number: {"exit_code": code} for number in range(2)}, {at_fault: line} if words else {})

    def exit_with(self, ends: dict[int, dict[str, Any]], lines: dict[int, str]) -> None:
        for number, host in enumerate(self.by_rank()):
            rank = {"outcome": "none", "error_excerpt": lines.get(number), **ends[number]}
            record = {"launcher": "torchrun", "launcher_exit_code": 1, "ranks": {str(number): rank}}
            host.report(self.attempt.id, self.attempt.fence, "exited", "clean", record=record)

    def fails(self) -> tuple[JobState, int, Cause | None]:
        job = self.fleet.job(self.job_id)
        return job.state, job.restarts_used, self.fleet.attempts(self.job_id)[-1].attempt.cause

    def events(self, kind: str) -> list[dict[str, Any]]:
        with self.units.read() as session:
            return [each.payload for each in session.scalars(select(Event).where(Event.kind == kind))]


class OwnJob(DeclaredJob):
    codes = "own"


@pytest.fixture
def job(units: UnitOfWorkFactory, clock: SetClock) -> DeclaredJob:
    return filled_world(units, clock, "a job that declares its exit codes", lambda: DeclaredJob(units, clock))


def test_code_16_is_run_again_on_other_hosts_at_no_restart_and_its_gpu_is_reported(job: DeclaredJob) -> None:
    nodes, gpus = job.nodes(), job.gpus()
    job.exit_all(16, REPEATED)
    assert job.fails() == (JobState.RECOVERING, 0, Cause.CORRUPTION)
    found = job.verdict()
    with job.units.read() as session:
        host_name = session.get_one(Node, nodes[1]).name
    assert (found.kind, found.cause, found.ranks, found.gpu) == (VerdictKind.CORRUPTION, "repeated", [1], gpus[1])
    assert found.sentence.startswith(f"Rank 1 on {host_name} ({gpus[1]}): the program ran the step again")
    assert found.evidence == [LINE.format(rank=1, words=REPEATED).split("\n")[0].split(":", 2)[2]]
    assert job.signals() == [(f"verdict/{found.id}", gpus[1])]
    assert job.avoided() == {nodes[1]}
    job.run()
    assert nodes[1] not in job.nodes()
    assert [each["verdict_id"] for each in job.events("attempt.verdict")] == [found.id]


def test_a_rank_that_alone_ends_with_16_is_the_suspect_and_all_hosts_without_one_are(job: DeclaredJob) -> None:
    (nodes, gpus) = job.nodes(), job.gpus()
    job.exit_with({0: {"exit_code": 16}, 1: {"exit_code": None, "signal": 15}}, {})
    assert (job.verdict().ranks, job.verdict().gpu, job.avoided()) == ([0], gpus[0], frozenset({nodes[0]}))


def test_without_a_line_of_megatron_no_rank_is_named_and_both_hosts_are_left(job: DeclaredJob) -> None:
    nodes = job.nodes()
    job.exit_all(16)
    assert (job.verdict().cause, job.verdict().ranks, job.signals()) == ("repeated", [], [])
    assert job.avoided() == frozenset(nodes)


@pytest.mark.parametrize(
    ("words", "cause", "is_blamed"),
    [
        ("Possible persistent error", "persistent", True),
        ("Correct result (but possible Application error) (spiky loss)", "program", False),
        ("", "undecided", True),
    ],
)
def test_code_17_on_other_gpus_decides_the_verdict_and_holds_the_job(
    job: DeclaredJob, words: str, cause: str, *, is_blamed: bool
) -> None:
    gpus = job.gpus()
    job.exit_all(16, REPEATED)
    job.run()
    job.exit_all(17, words)
    found = job.verdict()
    assert (found.cause, found.ranks, found.gpu) == ((cause, [1], gpus[1]) if is_blamed else (cause, [], ""))
    assert job.fails()[0] is JobState.HELD
    assert found.sentence in job.fleet.job(job.job_id).state_reason
    with job.units.read() as session:
        due = session.get_one(VerdictRow, found.id).burn_in_next_at
    assert (due is not None) == (cause == "persistent"), "a burn-in is proposed for a GPU that computed otherwise"
    assert job.events("attempt.rerun")[-1]["cause"] == cause
    with job.units.begin(job.fleet.tenant, job_plans.EXPLAIN, quiet=True) as unit:
        explained = job_plans.explain_job(unit, job.job_id).verdict
        assert explained is not None
        assert found.sentence in str(explained)


@pytest.mark.parametrize(("words", "cause"), [("Possible transient error", "transient"), ("", "undecided")])
def test_code_17_without_a_run_elsewhere_is_a_verdict_of_its_own(job: DeclaredJob, words: str, cause: str) -> None:
    job.exit_all(17, words)
    found = job.verdict()
    assert (found.cause, found.ranks) == (cause, [1] if words else [])
    assert len(job.signals()) == len(found.ranks)
    assert job.fails()[::2] == (JobState.HELD, Cause.DIVERGED)


def test_beyond_the_re_runs_of_a_job_16_costs_restarts(job: DeclaredJob) -> None:
    for number in range(3):
        job.exit_with({0: {"exit_code": 16}, 1: {"exit_code": None, "signal": 15}}, {})
        assert job.fails() == (JobState.RECOVERING, 0, Cause.CORRUPTION), number
        job.run()
    job.exit_with({0: {"exit_code": 16}, 1: {"exit_code": None, "signal": 15}}, {})
    assert job.fails() == (JobState.RECOVERING, 1, Cause.DIVERGED)
    assert "no run on other GPUs is left" in job.fleet.job(job.job_id).state_reason


def test_an_end_by_the_runtime_is_none_by_a_declared_code(job: DeclaredJob) -> None:
    job.end_as(17, "diverged")
    assert job.fails() == (JobState.RECOVERING, 1, Cause.DIVERGED)
    assert job.verdicts() == []


@pytest.mark.parametrize("code", [16, 17])
def test_codes_that_a_job_keeps_for_itself_are_its_own_fault(
    units: UnitOfWorkFactory, clock: SetClock, code: int
) -> None:
    own = OwnJob(units, clock)
    own.exit_all(code, REPEATED)
    assert own.fails() == (JobState.RECOVERING, 1, Cause.USER_ERROR)
    assert (own.verdicts(), own.avoided()) == ([], frozenset())
