"""Stragglers on the server: from reports of pace to one verdict a rank."""

from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import Engine, null, select, text, update

from control.attempts.attempts import lock_attempt
from control.attempts.ranks import gpus_by_rank
from control.attempts.stragglers import drop_windows, settle_stragglers
from control.core.unit_of_work import UnitOfWorkFactory
from control.telemetry.node_readings import pack_readings
from control.watch import stragglers, verdicts
from control.watch.straggler_readings import readings_of
from control.watch.stragglers import JUDGE, MOST_UNCLEAR
from muster.db.errors import ContentionError
from muster.db.models import Event, NodeLatest, StoredSignal, TrainingRank
from muster.domain.gpu.metrics import INDEX, NUM_METRICS
from muster.domain.job.verdicts import VerdictKind, VerdictReaction
from muster.domain.principals import system_principal
from tests.control.conftest import SetClock
from tests.control.watch.slow_job import STEPS, SlowJob, set_rules
from tests.fleet_factory import OPERATOR, enrol_host
from tests.played_host import PlayedHost
from watch.phases import Phase
from watch.stragglers.causes import CLOCK, THROTTLE
from watch.stragglers.judge import LONGEST_QUIET
from watch.verdicts import Verdict


def test_a_slow_rank_has_one_verdict_that_grows_and_ends(slow: SlowJob) -> None:
    slow.own_s[3] = 0.24
    slow.more[3] = {"cpu_wait_s": 0.03}
    (verdict,) = slow.train(5)
    host = slow.by_rank[1]
    assert (verdict.kind, verdict.cause, verdict.ranks) == (VerdictKind.STRAGGLER, "host", [3])
    assert (verdict.node_id, verdict.reaction) == (host.node_id, VerdictReaction.NOTIFY)
    assert verdict.gpu.startswith("GPU-")
    assert "computes 20% longer than the 3 ranks of its place" in verdict.sentence
    with slow.units.read() as session:
        (signal_id,) = session.scalars(select(StoredSignal.signal_id))
    assert signal_id == f"verdict/{verdict.id}/host/{verdict.gpu}", "reported evidence"
    (grown,) = slow.train(3)
    assert (grown.id, grown.last_step, grown.ended_at) == (verdict.id, 7 * STEPS, None)
    slow.own_s[3] = 0.2
    (quiet,) = slow.train(16)
    assert quiet.ended_at is None, "it lasted for eight windows, and may come again"
    (ended,) = slow.train(1)
    assert (ended.last_step, ended.ended_at is None) == (8 * STEPS, False)
    assert [each["verdict_id"] for each in slow.events("attempt.verdict_ended")] == [verdict.id]
    assert len(slow.events("attempt.verdict")) == 1
    slow.own_s[3] = 0.24
    (again,) = slow.train(5)
    assert (again.id, again.ended_at) == (verdict.id, None), "a rank that is slow now and then has one verdict"


@pytest.mark.parametrize("is_swapped", [True, False])
def test_a_rank_that_is_slow_now_and_then_has_a_verdict_that_does_not_end_each_time(
    units: UnitOfWorkFactory, clock: SetClock, *, is_swapped: bool
) -> None:
    slow = SlowJob(units, clock, on_straggler="swap" if is_swapped else "notify")
    PlayedHost(units, enrol_host(units, "gamma")).beat()
    for _ in range(3):
        slow.own_s[3], slow.more[3] = 0.24, {"cpu_wait_s": 0.04}
        slow.train(7)
        slow.own_s[3], slow.more[3] = 0.2, {}
        (verdict,) = slow.train(6)
        assert (verdict.ended_at, verdict.reaction) == (None, VerdictReaction.NOTIFY), "no swap of a rank that is fast"
    assert slow.events("attempt.verdict_ended") == []
    assert len(slow.events("attempt.verdict")) == 1
    (verdict,) = slow.train(LONGEST_QUIET - 5)
    assert verdict.ended_at is not None
    assert len(slow.events("attempt.verdict_ended")) == 1


def test_a_rank_that_computes_longer_for_an_unknown_reason_has_a_verdict_that_grows(slow: SlowJob) -> None:
    slow.train(5)
    slow.own_s[3] = 0.24
    (verdict,) = slow.train(20)
    assert (verdict.cause, verdict.ended_at) == ("compute", None)
    assert verdict.last_step == 24 * STEPS, "also after its windows before are forgotten"
    assert slow.events("attempt.warned") == []


@pytest.mark.parametrize("more", [{}, {"threads_s": 0.04}, {"gc_s": 0.04}])
def test_constant_additional_work_on_rank_0_is_a_warning_without_evidence_and_swap(
    units: UnitOfWorkFactory, clock: SetClock, more: dict[str, float]
) -> None:
    slow = SlowJob(units, clock, on_straggler="swap")
    PlayedHost(units, enrol_host(units, "gamma")).beat()
    slow.own_s[0] = 0.24
    slow.more[0] = more
    assert slow.train(8) == []
    slow.save()
    slow.rounds.once()
    assert slow.stop_reason() is None
    (warned,) = slow.events("attempt.warned")
    assert (warned["rank"], warned["code"]) == (0, "imbalance")
    assert "it counts as additional work of the program" in warned["reason"]
    with units.read() as session:
        assert session.scalars(select(StoredSignal.signal_id)).all() == []


def test_two_slow_ranks_of_one_window_have_a_verdict_each(slow: SlowJob) -> None:
    slow.train(5)
    slow.own_s |= {1: 0.3, 2: 0.26}
    assert sorted(each.ranks for each in slow.train(5)) == [[1], [2]]


def test_a_cause_that_is_found_later_replaces_the_unknown_one(slow: SlowJob) -> None:
    slow.train(5)
    slow.own_s[3] = 0.24
    slow.train(5)
    slow.more[3] = {"data_s": 0.05}
    newest, first = slow.train(5)
    assert (newest.cause, newest.ended_at) == ("data", None)
    assert (first.cause, first.ended_at is None) == ("compute", False)


def test_a_dismissed_verdict_is_not_made_again(slow: SlowJob) -> None:
    slow.train(5)
    slow.own_s[3] = 0.24
    (verdict,) = slow.train(5)
    with slow.units.begin(OPERATOR, verdicts.DISMISS) as unit:
        verdicts.dismiss(unit, verdict.id, reason="its work is larger")
    slow.train(4)
    assert [each.id for each in slow.verdicts()] == [verdict.id]


def test_stragglers_that_come_and_go_leave_room_for_a_verdict_on_a_hang(
    slow: SlowJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "MOST_OF_A_KIND", 1)
    slow.train(5)
    slow.own_s |= {1: 0.3, 2: 0.26}
    (straggler,) = slow.train(5)
    hang = Verdict(VerdictKind.HANG, "storage", (1,), "", "", Phase.STEP, straggler.step, "", None, (), "It hangs.")
    with slow.units.begin(system_principal("watch"), JUDGE, quiet=True) as unit:
        loaded = lock_attempt(unit, slow.attempt.id)
        assert verdicts.record_verdict(unit, loaded, hang, None, VerdictReaction.NOTIFY) is not None


def test_a_program_cannot_accuse_a_rank_of_another_host(slow: SlowJob) -> None:
    for _ in range(6):
        slow.step += STEPS
        slow.clock.advance(16)
        slow.send(0, *((rank, slow.pace(rank) | ({"own_s": 9.0} if rank == 3 else {})) for rank in range(4)))
        slow.rounds.once()
    assert slow.verdicts() == []
    with slow.units.read() as session:
        assert [session.get_one(TrainingRank, (slow.attempt.id, rank)).windows for rank in (2, 3)] == [None, None]


def test_more_work_is_a_warning_and_no_verdict(slow: SlowJob) -> None:
    slow.own_s[2] = 0.3
    slow.more = {rank: {"tokens_per_step": 1500.0 if rank == 2 else 1000.0} for rank in range(4)}
    assert slow.train(7) == []
    (warned,) = slow.events("attempt.warned")
    assert (warned["rank"], warned["code"]) == (2, "imbalance")
    assert "50% more work" in warned["reason"]


def test_an_attempt_without_a_slow_rank_is_only_read(slow: SlowJob) -> None:
    slow.train(1)
    with slow.units.read() as session:
        before = session.scalars(select(Event.id).order_by(Event.id.desc())).first()
    assert slow.train(6) == []
    assert slow.rounds.once() == 0  # no new window
    with slow.units.read() as session:
        assert session.scalars(select(Event.id).order_by(Event.id.desc())).first() == before


def test_the_end_of_an_attempt_ends_its_verdicts_and_drops_its_windows(slow: SlowJob) -> None:
    slow.own_s[3], slow.more[3] = 0.24, {"cpu_wait_s": 0.04}
    (verdict,) = slow.train(5)
    record = {"launcher": "torchrun", "launcher_exit_code": 0, "ranks": {}}
    for host in slow.by_rank:
        host.report(slow.attempt.id, slow.attempt.fence, "exited", "clean", record=record)
    slow.send(1, (3, slow.pace(3)))  # a late report
    (ended,) = slow.verdicts()
    assert (ended.id, ended.ended_at) == (verdict.id, slow.clock.now)
    assert [each["verdict_id"] for each in slow.events("attempt.verdict_ended")] == [verdict.id]
    with slow.units.read() as session:
        rows = session.scalars(select(TrainingRank)).all()
    assert [(row.windows, row.open_window) for row in rows] == [(None, None)] * 4


def test_verdicts_end_where_nothing_is_judged_any_more(slow: SlowJob, engine: Engine) -> None:
    slow.own_s[3], slow.more[3] = 0.24, {"cpu_wait_s": 0.04}
    (verdict,) = slow.train(5)
    set_rules(slow.units, is_on=False)
    assert slow.rounds.once() == 0
    assert [each.ended_at for each in slow.verdicts()] == [slow.clock.now]
    set_rules(slow.units, is_on=True)
    (again,) = slow.train(1)
    assert (again.id, again.ended_at) == (verdict.id, None)
    with engine.begin() as connection:  # as of a program whose ranks report steps that have nothing in common
        connection.execute(update(TrainingRank).values(windows=null()))
    for _ in range(MOST_UNCLEAR + 1):
        slow.clock.advance(16)
        with engine.begin() as connection:
            connection.execute(update(TrainingRank).values(windows_at=slow.clock.now))
        assert slow.verdicts()[0].ended_at is None
        slow.rounds.once()
    assert slow.verdicts()[0].ended_at == slow.clock.now


def test_the_windows_of_few_ranks_stay_until_steps_are_thinned(slow: SlowJob) -> None:
    slow.train(3)
    with slow.units.begin(system_principal("watch"), JUDGE, quiet=True) as unit:
        settle_stragglers(unit, lock_attempt(unit, slow.attempt.id).attempt, num_ranks=2)
    with slow.units.read() as session:
        assert all(row.windows is not None for row in session.scalars(select(TrainingRank)))
    with slow.units.begin(system_principal("watch"), JUDGE, quiet=True) as unit:
        drop_windows(unit, [slow.attempt.id])
    with slow.units.read() as session:
        assert {(row.windows, row.open_window) for row in session.scalars(select(TrainingRank))} == {(None, None)}


def test_verdicts_of_an_attempt_and_due_swaps_are_read_by_an_index(engine: Engine) -> None:
    of_attempt = "EXPLAIN SELECT count(*) FROM verdicts WHERE attempt_id = 'att'"
    swaps_due = (
        "EXPLAIN SELECT id FROM verdicts WHERE kind = 'straggler' AND reaction = 'swap' AND state = 'standing' "
        "AND ended_at IS NULL ORDER BY id LIMIT 20"
    )
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        plans = ["\n".join(connection.scalars(text(query))) for query in (of_attempt, swaps_due)]
    assert "ix_verdicts_attempt_id_id" in plans[0]
    assert "ix_verdicts_swaps" in plans[1]


def test_readings_of_the_last_minute_explain_a_slow_rank_unless_its_gpu_is_lost(slow: SlowJob) -> None:
    host = slow.by_rank[1].node_id
    with slow.units.begin(system_principal("watch"), JUDGE, quiet=True) as unit:
        loaded = lock_attempt(unit, slow.attempt.id)
        gpus = [gpu for rank, gpu in sorted(gpus_by_rank(unit, loaded).items()) if rank in {2, 3}]
        values = np.full((2, NUM_METRICS), np.nan)
        values[:, INDEX["sm_clock_mhz"]] = 1_200.0
        values[:, INDEX["clock_event_reasons"]] = 0x40
        content = pack_readings(gpus, values, [False, True])
        latest = NodeLatest(node_id=host, boot_id="boot-1", at=unit.now, received_at=unit.now, gpu_readings=content)
        unit.session.add(latest)
        unit.session.flush()
        assert readings_of(unit, loaded) == {2: {CLOCK: 1_200.0, THROTTLE: 1.0}}
        latest.received_at = unit.now - timedelta(seconds=61)
        unit.session.flush()
        assert readings_of(unit, loaded) == {}


def test_ranks_without_own_compute_hide_no_other_job(slow: SlowJob) -> None:
    slow.own_s = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.5}
    assert slow.train(6) == []
    assert slow.events("attempt.warned") == []


def test_a_turn_judges_the_others_where_one_attempt_meets_a_fault_of_the_database(
    slow: SlowJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.train(1)
    num_swaps: list[int] = []
    monkeypatch.setattr(stragglers, "swap_once", lambda *_: num_swaps.append(1))

    def refuse(*_: object) -> None:
        raise ContentionError

    with monkeypatch.context() as patch:
        patch.setattr(stragglers, "windows_of", refuse)
        patch.setattr(stragglers, "retrying", lambda work: work())
        with pytest.raises(ContentionError):
            slow.train(1)
    assert num_swaps == [1]
    assert slow.rounds.once() == 1, "the next turn tries it again"
    assert num_swaps == [1, 1]


def test_an_attempt_is_judged_once_in_the_time_of_a_window_whatever_number_of_ranks_ends_one(slow: SlowJob) -> None:
    num_judged = []
    slow.step += STEPS
    for node_rank in (0, 1, 0, 1):
        slow.step += STEPS // 2
        slow.clock.advance(4)
        slow.send(node_rank, *((rank, slow.pace(rank)) for rank in range(2 * node_rank, 2 * node_rank + 2)))
        num_judged.append(slow.rounds.once())
    assert sum(num_judged) == 1
