"""Re-runs from the ranks' reports to verdict, evidence, avoidance, and the order of the next attempt."""

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from control.attempts.attempts import lock_attempt
from control.attempts.orders import order_of
from control.core.unit_of_work import UnitOfWorkFactory
from control.policy.policies import active_policy
from control.training import training
from control.watch import read, verdicts
from control.watch.reruns import MOST_REPORTS
from control.watch.types import VerdictRecord
from muster.db.models import AllocationGpu, Attempt, Event, Node, StoredSignal, VerdictRow
from muster.domain.ids import NodeId
from muster.domain.job.verdicts import VerdictKind
from muster.domain.states import Cause, JobState
from muster.domain.times import to_ms
from muster.wire.host import PROTOCOL_VERSION
from muster.wire.training import TrainBatch, TrainLine
from tests.control.conftest import SetClock
from tests.control.watch.stalled_job import StalledJob
from tests.filled_once import filled_world
from tests.fleet_factory import OPERATOR, enrol_host
from tests.played_host import PlayedHost

FAULT = {"type": "replica_fault", "step": 12, "since": 9, "verdict": "divergence", "tensor": "layer.weight"}
RERUN: dict[str, Any] = {
    "type": "rerun",
    "step": 12,
    "from_step": 8,
    "end_step": 12,
    "first_bad": 10,
    "place": "in_place",
    "fault": "replica_fault",
    "num_ranks": 2,
    "tensor": "layer.weight",
    "operation": {"kind": "matmul", "shape": [64, 32], "dtype": "float32", "magnitude": 0.02},
}
FALSE = [[0, "a1", [[9, "1"], [10, "2"], [11, "3f"]]], [1, "b1", [[9, "4"], [10, "5f"], [11, "6f"]]]]
"""Results of two ranks: rank 1's loss differs at step 10, rank 0's one step later."""
REPEATED: dict[str, Any] = {"found": "repeated", "is_again": True, "ranks": [0, 1], "results": FALSE}
FOUND: dict[str, Any] = {"found": "transient", "is_again": False, "results": FALSE}
RIGHT = [[0, "c", [[9, "1"], [10, "2"], [11, "3"]]], [1, "c", [[9, "4"], [10, "5"], [11, "6"]]]]


class SuspectJob(StalledJob):
    """A running job of two hosts with one rank each, and two more hosts."""

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        for name in ("gamma", "delta"):
            enrol_host(units, name)
        super().__init__(units, clock)

    def run(self) -> None:
        with self.units.read() as session:
            known = {host.node_id for host in self.hosts}
            for node_id in session.scalars(select(Node.id)):
                if node_id not in known:
                    self.hosts.append(PlayedHost(self.units, node_id))
        self.offsets = dict.fromkeys((host.node_id for host in self.hosts), 0)
        super().run()

    def report(self, *messages: dict[str, Any], rank: int = 0) -> None:
        for message in messages:
            self.send(0, message, rank)

    def report_at_once(self, *messages: dict[str, Any]) -> None:
        """Send one batch of rank 0."""
        host = self.by_rank()[0]
        offset = self.offsets[host.node_id]
        lines = tuple(TrainLine(at_ms=to_ms(self.clock.now), rank=0, message=each) for each in messages)
        batch = TrainBatch(
            protocol=PROTOCOL_VERSION, fence=self.attempt.fence, offset=offset, next_offset=offset + 9, lines=lines
        )
        self.offsets[host.node_id] = offset + 9
        with self.units.begin(host.principal, training.RECORD, quiet=True) as unit:
            training.take(unit, self.attempt.id, batch)

    def dismiss(self, verdict: VerdictRecord) -> None:
        with self.units.begin(OPERATOR, verdicts.DISMISS) as unit:
            verdicts.dismiss(unit, verdict.id, reason="our own test")

    def end_as(self, code: int, outcome: str) -> None:
        for number, host in enumerate(self.by_rank()):
            ranks = {
                str(number): {"exit_code": code, "outcome": outcome, "error_excerpt": "muster.train: replicas differ"}
            }
            record = {"launcher": "torchrun", "launcher_exit_code": 1, "ranks": ranks}
            host.report(self.attempt.id, self.attempt.fence, "exited", "clean", record=record)

    def verdict(self) -> VerdictRecord:
        (found,) = self.verdicts()
        return found

    def nodes(self) -> list[NodeId]:
        return [host.node_id for host in self.by_rank()]

    def gpus(self) -> list[str]:
        with self.units.read() as session:
            query = select(AllocationGpu.gpu_uuid).where(AllocationGpu.node_id.in_(self.nodes()))
            return [str(each) for each in session.scalars(query.order_by(AllocationGpu.node_rank))]

    def order(self) -> dict[str, Any] | None:
        with self.units.begin(self.hosts[0].principal, read.READ, quiet=True) as unit:
            policy = active_policy(unit.session)
            env = order_of(unit, lock_attempt(unit, self.attempt.id), self.nodes()[0], policy).env
        return json.loads(env["MUSTER_RERUN"]) if "MUSTER_RERUN" in env else None

    def signals(self) -> list[tuple[str, str]]:
        with self.units.read() as session:
            rows = session.scalars(select(StoredSignal).where(StoredSignal.signal_id.like("verdict/%")))
            return [("/".join(row.signal_id.split("/")[:2]), str(row.gpu_uuid)) for row in rows]

    def repeat_in_place(self) -> None:
        """Let the fault come again in the re-run in place, and the attempt end by it."""
        self.report(FAULT, {**RERUN, **REPEATED})
        self.end_as(16, "corruption")


@pytest.fixture
def job(units: UnitOfWorkFactory, clock: SetClock) -> SuspectJob:
    return filled_world(units, clock, "a job whose ranks may compute wrong", lambda: SuspectJob(units, clock))


def test_a_transient_fault_names_the_gpu_and_is_reported_evidence(job: SuspectJob) -> None:
    assert job.order() == {}, "a re-run elsewhere is offered"
    job.report(FAULT)
    undecided = job.verdict()
    assert (undecided.kind, undecided.cause, undecided.ranks) == (VerdictKind.CORRUPTION, "undecided", [])
    assert job.signals() == []
    job.report({**RERUN, "found": "transient", "is_again": False, "ranks": [1], "results": FALSE})
    found = job.verdict()
    assert (found.id, found.cause, found.ranks, found.gpu) == (undecided.id, "transient", [1], job.gpus()[1])
    assert found.node_id == job.nodes()[1]
    with job.units.read() as session:
        host = session.get_one(Node, job.nodes()[1]).name
    assert found.sentence.startswith(f"Rank 1 on {host} ({found.gpu}): wrong values in layer.weight in steps 9 to 12")
    assert job.signals() == [(f"verdict/{found.id}", found.gpu)]
    with job.units.read() as session:
        event = session.scalars(select(Event).where(Event.kind == "attempt.rerun")).one()
        assert (event.payload["cause"], event.payload["ranks"]) == ("transient", [1])


@pytest.mark.parametrize("is_of_compute", [False, True])
def test_a_rank_that_most_copies_name_is_evidence_until_its_program_is_to_blame(
    job: SuspectJob, *, is_of_compute: bool
) -> None:
    """Copies, or results of one micro-batch that several ranks have computed."""
    job.report({**FAULT, "ranks": [1], "is_of_compute": is_of_compute})
    named, (gpu,) = job.verdict(), job.gpus()[1:]
    assert (named.cause, named.ranks, named.gpu) == ("minority", [1], gpu)
    assert job.signals() == [(f"verdict/{named.id}", gpu)]
    job.report({**RERUN, **REPEATED})
    job.end_as(16, "corruption")
    assert (job.verdict().cause, job.verdict().ranks) == ("repeated", [1])
    job.run()
    job.report({**RERUN, "place": "elsewhere", "is_again": True, "results": FALSE})
    assert (job.verdict().cause, job.verdict().ranks) == ("program", [])
    with job.units.read() as session:
        waiting = select(StoredSignal.signal_id).where(StoredSignal.judged_at.is_(None))
        assert session.scalars(waiting).all() == [], "withdrawn before it was judged"


def test_repeated_reports_of_a_verdict_accuse_one_gpu_at_a_time_and_add_no_evidence(job: SuspectJob) -> None:
    job.report(FAULT)
    job.report_at_once(
        *({**RERUN, **FOUND, "ranks": [each % 2], "reason": f"{each}" + "x" * 200} for each in range(40))
    )
    found = job.verdict()
    assert (found.gpu, len(found.evidence)) == (job.gpus()[found.ranks[0]], MOST_REPORTS)
    with job.units.read() as session:
        waiting = select(StoredSignal.gpu_uuid).where(StoredSignal.judged_at.is_(None))
        assert session.scalars(waiting).all() == [found.gpu], "the others are taken back"


def test_a_verdict_that_names_no_gpu_any_more_takes_back_what_it_reported(job: SuspectJob) -> None:
    job.report({**FAULT, "ranks": [1]}, {**RERUN, **REPEATED})
    job.end_as(16, "corruption")
    job.run()
    alike = [[0, "c", [[9, "1"], [10, "2a"], [11, "3"]]], [1, "c", [[9, "4"], [10, "5a"], [11, "6"]]]]
    job.report({**RERUN, "place": "elsewhere", "is_again": False, "results": alike})
    assert (job.verdict().ranks, job.verdict().gpu) == ([], "")
    with job.units.read() as session:
        waiting = select(StoredSignal.signal_id).where(StoredSignal.judged_at.is_(None))
        assert session.scalars(waiting).all() == []


def test_one_batch_stores_so_many_faults(job: SuspectJob) -> None:
    job.report_at_once(*({**FAULT, "step": 20 + 2 * each} for each in range(40)))
    with job.units.read() as session:
        assert len(session.scalars(select(VerdictRow.id)).all()) == 32


def test_a_dismissal_frees_the_hosts_and_no_later_report_changes_the_verdict(job: SuspectJob) -> None:
    job.repeat_in_place()
    assert job.avoided() == frozenset(job.nodes())
    job.dismiss(job.verdict())
    assert job.avoided() == frozenset()
    job.report(FAULT)
    job.report({**RERUN, **FOUND, "ranks": [1]})
    assert (job.verdict().cause, job.signals()) == ("repeated", [])


def test_a_dismissed_verdict_that_had_no_rerun_takes_none(job: SuspectJob) -> None:
    job.report(FAULT)
    job.dismiss(job.verdict())
    job.report({**RERUN, **FOUND, "ranks": [1]})
    assert (job.verdict().cause, job.signals()) == ("undecided", [])


def test_a_fault_that_repeats_itself_is_decided_on_other_hosts_at_no_restart(job: SuspectJob) -> None:
    first_nodes, first_gpus = job.nodes(), job.gpus()
    job.repeat_in_place()
    assert (job.verdict().cause, job.verdict().ranks) == ("repeated", [])
    submitted = job.fleet.job(job.job_id)
    assert (submitted.state, submitted.restarts_used) == (JobState.RECOVERING, 0)
    assert job.fleet.attempts(job.job_id)[-1].attempt.cause is Cause.CORRUPTION
    assert job.avoided() == frozenset(first_nodes)
    job.run()
    assert not set(job.nodes()) & set(first_nodes), "enforced by placement"
    assert job.order() == {
        "step": 12,
        "first_bad": 10,
        "ranks": [0, 1],
        "num_ranks": 2,
        "is_offered": True,
    }
    job.clock.advance(60)
    job.report({**RERUN, "place": "elsewhere", "is_again": False, "results": RIGHT})
    found = job.verdict()
    assert (found.cause, found.ranks, found.gpu) == ("persistent", [1], first_gpus[1])
    assert found.node_id == first_nodes[1]
    assert job.signals() == [(f"verdict/{found.id}", first_gpus[1])]
    assert job.order() == {}, "it is decided"
    with job.units.read() as session:
        attempt = session.get_one(Attempt, job.attempt.id)
        assert attempt.charged_from == min(job.clock.now, attempt.placed_at + timedelta(seconds=900))


def test_of_several_ranks_no_gpu_is_blamed(job: SuspectJob) -> None:
    """One of them has spread its fault to the others, or the program has."""
    job.report({**FAULT, "ranks": [0, 1]})
    assert (job.verdict().cause, job.verdict().ranks, job.verdict().gpu) == ("minority", [0, 1], "")
    job.report({**RERUN, "found": "transient", "is_again": False, "ranks": [0, 1], "results": FALSE})
    found = job.verdict()
    assert (found.cause, found.ranks, found.gpu, found.node_id) == ("transient", [0, 1], "", None)
    assert found.sentence.startswith("Ranks 0, 1: wrong values in layer.weight")
    assert job.signals() == []


def test_a_buffer_that_a_program_may_change_on_one_rank_blames_no_gpu(job: SuspectJob) -> None:
    job.report({**FAULT, "ranks": [1], "is_of_buffers": True})
    assert (job.verdict().cause, job.verdict().ranks, job.verdict().gpu) == ("undecided", [], "")
    assert job.signals() == []


def test_a_fault_that_comes_again_with_other_bits_takes_its_evidence_back(job: SuspectJob) -> None:
    job.report({**FAULT, "ranks": [1]})
    job.report({**RERUN, "found": "again", "is_again": True, "ranks": [1], "results": FALSE})
    assert (job.verdict().cause, job.verdict().ranks, job.verdict().gpu) == ("undecided", [], "")
    with job.units.read() as session:
        waiting = select(StoredSignal.signal_id).where(StoredSignal.judged_at.is_(None))
        assert session.scalars(waiting).all() == []


def test_with_another_number_of_ranks_nothing_is_decided_and_a_later_attempt_may(job: SuspectJob) -> None:
    job.repeat_in_place()
    job.run()
    job.report({**RERUN, "place": "elsewhere", "is_again": False, "num_ranks": 1, "results": RIGHT[:1]})
    assert (job.verdict().cause, job.verdict().ranks) == ("repeated", [])
    assert job.order() is not None
    job.report({**RERUN, "place": "elsewhere", "is_again": False, "results": RIGHT})
    assert job.verdict().cause == "persistent"


def test_a_value_fault_is_decided_elsewhere_only_with_enough_losses_from_before_it(job: SuspectJob) -> None:
    of_values = {**RERUN, "fault": "value_fault", "tensor": ""}
    job.report({**of_values, **REPEATED})
    job.end_as(16, "corruption")
    job.run()
    job.report({**of_values, "place": "elsewhere", "is_again": False, "results": RIGHT})
    found = job.verdict()
    assert (found.kind, found.cause, found.ranks) == (VerdictKind.VALUE_FAULT, "undecided", [])


def test_the_same_fault_on_other_gpus_is_the_programs_and_holds_the_job(job: SuspectJob) -> None:
    job.repeat_in_place()
    job.run()
    job.report({**RERUN, "place": "elsewhere", "is_again": True, "results": FALSE})
    found = job.verdict()
    assert (found.cause, found.ranks, found.gpu, found.node_id) == ("program", [], "", None)
    assert job.signals() == []
    job.end_as(16, "corruption")
    assert job.state() is JobState.HELD
    assert "other GPUs gave the same fault" in job.fleet.job(job.job_id).state_reason


def test_a_program_names_no_rank_that_it_does_not_have_and_no_verdict_of_another_step(job: SuspectJob) -> None:
    job.report({**RERUN, "found": "transient", "is_again": False, "ranks": [7, 1 << 30], "results": []})
    assert (job.verdict().ranks, job.verdict().gpu) == ([], "")
    job.report({**RERUN, "place": "elsewhere", "is_again": False, "results": RIGHT})
    assert job.verdict().cause == "transient", "no re-run elsewhere was ordered"


@pytest.mark.parametrize(
    "wrong",
    [
        {"results": [[0, "a", [[9, "1"]] * 49]]},
        {"results": [[rank, "a", []] for rank in range(33)]},
        {"results": [[0, "not hexadecimal", []]]},
        {"ranks": list(range(17))},
        {"found": "guilty"},
    ],
)
def test_a_report_out_of_bounds_is_refused(job: SuspectJob, wrong: dict[str, object]) -> None:
    job.report({**RERUN, "found": "transient", "is_again": False, "ranks": [1], **wrong})
    assert job.verdicts() == []


def test_a_report_that_is_repeated_without_end_has_effect_so_many_times(job: SuspectJob) -> None:
    for number in range(MOST_REPORTS + 3):
        job.report({**RERUN, "found": "transient", "is_again": False, "ranks": [number % 2], "results": FALSE})
    with job.units.read() as session:
        events = session.scalars(select(Event).where(Event.kind == "attempt.rerun")).all()
    assert len(events) == MOST_REPORTS


def test_another_rank_than_the_first_reports_nothing(job: SuspectJob) -> None:
    job.send(1, {**RERUN, "found": "transient", "is_again": False, "ranks": [0]}, 1)
    assert job.verdicts() == []


def test_a_job_gets_so_many_reruns_elsewhere_and_no_more(job: SuspectJob) -> None:
    for number in range(3):
        job.report({**RERUN, "step": 12 + 10 * number, **REPEATED})
    assert job.order() is None
    job.report({**RERUN, "step": 90, **REPEATED})
    with job.units.read() as session:
        states = [
            row.rerun and row.rerun["state"] for row in session.scalars(select(VerdictRow).order_by(VerdictRow.id))
        ]
    assert states == ["wanted", "wanted", "wanted", None]
