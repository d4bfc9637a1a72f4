"""Verdicts become reported evidence about the GPU or host that they name, and their dismissal takes it back."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, select

from control.attempts.attempts import lock_attempt
from control.health import judge
from control.system.retention import sweep_once
from control.watch import learning, read, verdicts
from control.watch.blame import blame
from muster.db.models import AuditEntry, Event, EvidenceRow, Gpu, StoredSignal, VerdictRow
from muster.domain.evidence.findings import Trust
from muster.domain.ids import VerdictId
from muster.domain.job.verdicts import VerdictKind, VerdictReaction
from muster.domain.principals import system_principal
from muster.domain.states import EvidenceState, JobState, Standing
from tests.control.watch.stalled_job import WATCH, StalledJob, place_of
from tests.fleet_factory import OPERATOR
from watch.phases import Phase
from watch.reports import ProcessState
from watch.verdicts import Verdict

JUDGE = system_principal("judge")


def verdict_on(
    job: StalledJob, cause: str = "gpu", *, gpu: str | None = None, step: int = 1, kind: VerdictKind = VerdictKind.HANG
) -> VerdictId:
    """Store a verdict on rank 1, and let it blame twice, as a judge does that dies and tries again."""
    node_id, own = place_of(job)
    named = own if gpu is None else gpu
    found = Verdict(kind, cause, (1,), "beta", named, Phase.STEP, step, "all_reduce", None, (), "Rank 1 hangs.")
    with job.units.begin(WATCH, judge.SIGNALS, quiet=True) as unit:
        loaded = lock_attempt(unit, job.attempt.id)
        row = verdicts.record_verdict(unit, loaded, found, node_id, VerdictReaction.NONE)
        assert row is not None
        assert blame(unit, loaded, row) is blame(unit, loaded, row)
        return row.id


def evidence_in(job: StalledJob) -> list[EvidenceRow]:
    with job.units.read() as session:
        return list(session.scalars(select(EvidenceRow).order_by(EvidenceRow.id)))


def dismiss(job: StalledJob, verdict_id: VerdictId) -> None:
    with job.units.begin(OPERATOR, verdicts.DISMISS) as unit:
        verdicts.dismiss(unit, verdict_id, reason="a debugger was attached")


def test_a_verdict_that_names_a_gpu_is_one_reported_evidence_that_moves_nothing(stalled: StalledJob) -> None:
    verdict_id = verdict_on(stalled)
    judge.judge_once(stalled.units, JUDGE)
    (evidence,) = evidence_in(stalled)
    node_id, gpu = place_of(stalled)
    assert (evidence.gpu_uuid, evidence.node_id, evidence.fault_key) == (gpu, node_id, "job_hang:gpu")
    assert (evidence.trust, evidence.sources) == (Trust.REPORTED, ["job"])
    assert verdict_id in evidence.summary
    assert "Rank 1" not in evidence.summary, "other tenants may read the evidence of a shared GPU"
    with stalled.units.read() as session:
        assert session.get_one(Gpu, gpu).standing is Standing.UNPROVEN, "as it was enrolled"


def test_a_program_at_fault_and_a_gpu_of_another_attempt_are_not_blamed(stalled: StalledJob) -> None:
    verdict_on(stalled, "endless_python")
    verdict_on(stalled, "gpu", gpu="GPU-of-another", step=2)
    judge.judge_once(stalled.units, JUDGE)
    (evidence,) = evidence_in(stalled)
    assert (evidence.gpu_uuid, evidence.node_id) == (None, place_of(stalled)[0]), "the host, which is the attempt's own"


def test_the_judge_of_hangs_blames_what_its_verdict_names(stalled: StalledJob) -> None:
    stalled.stall_all()
    judge.judge_once(stalled.units, JUDGE)
    (evidence,) = evidence_in(stalled)
    assert (evidence.fault_key, evidence.node_id) == ("job_hang:stopped_process", place_of(stalled)[0])


@pytest.mark.parametrize("is_judged", [True, False])
def test_a_dismissed_verdict_takes_its_evidence_back_whether_it_is_judged_or_not(
    stalled: StalledJob, *, is_judged: bool
) -> None:
    first, second = verdict_on(stalled), verdict_on(stalled, kind=VerdictKind.CORRUPTION, step=2)
    if is_judged:
        judge.judge_once(stalled.units, JUDGE)
    dismiss(stalled, first)
    dismiss(stalled, first)
    judge.judge_once(stalled.units, JUDGE)
    states = {row.detector: row.state for row in evidence_in(stalled)}
    expected = {"job_corruption": EvidenceState.SUPPRESSED}
    if is_judged:
        expected["job_hang"] = EvidenceState.DISMISSED
    assert states == expected
    with stalled.units.read() as session:
        assert not session.scalars(select(StoredSignal).where(StoredSignal.judged_at.is_(None))).all()
        audited = select(AuditEntry).where(AuditEntry.action == "evidence.dismiss")
        assert len(session.scalars(audited).all()) == int(is_judged)
    assert second


def test_a_verdict_that_names_another_cause_takes_back_what_it_reported(stalled: StalledJob) -> None:
    verdict_id = verdict_on(stalled)
    judge.judge_once(stalled.units, JUDGE)
    with stalled.units.begin(WATCH, judge.SIGNALS, quiet=True) as unit:
        row = unit.session.get_one(VerdictRow, verdict_id)
        row.cause = "network"
        loaded = lock_attempt(unit, stalled.attempt.id)
        assert blame(unit, loaded, row)
        assert blame(unit, loaded, row)
    judge.judge_once(stalled.units, JUDGE)
    states = {row.fault_key: (row.state, row.gpu_uuid is None) for row in evidence_in(stalled)}
    assert states == {
        "job_hang:gpu": (EvidenceState.DISMISSED, False), "job_hang:network": (EvidenceState.ACTIVE, True),
    }  # fmt: skip


def test_the_finding_about_several_jobs_goes_with_the_verdict_that_completed_it(stalled: StalledJob) -> None:
    node_id, gpu = place_of(stalled)
    given = []
    for number in range(3):
        given.append(verdict_on(stalled, step=number))
        judge.judge_once(stalled.units, JUDGE)
        stalled.clock.advance(3_600)
        with stalled.units.begin(OPERATOR, judge.SIGNALS, quiet=True) as unit:  # as if each were another job's
            row = unit.session.scalars(select(EvidenceRow).order_by(EvidenceRow.id.desc())).first()
            assert row is not None
            row.values = {**row.values, "job_mark": float(number)}
    given.append(verdict_on(stalled, step=9))
    judge.judge_once(stalled.units, JUDGE)
    (proposed,) = [row for row in evidence_in(stalled) if row.detector == "job_fault_repeats"]
    assert (proposed.gpu_uuid, proposed.node_id, proposed.state) == (gpu, node_id, EvidenceState.SUPPRESSED)
    for verdict_id in given[:2]:
        dismiss(stalled, verdict_id)
    (proposed,) = [row for row in evidence_in(stalled) if row.detector == "job_fault_repeats"]
    assert proposed.state is EvidenceState.DISMISSED


def rules_of(job: StalledJob) -> learning.RuleCounts:
    with job.units.begin(job.fleet.tenant, read.READ, quiet=True) as unit:
        return learning.rules(unit, job_id=job.job_id)


def test_false_alarms_are_counted_and_after_two_the_rule_only_notifies_of_the_job(stalled: StalledJob) -> None:
    for step in (1, 2):
        dismiss(stalled, verdict_on(stalled, "storage", step=step))
    found = rules_of(stalled)
    (count,) = found.counts
    assert (count.kind, count.cause, count.rule) == (VerdictKind.HANG, "storage", "hang.step")
    assert (count.num_verdicts, count.num_dismissed) == (2, 2)
    (learnt,) = found.learnt
    assert (learnt.job_id, learnt.rule, learnt.cause) == (stalled.job_id, "hang.step", "storage")
    assert "raise `watch.known.step_s` from 30 s to 60 s" in learnt.proposal
    stalled.stall_all(step=99)
    verdict = stalled.verdicts()[0]
    assert (verdict.cause, verdict.reaction) == ("stopped_process", VerdictReaction.RESTART), "another cause"


def test_a_stopped_process_is_never_muted(stalled: StalledJob) -> None:
    for step in (1, 2):
        dismiss(stalled, verdict_on(stalled, "stopped_process", step=step))
    assert rules_of(stalled).learnt == []
    stalled.stall_all(step=3)
    assert stalled.verdicts()[0].reaction is VerdictReaction.RESTART


def test_a_rule_that_was_wrong_twice_ends_no_attempt_until_its_dismissals_expire(
    stalled: StalledJob,
) -> None:
    def judged(step: int) -> VerdictReaction:
        stalled.stall_all(step=step, process=ProcessState.RUNNING)
        verdict = stalled.verdicts()[0]
        assert (verdict.cause, verdict.step) == ("unknown", step)
        return verdict.reaction

    for step in (1, 2):
        assert judged(step) is VerdictReaction.RESTART
        stalled.end()
        dismiss(stalled, stalled.verdicts()[0].id)
        stalled.run()
    assert judged(3) is VerdictReaction.NOTIFY
    assert stalled.state() is JobState.ACTIVE
    learnt = []
    for days in (29, 2):
        stalled.clock.advance(days * 86_400)
        learnt.append(bool(rules_of(stalled).learnt))
    assert learnt == [True, False]


def test_an_operator_resets_the_rules_of_a_job_and_its_verdicts_stay_dismissed(stalled: StalledJob) -> None:
    for step in (1, 2):
        dismiss(stalled, verdict_on(stalled, "storage", step=step))
    assert rules_of(stalled).learnt
    for _ in range(2):
        with stalled.units.begin(OPERATOR, learning.RESET) as unit:
            found = learning.reset(unit, stalled.job_id, reason="the storage was repaired")
        assert (found.learnt, found.counts[0].num_dismissed) == ([], 2)
    with stalled.units.read() as session:
        audited = session.scalars(select(AuditEntry).where(AuditEntry.action == "verdict.reset_rules")).all()
        events = session.scalars(select(Event).where(Event.kind == "job.verdict_rules_reset")).all()
    assert [entry.reason for entry in audited] == ["the storage was repaired"]
    assert [each.payload["num_verdicts"] for each in events] == [2]
    dismiss(stalled, verdict_on(stalled, "storage", step=3))
    assert rules_of(stalled).learnt == [], "one since the reset"


@pytest.mark.parametrize("is_running", [True, False])
def test_verdicts_go_by_age_once_their_attempt_has_ended_and_leave_their_evidence(
    stalled: StalledJob, *, is_running: bool
) -> None:
    verdict_on(stalled)
    dismissed = verdict_on(stalled, "storage", step=2)
    judge.judge_once(stalled.units, JUDGE)
    if not is_running:
        stalled.stall_all(step=3)
        stalled.end()
    num_evidence = len(evidence_in(stalled))
    stalled.clock.advance(364 * 86_400)
    assert sweep_once(stalled.units)["verdicts"] == 0
    dismiss(stalled, dismissed)
    stalled.clock.advance(2 * 86_400)
    assert sweep_once(stalled.units)["verdicts"] == (0 if is_running else 2)
    stalled.clock.advance(30 * 86_400)
    assert sweep_once(stalled.units)["verdicts"] == (0 if is_running else 1), "it counted as a false alarm"
    assert len(evidence_in(stalled)) == num_evidence


def test_the_counts_are_of_the_window_and_read_no_verdict_before_it(stalled: StalledJob) -> None:
    verdict_on(stalled, "storage", step=1)
    stalled.clock.advance(31 * 86_400)
    verdict_on(stalled, "storage", step=2)
    found = rules_of(stalled)
    assert [each.num_verdicts for each in found.counts] == [1]
    assert found.since == stalled.clock.now - timedelta(days=30)


def test_a_count_of_very_many_verdicts_is_of_the_newest(stalled: StalledJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MOST_READ", 3)
    for step in range(5):
        stalled.clock.advance(60)
        verdict_on(stalled, "storage", step=step)
    found = rules_of(stalled)
    assert [each.num_verdicts for each in found.counts] == [3]
    assert found.since == stalled.clock.now - timedelta(minutes=2)


def test_all_counts_are_read_by_an_index(stalled: StalledJob) -> None:
    plans: list[str] = []

    def explain(*given: Any) -> None:
        cursor, statement, parameters = given[1:4]
        if statement.startswith("SELECT") and "FROM verdicts" in statement:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute("EXPLAIN " + statement, parameters)
            plans.append("\n".join(line for (line,) in cursor.fetchall()))

    event.listen(stalled.units.engine, "before_cursor_execute", explain)
    try:
        with stalled.units.begin(OPERATOR, read.READ, quiet=True) as unit:
            learning.rules(unit)
    finally:
        event.remove(stalled.units.engine, "before_cursor_execute", explain)
    assert len(plans) == 3
    assert all("ix_verdicts_created_at" in plan for plan in plans[:2]), plans
    assert "ix_verdicts_false_alarms" in plans[2], plans
