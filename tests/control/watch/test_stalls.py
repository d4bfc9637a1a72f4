"""Verdicts on stalled attempts: from the hosts' reports to the job's reaction."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from control.attempts.attempts import lock_attempt
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWorkFactory
from control.incidents.read import IncidentFilter, list_incidents
from control.watch import read, stalls, verdicts
from muster.db.models import Event, Incident
from muster.domain.errors import NotFoundError
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.job.verdicts import VerdictKind, VerdictReaction, VerdictState
from muster.domain.policy.watch import WatchPolicy
from muster.domain.principals import Principal, Role
from muster.domain.states import AttemptState, Cause, JobState, StopReason
from muster.failpoints import FailpointError, arming
from muster.wire.host import HostAttempt
from tests.control.conftest import SetClock
from tests.control.watch.stalled_job import WATCH, StalledJob
from tests.fleet_factory import OPERATOR
from watch.forensics.documents import to_document
from watch.phases import Phase
from watch.progress.tracker import Overdue
from watch.reports import NCCL, Collective, Frame, HostReport, RankReport, StackSource
from watch.verdicts import Verdict
from workers.host.watch.host_watch import message_of
from workers.host.watch.part_watch import Stalled


def test_there_is_no_verdict_while_a_host_in_contact_may_do_work_that_the_others_wait_for(stalled: StalledJob) -> None:
    stalled.stall(1)
    assert stalled.judge() == 0
    stalled.clock.advance(WatchPolicy().unknown.longest_s - 1)
    stalled.by_rank()[0].beat()
    assert stalled.judge() == 0
    stalled.stall(0)
    assert stalled.judge() == 1
    assert [each.ranks for each in stalled.verdicts()] == [[1]]


def test_a_host_that_never_reports_delays_a_verdict_for_as_long_as_any_phase_may_last(stalled: StalledJob) -> None:
    stalled.stall(1)
    stalled.clock.advance(WatchPolicy().unknown.longest_s)
    assert stalled.judge() == 1


def test_a_host_whose_ranks_move_again_is_not_judged(stalled: StalledJob) -> None:
    stalled.stall(1)
    stalled.send(1, {"type": "stalled", "node": "beta", "is_over": True, "still_s": 31.0})
    stalled.stall(0)
    assert stalled.judge() == 0


def test_a_hang_ends_the_attempt_and_the_job_restarts_without_the_host_that_caused_it(stalled: StalledJob) -> None:
    stalled.stall_all()
    (verdict,) = stalled.verdicts()
    culprit = stalled.by_rank()[1].node_id
    assert (verdict.kind, verdict.cause, verdict.node_id) == (VerdictKind.HANG, "stopped_process", culprit)
    assert "liar" not in verdict.sentence, "the server knows the host's name"
    stopped = stalled.fleet.attempts(stalled.job_id)[-1].attempt
    assert (stopped.state, stopped.stop_reason) == (AttemptState.STOPPING, StopReason.HANG)
    stalled.end()
    ended = stalled.fleet.attempts(stalled.job_id)[-1].attempt
    assert (ended.cause, stalled.state()) == (Cause.HANG, JobState.RECOVERING)
    assert verdict.sentence in stalled.fleet.job(stalled.job_id).state_reason
    assert stalled.avoided() == {culprit}


def test_a_report_that_repeats_a_verdict_changes_nothing(units: UnitOfWorkFactory, clock: SetClock) -> None:
    stalled = StalledJob(units, clock, on_hang="notify")
    stalled.stall_all()
    stalled.stall_all()
    assert len(stalled.verdicts()) == 1
    with stalled.units.read() as session:
        assert len(session.scalars(select(Event).where(Event.kind == "attempt.verdict")).all()) == 1


def test_after_its_restarts_the_next_hang_holds_the_job(stalled: StalledJob) -> None:
    for restarts in range(3):
        stalled.stall_all(step=restarts)
        stalled.end()
        if restarts < 2:
            assert stalled.state() is JobState.RECOVERING
            stalled.run()
    assert stalled.state() is JobState.HELD
    assert "release it" in stalled.fleet.job(stalled.job_id).state_reason


def test_a_job_that_wants_notice_alone_runs_on_with_an_incident(units: UnitOfWorkFactory, clock: SetClock) -> None:
    stalled = StalledJob(units, clock, on_hang="notify")
    stalled.stall_all()
    assert stalled.verdicts()[0].reaction is VerdictReaction.NOTIFY
    assert stalled.state() is JobState.ACTIVE
    assert stalled.judge() == 0, "each report is judged once"
    with units.begin(OPERATOR, read.READ, quiet=True) as unit:
        (incident,) = [
            each for each in list_incidents(unit, IncidentFilter(), Part(9)) if each.subject_id == stalled.job_id
        ]
    assert (incident.kind, incident.closed_at) == ("job_stalled", None)
    stalled.fleet.cancel(stalled.job_id)
    stalled.end()
    stalled.judge()
    with units.begin(OPERATOR, read.READ, quiet=True) as unit:
        (incident,) = [
            each for each in list_incidents(unit, IncidentFilter(), Part(9)) if each.subject_id == stalled.job_id
        ]
    assert incident.closed_at is not None


def test_a_report_that_the_judge_cannot_take_stops_no_other(
    stalled: StalledJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise KeyError(5)

    monkeypatch.setattr(stalls, "judge_hang", fails)
    stalled.stall(0)
    stalled.stall(1)
    assert stalled.judge() == 1
    assert stalled.judge() == 0
    assert stalled.verdicts() == []


def test_a_host_out_of_contact_delays_no_verdict_and_keeps_its_reaction(stalled: StalledJob) -> None:
    stalled.stall(1)
    stalled.clock.advance(90)
    stalled.by_rank()[1].beat()
    stalled.fleet.reconcile()
    assert stalled.judge() == 0, "the attempt is LOST: its reaction waits until it runs again"
    stalled.by_rank()[0].beat(HostAttempt(attempt_id=stalled.attempt.id, fence=stalled.attempt.fence, phase="started"))
    stalled.fleet.reconcile()
    stalled.stall(0)
    assert stalled.judge() == 1
    assert stalled.verdicts()[0].reaction is VerdictReaction.RESTART


@pytest.mark.parametrize("edge", ["before_commit", "after_commit"])
def test_a_judge_that_dies_at_its_commit_leaves_one_verdict_and_one_stop(stalled: StalledJob, edge: str) -> None:
    stalled.stall(0)
    stalled.stall(1)
    with arming(f"{stalls.JUDGE}.{edge}=raise"), pytest.raises(FailpointError):
        stalled.judge()
    stalled.judge()
    assert len(stalled.verdicts()) == 1
    stalled.end()
    assert stalled.fleet.attempts(stalled.job_id)[-1].attempt.cause is Cause.HANG


def test_odd_characters_of_a_program_lose_no_report(stalled: StalledJob) -> None:
    frame = Frame("forward\0", "/srv/\udcff.py", 7)
    report = to_document(HostReport("beta", 1_000, (RankReport(1, Phase.STEP, 12, stack=(frame,)),)))
    stalled.send(1, {"type": "stalled", "node": "beta", "report": report})
    stalled.stall(0)
    assert stalled.judge() == 1


def test_a_stalled_jobs_incident_closes_once_every_reported_host_moves_again(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    stalled = StalledJob(units, clock, on_hang="notify")
    stalled.stall_all()
    over = {"type": "stalled", "node": "x", "is_over": True, "still_s": 40.0}
    for node_rank, is_closed in ((1, False), (0, True)):
        stalled.send(node_rank, over)
        stalled.judge()
        with units.begin(OPERATOR, read.READ, quiet=True) as unit:
            (incident,) = [
                each for each in list_incidents(unit, IncidentFilter(), Part(9)) if each.subject_id == stalled.job_id
            ]
        assert (incident.closed_at is not None) == is_closed


def test_a_program_cannot_report_for_its_host_nor_for_ranks_of_another(stalled: StalledJob) -> None:
    assert stalled.stall(0, line_rank=0) == 1
    assert stalled.stall(0, rank=1) == 1
    assert stalled.judge() == 0


def test_a_dismissed_verdict_blames_no_host(stalled: StalledJob) -> None:
    stalled.stall_all()
    stalled.end()
    (verdict,) = stalled.verdicts()
    with stalled.units.begin(OPERATOR, verdicts.DISMISS) as unit:
        said = verdicts.dismiss(unit, verdict.id, reason="a debugger was attached")
    assert (said.state, said.dismissed_by) == (VerdictState.DISMISSED, OPERATOR.name)
    assert stalled.avoided() == frozenset()


def test_a_verdict_is_of_its_tenant_alone(stalled: StalledJob) -> None:
    stalled.stall_all()
    other = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=type(stalled.fleet.tenant_id)("ten_other"))
    with stalled.units.begin(other, read.READ, quiet=True) as unit:
        assert list(read.list_verdicts(unit, read.VerdictFilter(), Part(10))) == []
        with pytest.raises(NotFoundError):
            read.get(unit, stalled.verdicts()[0].id)


@pytest.mark.parametrize("rule", ["restart", "notify"])
def test_a_hang_is_answered_whatever_number_of_other_verdicts_a_program_made(
    units: UnitOfWorkFactory, clock: SetClock, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    monkeypatch.setattr(verdicts, "MOST_OF_A_KIND", 1)
    stalled = StalledJob(units, clock, on_hang=rule)
    found = Verdict(VerdictKind.HANG, "unknown", (), "", "", Phase.STEP, 1, "", None, (), "An earlier one.")
    with units.begin(WATCH, stalls.JUDGE, quiet=True) as unit:
        loaded = lock_attempt(unit, stalled.attempt.id)
        for kind in (VerdictKind.CORRUPTION, VerdictKind.HANG, VerdictKind.HANG):
            verdicts.record_verdict(unit, loaded, replace(found, kind=kind), None, VerdictReaction.NONE)
            found = replace(found, step=found.step + 1)
    assert len(stalled.verdicts()) == 2, "one of each kind"
    stalled.stall_all(step=900)
    attempt = stalled.fleet.attempts(stalled.job_id)[-1].attempt
    if rule == "restart":
        assert (attempt.stop_reason, len(stalled.verdicts())) == (StopReason.HANG, 3)
    else:
        assert (attempt.stop_reason, len(stalled.verdicts())) == (None, 2)
        with units.read() as session:
            (incident,) = session.scalars(select(Incident))
        assert incident.kind == IncidentKind.JOB_STALLED


def test_dumps_of_nccl_of_all_hosts_are_joined_by_sequence(stalled: StalledJob) -> None:
    """Each host sends what its watch has read; a host whose dump was cut off states so, and blames no rank by it."""
    frame = Frame("encode", "/app/bpe.py", 77)
    entered = {0: [*range(300, 400)], 1: [*range(280, 371)]}
    for rank, numbers in entered.items():
        collectives = tuple(
            Collective(
                "0", number, "all_reduce", (8,), "Float", "completed" if number < 371 else "started", (0, 1), NCCL
            )
            for number in numbers
        )
        of_rank = RankReport(
            rank,
            Phase.STEP,
            12,
            stack=(frame,) if rank else (),
            stack_source=StackSource.PY_SPY,
            collectives=collectives,
        )
        report = HostReport("liar", 1_000, (of_rank,), notes=() if rank else ("dump of rank 0: it is odd",))
        message = message_of(Stalled(Overdue(Phase.STEP, 12, 30.0, 31.0, ()), report), "liar")
        assert stalled.send(rank, message) == 0
    assert stalled.judge() == 1
    (verdict,) = stalled.verdicts()
    assert (verdict.cause, verdict.node_id) == ("endless_python", stalled.by_rank()[1].node_id)
    assert "in encode (/app/bpe.py:77)" in verdict.sentence
    assert verdict.sentence.endswith("; rank 0 waits in all_reduce, number 371 of group 0.")
    assert verdict.evidence[-1].endswith(": dump of rank 0: it is odd")
    assert "liar" not in verdict.evidence[-1]
