"""Figures over jobs: hand-computed values, faults apart, late reports, repetitions, and a process that is killed."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger import figure_hours, figures
from control.ledger.figure_hours import COUNT, count_hour, count_once
from control.ledger.figures import MOST_POINTS
from control.system.retention import sweep_once
from ledger.figures.hours import MANY_ATTEMPTS, times_for
from ledger.figures.sketch import ERROR
from muster.db.models import FigureFact, FigureHour, LedgerFact
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.failpoints import FailpointError, arming
from tests.control.conftest import SetClock
from tests.control.ledger.figure_case import Lived, member_of
from tests.control.ledger.test_charges import add_hours
from tests.fleet_factory import OPERATOR, enrol_host, make_fleet

DAY_S = 86_400


@pytest.fixture
def lived(units: UnitOfWorkFactory, clock: SetClock) -> Lived:
    return Lived(units, clock, make_fleet(units))


def counted(lived: Lived, *, minutes: float = 66) -> Lived:
    """Let time pass, and count what is due."""
    lived.clock.now = lived.at(minutes)
    while count_once(lived.units):
        pass
    return lived


def test_success_counts_faults_of_the_infrastructure_apart(lived: Lived) -> None:
    for _ in range(6):
        lived.job("SUCCEEDED", (0, 10, "succeeded"), ended=10)
    lived.job("FAILED", (0, 10, "gpu_fault"), (11, 20, "user_error"), ended=20)
    lived.job("FAILED", (0, 10, "gpu_oom"), ended=10)
    lived.job("FAILED", (0, 10, "node_lost"), ended=10)
    lived.job("FAILED", (0, 10, "walltime"), ended=10)
    lived.job("FAILED", ended=1)
    lived.job("CANCELLED", (0, 10, "cancelled"), ended=10)
    lived.job("ACTIVE", (0, None, None))
    counted(lived)
    expected = {"succeeded": 6, "own": 2, "infrastructure": 1, "limit": 1, "unstarted": 1, "cancelled": 1}
    assert lived.nums("job_success") == expected
    assert lived.value("job_success") == pytest.approx(6 / 11), "a cancelled job says nothing"
    assert lived.value("job_success_own") == pytest.approx(6 / 10)
    assert lived.value("job_loss_to_infrastructure") == pytest.approx(1 / 11)


def test_time_to_complete_keeps_reclaimed_jobs_apart(lived: Lived) -> None:
    lived.job("SUCCEEDED", (0, 10, "succeeded"), ended=10)
    lived.job("SUCCEEDED", (0, 20, "node_lost"), (21, 30, "succeeded"), ended=30)
    lived.job("SUCCEEDED", (0, 5, "reclaimed"), (45, 50, "succeeded"), ended=50)
    lived.job("FAILED", (0, 59, "user_error"), ended=59)
    counted(lived)
    (series,) = lived.answer("time_to_complete").series
    assert series.whole.value == pytest.approx((600 + 1_800 + 3_000) / 3)
    assert {part: (one.num, one.total) for part, one in series.whole.sums.items()} == {
        "undisturbed": (2, 2_400),
        "reclaimed": (1, 3_000),
    }
    p100 = series.whole.sums["undisturbed"].sketch.percentile(1)
    assert p100 == pytest.approx(1_800, rel=ERROR)


def test_attempts_are_counted_by_their_placement_and_by_their_end(lived: Lived) -> None:
    lived.job("ACTIVE", (1, 10, "reclaimed"), (11, 20, "gpu_fault"), (21, 30, "user_error"), (31, None, None))
    lived.job("SUCCEEDED", (5, 70, "succeeded"), ended=70)
    counted(lived, minutes=126)
    assert lived.nums("requeue_rate") == {
        "first": 2,
        "after_infrastructure": 1,
        "after_own": 1,
        "after_move": 1,
    }
    assert lived.value("requeue_rate") == pytest.approx(3 / 5)
    assert lived.nums("preemption") == {"reclaimed": 1, "other": 2}
    assert lived.nums("preemption", since=60, until=120) == {"other": 1}, "the long one ended in the next hour"


def test_a_resume_succeeds_by_its_first_step(lived: Lived) -> None:
    outcomes = ("user_error", "node_lost", "reclaimed", "checkpoint_corrupt", None, "gpu_oom")
    made = [lived.job("ACTIVE", (0, 1, "node_lost"), (2, None if cause is None else 9, cause))[1] for cause in outcomes]
    for attempt_id in made[:3] + made[4:]:
        lived.change("UPDATE attempts SET resumed_from = 'step-1/gen-1' WHERE id = :id", id=attempt_id)
    lived.steps(made[5], 3, 1.0)
    counted(lived)
    assert lived.nums("resume_success") == {"went_on": 1, "own": 2, "infrastructure": 1, "moved": 1, "undecided": 1}
    assert lived.value("resume_success") == pytest.approx(1 / 4)


def test_steps_have_percentiles_within_a_per_cent(lived: Lived) -> None:
    seconds = [0.1 * number for number in range(1, 101)]
    (one,), (other,) = lived.job("ACTIVE", (0, None, None)), lived.job("ACTIVE", (0, None, None))
    lived.steps(one, 5, *seconds[:50])
    lived.steps(other, 59, *seconds[50:])
    lived.steps(other, 61, 1_000.0, first=900)
    lived.steps(other, 20, 0.0, first=901)
    counted(lived)
    (series,) = lived.answer("step_time").series
    steps = series.whole.sums["steps"]
    assert steps.num == 101
    assert steps.total == pytest.approx(505.0)
    assert series.whole.value == pytest.approx(5.0)
    for share, exact in ((0.5, seconds[49]), (0.95, seconds[94]), (0.99, seconds[98]), (1, seconds[99]), (0, 0.0)):
        assert steps.sketch.percentile(share) == pytest.approx(exact, rel=ERROR * 1.001)


def test_a_figure_over_the_whole_time_is_the_sum_of_its_points(lived: Lived) -> None:
    lived.job("SUCCEEDED", (0, 10, "succeeded"), ended=10)
    lived.job("SUCCEEDED", (0, 70, "succeeded"), ended=70)
    counted(lived, minutes=126)
    for step in ("hour", "day"):
        (by_step,), (whole,) = (
            lived.answer("time_to_complete", by="class", step=step, until=120, is_whole=is_whole).series
            for is_whole in (False, True)
        )
        assert (whole.group, whole.whole) == (by_step.group, by_step.whole)
        assert len(whole.points) == 1


def test_paces_give_throughput_waiting_and_collectives(lived: Lived) -> None:
    (one,), (other,) = lived.job("ACTIVE", (0, None, None)), lived.job("ACTIVE", (0, None, None))
    lived.rank(one, world_size=4)
    work: dict[str, float | None] = {"forward_s": 0.4, "backward_s": 0.4, "tokens_per_s": 100.0}
    lived.pace(one, 1, step=1, num_steps=10, data_s=0.1, collective_s=0.1, samples_per_step=2.0, **work)
    lived.pace(one, 2, step=2, num_steps=10, data_s=0.0, collective_s=0.2, samples_per_step=2.0, **work)
    lived.pace(other, 3, num_steps=20, data_s=0.2, collective_s=None, forward_s=0.8)
    counted(lived)
    assert lived.value("tokens_per_s") == pytest.approx(400.0), "of four ranks"
    assert lived.value("samples_per_s") == pytest.approx(4 * 40 / 20)
    assert lived.value("data_wait") == pytest.approx((10 * 0.1 + 20 * 0.2) / 40)
    assert lived.value("collective_share") == pytest.approx((10 * 0.1 + 10 * 0.2) / 20)
    (series,) = lived.answer("collective_share").series
    assert series.whole.sums["unmeasured"].total == pytest.approx(20.0)


def test_saves_are_counted_by_what_became_of_them(lived: Lived) -> None:
    made = lived.job("ACTIVE", (0, 40, "node_lost"), (41, None, None))
    for status, is_verified in (("VERIFIED", True), ("GOOD", True), ("EXPIRED", True), ("TAINTED", True)):
        lived.save(made[0], 5, status, save_s=2.0, is_verified=is_verified)
    lived.save(made[0], 6, "COMMITTED", save_s=12.0)
    lived.save(made[0], 7, "REJECTED", is_verified=True)
    lived.save(made[1], 50, "WRITING", is_committed=False)
    lived.save(made[0], 61, "VERIFIED", save_s=99.0, is_verified=True)
    lived.event("checkpoint.failed", made[0], 8, "step-9/gen-1")
    lived.event("checkpoint.unfinished", made[0], 40, "step-10/gen-1")
    counted(lived)
    parts = {"verified": 4, "unverified": 1, "corrupt": 1, "failed": 1, "cut_off": 1, "writing": 1}
    assert lived.nums("save_success") == parts
    assert lived.value("save_success") == pytest.approx(4 / 8)
    assert lived.value("save_time") == pytest.approx((4 * 2 + 12) / 5)


def test_a_save_that_a_newer_attempt_overtook_is_left_out(lived: Lived) -> None:
    made = lived.job("ACTIVE", (0, 40, "node_lost"), (10, None, None))
    lived.change("UPDATE attempts SET training_began_at = :at WHERE id = :id", at=lived.at(11), id=made[1])
    lived.save(made[0], 5, "REJECTED")
    lived.save(made[0], 12, "REJECTED")
    counted(lived)
    assert lived.nums("save_success") == {"corrupt": 1}


def test_convergence_compares_medians(lived: Lived) -> None:
    falling = [10.0 - number for number in range(10)]
    for losses in (falling, list(reversed(falling)), falling[:5], [None, *falling, 99.0]):
        (attempt_id,) = lived.job("SUCCEEDED", (0, 10, "succeeded"), ended=10)
        lived.rank(attempt_id, losses=losses)
    lived.job("FAILED", (0, 10, "diverged"), ended=10)
    lived.job("SUCCEEDED", (0, 10, "succeeded"), ended=10)
    counted(lived)
    assert lived.nums("convergence") == {"fell": 1, "rose": 2, "diverged": 1, "unclear": 1}


def test_groups_are_by_tenant_tier_class_and_site(lived: Lived) -> None:
    other_host = enrol_host(lived.units, "beta")
    lived.change('UPDATE nodes SET labels = \'{"site": "ams"}\' WHERE id = :id', id=other_host)
    lived.job("SUCCEEDED", (0, 10, "succeeded"), ended=10, tier="spot", job_class="nightly", node_id=other_host)
    lived.job("FAILED", (0, 10, "user_error"), ended=10)
    counted(lived)

    def by(what: str) -> dict[str, float | None]:
        return {one.group: one.whole.value for one in lived.answer("job_success", by=what).series}

    assert by("tier") == {"spot": 1.0, "standard": 0.0}
    assert by("class") == {"nightly": 1.0, "": 0.0}
    assert by("site") == {"ams": 1.0, "": 0.0}
    assert by("tenant") == {lived.fleet.tenant_id: 0.5}
    assert by("none") == {"": 0.5}


def test_a_tenant_reads_its_own_jobs_alone(lived: Lived) -> None:
    lived.change("INSERT INTO tenants (id, name, created_at) VALUES ('ten_other', 'other', now())")
    lived.job("SUCCEEDED", (0, 10, "succeeded"), ended=10)
    lived.job("FAILED", (0, 10, "user_error"), ended=10, tenant_id="ten_other")  # type: ignore[arg-type]
    counted(lived)
    assert lived.value("job_success") == 0.5
    assert lived.value("job_success", reader=member_of(lived.fleet.tenant_id)) == 1.0
    own = lived.answer("job_success", by="tenant", reader=member_of(lived.fleet.tenant_id)).series
    assert [one.group for one in own] == [lived.fleet.tenant_id]


def test_no_answer_has_more_points_than_a_reader_can_use(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, tier in enumerate(("scavenger", "standard", "burst")):
        for _ in range(place + 1):
            lived.job("SUCCEEDED", (0, 10, "succeeded"), ended=10, tier=tier)
    counted(lived)
    monkeypatch.setattr(figures, "MOST_POINTS_IN_ALL", 4)
    found = lived.answer("job_success", by="tier", until=120)
    assert ([one.group for one in found.series], found.num_left_out) == (["burst", "standard"], 1)
    whole = lived.answer("job_success", by="tier", is_whole=True)
    assert (len(whole.series), whole.num_left_out) == (3, 0), "one point a group"
    assert sum(one.whole.sums["succeeded"].num for one in lived.answer("job_success", until=120).series) == 6


def test_a_late_report_is_counted_until_its_hour_is_closed(lived: Lived) -> None:
    (attempt_id,) = lived.job("ACTIVE", (0, None, None))
    lived.steps(attempt_id, 5, 1.0)
    counted(lived, minutes=66)
    assert lived.nums("step_time") == {"steps": 1}
    lived.steps(attempt_id, 6, 3.0, first=2)
    counted(lived, minutes=70)
    assert lived.nums("step_time") == {"steps": 1}, "it is not due again"
    counted(lived, minutes=121)
    assert lived.value("step_time") == pytest.approx(2.0)
    lived.steps(attempt_id, 7, 5.0, first=3)
    counted(lived, minutes=60 * 27)
    assert lived.value("step_time") == pytest.approx(3.0), "reports of up to 26 hours later"
    final_until = lived.answer("step_time").final_until
    assert final_until == lived.at(60)
    lived.steps(attempt_id, 8, 99.0, first=4)
    counted(lived, minutes=60 * 40)
    assert lived.value("step_time") == pytest.approx(3.0), "closed is closed"


def test_an_hour_that_is_open_ends_what_is_final_though_later_ones_are_closed(
    lived: Lived, units: UnitOfWorkFactory
) -> None:
    add_hours(units, lived.at(0), lived.at(120))
    add_hours(units, lived.at(60), closed=False)
    lived.clock.now = lived.at(200)
    assert lived.answer("waste").final_until == lived.at(60)


def test_the_hours_of_many_attempts_are_counted_seldom(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count reads all steps of the hour."""
    monkeypatch.setattr(figure_hours, "times_for", lambda num: times_for(num * MANY_ATTEMPTS))
    for _ in range(2):
        lived.job("ACTIVE", (0, None, None))
    counted(lived, minutes=64)
    assert lived.nums("requeue_rate") == {}
    counted(lived, minutes=66)
    assert lived.nums("requeue_rate") == {"first": 2}


def test_counting_again_changes_nothing(lived: Lived) -> None:
    (attempt_id,) = lived.job("ACTIVE", (0, None, None))
    lived.steps(attempt_id, 5, 1.0, 2.0)
    lived.pace(attempt_id, 5, num_steps=3, forward_s=1.0, tokens_per_s=7.0)
    lived.job("SUCCEEDED", (0, 10, "succeeded"), ended=10)
    counted(lived)
    before = lived.facts()
    assert before
    assert count_hour(lived.units, lived.begin)
    assert lived.facts() == before


def test_days_are_summed_once_their_hours_are_closed(lived: Lived) -> None:
    (attempt_id,) = lived.job("ACTIVE", (0, None, None))
    for hour in range(20):
        lived.steps(attempt_id, 60 * hour + 1, hour + 1.0, first=hour)
    counted(lived, minutes=60 * 20)
    by_hours = lived.answer("step_time", step="day", until=60 * 20).series[0]
    counted(lived, minutes=60 * (24 + 23))
    assert {row[1] for row in lived.facts()} == {3_600, 86_400}
    by_day = lived.answer("step_time", step="day", until=60 * 20).series[0]
    assert by_day == by_hours
    assert list(by_day.points) == [lived.begin.replace(hour=0)]
    assert by_day.whole.value == pytest.approx(10.5)
    assert lived.answer("step_time", until=60 * 20).series[0].whole == by_day.whole, "hours stay"


def test_hours_before_the_feature_are_counted_the_newest_first(lived: Lived) -> None:
    (attempt_id,) = lived.job("ACTIVE", (0, None, None))
    for hour in range(72):
        lived.steps(attempt_id, 60 * hour + 1, 1.0, first=hour)
    lived.clock.now = lived.at(60 * 72)
    assert count_once(lived.units, batch=1) == 1
    assert {row[0] for row in lived.facts()} == {lived.at(60 * 71)}
    counted(lived, minutes=60 * 72)
    assert lived.nums("step_time", until=60 * 72) == {"steps": 72}
    with lived.units.read() as session:
        closed = select(func.count()).where(FigureHour.closed_at.is_not(None))
        assert session.scalar(closed) == 72 - 26


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_an_interrupted_count_leaves_whole_facts(lived: Lived, point: str) -> None:
    (attempt_id,) = lived.job("ACTIVE", (0, None, None))
    lived.steps(attempt_id, 5, 1.0)
    counted(lived)
    before = lived.facts()
    lived.steps(attempt_id, 6, 3.0, first=2)
    with arming(f"{COUNT}.{point}=raise"), pytest.raises(FailpointError):
        count_hour(lived.units, lived.begin)
    assert (lived.facts() == before) == (point == "before_commit")
    assert count_hour(lived.units, lived.begin)
    assert lived.value("step_time") == pytest.approx(2.0)


COUNTER = """
import sys
from datetime import datetime
from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger import figure_hours, figures
from control.ledger.figure_hours import count_hour
from muster import failpoints
from muster.db.engine import make_engine
failpoints.require_known()
count_hour(UnitOfWorkFactory(make_engine(sys.argv[1])), datetime.fromisoformat(sys.argv[2]))
"""


def test_a_process_killed_as_it_counts_leaves_the_facts_of_before(lived: Lived, database_url: str) -> None:
    (attempt_id,) = lived.job("ACTIVE", (0, None, None))
    lived.steps(attempt_id, 5, 1.0)
    counted(lived)
    before = lived.facts()
    lived.steps(attempt_id, 6, 3.0, first=2)
    child = subprocess.run(
        [sys.executable, "-c", COUNTER, database_url, lived.begin.isoformat()],
        env={
            **os.environ,
            "MUSTER_FAILPOINTS": f"{COUNT}.before_commit=kill",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        check=False,
        timeout=110,
    )
    assert child.returncode == -signal.SIGKILL
    assert lived.facts() == before
    assert count_hour(lived.units, lived.begin), "no lock is left"
    assert lived.nums("step_time") == {"steps": 2}


def test_nothing_counted_is_no_value(lived: Lived) -> None:
    counted(lived)
    assert lived.answer("step_time").series == []
    with lived.units.read() as session:
        assert session.scalar(select(func.count()).select_from(FigureFact)) == 0


def test_bad_questions_are_refused(lived: Lived) -> None:
    with pytest.raises(NotFoundError):
        lived.answer("goodput_of_dreams")
    with pytest.raises(ValidationFailedError, match="before"):
        lived.answer("step_time", since=60, until=60)
    with pytest.raises(ValidationFailedError, match=f"at most {MOST_POINTS} hours"):
        lived.answer("step_time", until=60 * (MOST_POINTS + 1))
    later = timedelta(days=MOST_POINTS).total_seconds() / 60
    assert lived.answer("step_time", step="day", until=later - DAY_S / 60).series == []


def test_waste_is_of_the_ledger_with_faults_apart(lived: Lived) -> None:
    accounts = (
        ("productive", "", 60),
        ("starting", "", 6),
        ("idle", "", 12),
        ("lost", "gpu_fault", 9),
        ("replayed", "node_lost", 3),
        ("lost", "diverged", 15),
        ("reclaim_lost", "reclaimed", 15),
        ("free", "", 600),
    )
    with lived.units.begin(OPERATOR, figures.READ, quiet=True) as unit:
        unit.session.add_all(
            LedgerFact(
                begins_at=lived.begin,
                span_s=3_600,
                account=account,
                cause=cause,
                tenant_id=lived.fleet.tenant_id if account != "free" else "",
                tier="spot",
                job_class="",
                model="H100",
                cohort_key="",
                rack="",
                site="",
                num_ms=minutes * 60_000,
            )
            for account, cause, minutes in accounts
        )
    assert lived.value("waste") == pytest.approx(0.5)
    (series,) = lived.answer("waste", by="tier", reader=member_of(lived.fleet.tenant_id)).series
    assert {part: round(one.total * 60) for part, one in series.whole.sums.items()} == {
        "productive": 60,
        "overhead": 6,
        "idle": 12,
        "lost_infrastructure": 12,
        "lost_own": 15,
        "reclaim_lost": 15,
    }
    assert series.group == "spot"
    assert lived.value("waste", since=60, until=120) is None


def test_hours_are_deleted_once_their_day_is_summed(lived: Lived) -> None:
    (attempt_id,) = lived.job("ACTIVE", (0, None, None))
    lived.steps(attempt_id, 5, 1.0)
    counted(lived)
    lived.clock.now = lived.at(60 * 24 * 401)
    assert sweep_once(lived.units)["figures"] == 0, "the day is not summed yet"
    counted(lived, minutes=60 * 24 * 2)
    num_hours = sum(row[1] == 3_600 for row in lived.facts())
    lived.clock.now = lived.at(60 * 24 * 401)
    assert sweep_once(lived.units)["figures"] == num_hours > 0
    assert {row[1] for row in lived.facts()} == {86_400}
    assert lived.nums("step_time", step="day") == {"steps": 1}


@pytest.mark.parametrize("absurd", [1e300, 5e-324])
def test_a_program_that_reports_absurd_numbers_does_not_stop_the_count(lived: Lived, absurd: float) -> None:
    """Such numbers are valid reports; their products are none that PostgreSQL has, and would fail the whole hour."""
    (wrong,) = lived.job("ACTIVE", (0, None, None))
    (right,) = lived.job("ACTIVE", (0, None, None))
    lived.rank(wrong, world_size=2**31 - 1)
    lived.steps(wrong, 10, absurd, absurd)
    names = ("data_s", "forward_s", "backward_s", "collective_s", "optimizer_s", "other_s")
    rates: dict[str, Any] = {"num_steps": 2**53 - 1, "tokens_per_s": absurd, "samples_per_step": absurd}
    lived.pace(wrong, 10, **{**rates, **dict.fromkeys(names, absurd)})
    lived.pace(wrong, 11, step=1_001, data_s=absurd, forward_s=1, collective_s=absurd, **rates)
    lived.save(wrong, 10, "VERIFIED", save_s=absurd, is_verified=True)
    lived.steps(right, 10, 2.0)
    lived.pace(right, 10, data_s=1, forward_s=3, tokens_per_s=100)
    counted(lived)
    assert lived.nums("step_time")["steps"] >= 1
    assert lived.nums("data_wait")["waiting"] >= 1, "what others report is counted"
