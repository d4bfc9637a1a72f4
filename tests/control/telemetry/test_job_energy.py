"""A job's energy is what its GPUs' counters say of its time; what no counter says is null, never zero."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from api.job_views import attempt_energy_view, attempt_view
from control.core.unit_of_work import UnitOfWork
from control.jobs import energy_records, job_energy, jobs
from control.jobs.energy_records import SETTLED_AFTER, keep_energy_once
from control.jobs.job_energy import TOO_MUCH, UNREAD, AttemptEnergy, ended_energy, energy_of
from control.telemetry.compaction import compact_once
from control.telemetry.latest import READ
from muster.db.models import Attempt, TrainingStep
from muster.domain.errors import NotFoundError, UnavailableError
from muster.domain.ids import AttemptId, JobId, TenantId
from muster.domain.job.energy import energy_in_words
from muster.domain.principals import Principal, Role
from tests.control.telemetry.conftest import Stored
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.telemetry_reports import reading, report

RUN_S = 60


class Case:
    """A job that has run for a minute on two GPUs, of which each sample has a counter or none."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.fleet: Fleet = make_fleet(stored.units, stored.node_id)
        self.fleet.beat()
        self.job_id: JobId = self.fleet.submit(shape={"gpus_per_node": 2})
        self.fleet.cycle()
        self.began_ms = stored.now_ms
        with stored.units.begin(OPERATOR, READ, quiet=True) as unit:
            unit.session.execute(update(Attempt).values(running_at=unit.now))

    def report(self, *counters: tuple[float | None, float | None], every_s: int = 10) -> None:
        """Of both GPUs, the first one sample before the job ran."""
        for number, (first, second) in enumerate(counters):
            at_ms = self.began_ms + (number - 1) * every_s * 1000
            gpus = (reading("GPU-alpha-0", energy_j=first), reading("GPU-alpha-1", energy_j=second))
            self.stored.take(report(16 * (number + 1), at_ms, *gpus, is_history=True))
        self.stored.clock.advance(RUN_S)

    def energy(self) -> AttemptEnergy:
        with self.stored.units.begin(self.fleet.tenant, jobs.READ, dry_run=True, quiet=True) as unit:
            (found,) = energy_of(unit, self.job_id)
        return found


@pytest.fixture
def case(stored: Stored) -> Case:
    return Case(stored)


def test_it_is_the_sum_of_what_each_gpu_took_while_the_job_ran_before_and_after_compaction(case: Case) -> None:
    case.report(*((700.0 * number, 300.0 * number) for number in range(8)))
    found = case.energy()
    assert (found.num_gpus, found.num_metered) == (2, 2)
    assert found.energy_j == pytest.approx(6 * 1000.0)
    assert (found.gpu_seconds, found.assigned_gpu_seconds, found.why) == (120.0, 120.0, "")
    case.stored.clock.advance(timedelta(days=1).total_seconds())
    while compact_once(case.stored.units):
        pass
    again = case.energy()
    assert again.energy_j == pytest.approx(6 * 1000.0)
    assert again.assigned_gpu_seconds > again.gpu_seconds, "behind the last reading nothing is known"


def test_a_gpu_without_a_counter_is_stated_and_all_without_are_null(case: Case) -> None:
    case.report(*((700.0 * number, None) for number in range(8)))
    found = case.energy()
    assert found.num_metered == 1
    assert found.energy_j == pytest.approx(4200.0)
    assert found.why == "an energy counter is unsupported on 1 of 2 GPUs"
    assert found.tokens_per_j is None


def test_no_counter_at_all_is_null_and_never_zero(case: Case) -> None:
    case.report(*((None, None) for _ in range(8)))
    found = case.energy()
    assert (found.energy_j, found.num_metered, found.num_unsupported) == (None, 0, 2)
    assert energy_in_words(attempt_energy_view(found)) == "energy: unsupported by its GPUs"


def test_a_gpu_that_none_read_is_not_called_unsupported(case: Case) -> None:
    case.stored.clock.advance(RUN_S)
    found = case.energy()
    assert (found.num_unsupported, found.why) == (0, "2 of 2 GPUs have no readings of an energy counter in that time")


def test_it_is_kept_once_the_attempt_has_ended_and_what_is_shown_then_reads_no_history(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.report(*((700.0 * number, 300.0 * number) for number in range(8)))
    assert keep_energy_once(case.stored.units) == 0, "it runs"
    with case.stored.units.begin(OPERATOR, READ, quiet=True) as unit:
        ended = {"state": "ENDED", "cause": "succeeded", "ended_at": unit.now, "claimed_at": Attempt.running_at}
        unit.session.execute(update(Attempt).values(state="STOPPING"))
        unit.session.execute(update(Attempt).values(**ended))
        for step in range(1, 61):
            at = {"attempt_id": select(Attempt.id).scalar_subquery(), "job_id": case.job_id, "at": unit.now}
            row = {**at, "tenant_id": case.fleet.tenant_id, "step": step}
            unit.session.execute(insert(TrainingStep).values(row))
    assert keep_energy_once(case.stored.units) == 0, "its last readings are on their way"
    case.stored.clock.advance(SETTLED_AFTER.total_seconds() + 1)
    monkeypatch.setattr(job_energy, "_SLICE", timedelta(seconds=7))
    assert keep_energy_once(case.stored.units) == 1
    assert keep_energy_once(case.stored.units) == 0

    def unread(*_: object) -> None:
        raise AssertionError("history was read")

    monkeypatch.setattr(job_energy, "samples_of_all", unread)
    found = case.energy()
    assert found.energy_j == pytest.approx(6 * 1000.0), "the same in slices"
    assert (found.num_metered, found.num_steps) == (2, 60)
    assert found.gpu_seconds == pytest.approx(120.0)
    assert found.j_per_step == pytest.approx(100.0)
    (view,) = case.fleet.attempts(case.job_id)
    assert view.attempt.energy is not None
    words = energy_in_words(attempt_energy_view(AttemptEnergy(**view.attempt.energy)))
    assert words == "energy: 0.001667 kWh, 100 J a step, of simulated GPUs"


def test_a_counter_that_began_again_is_stated(case: Case) -> None:
    case.report(*((700.0 * number if number < 4 else 700.0 * (number - 4), 0.0) for number in range(8)))
    assert case.energy().why == "a counter was reset meanwhile"


def test_more_history_than_one_request_reads_is_left_and_stated(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.report(*((700.0 * number, 300.0 * number) for number in range(8)))
    monkeypatch.setattr(job_energy, "MOST_GPU_HOURS", 0.01)
    found = case.energy()
    assert (found.energy_j, found.why) == (None, TOO_MUCH)


def test_another_tenants_job_is_not_there(case: Case) -> None:
    stranger = Principal(name="stranger", role=Role.TENANT_MEMBER, tenant_id=TenantId("ten_" + "0" * 26))
    with (
        case.stored.units.begin(stranger, jobs.READ, dry_run=True, quiet=True) as unit,
        pytest.raises(NotFoundError),
    ):
        energy_of(unit, case.job_id)


def test_one_that_cannot_be_read_is_kept_as_such_and_stops_no_other(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = _two_that_have_ended(stored)
    _break(monkeypatch, newer, ValueError("a damaged segment"))
    assert keep_energy_once(stored.units) == 2
    kept = _kept(stored)
    assert (kept[newer]["why"], kept[newer]["energy_j"], kept[newer]["num_gpus"]) == (UNREAD, None, 1)
    assert kept[older]["why"] != UNREAD
    assert keep_energy_once(stored.units) == 0


def test_the_newest_is_metered_first_and_a_database_that_does_not_answer_is_queried_again_but_not_for_ever(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = _two_that_have_ended(stored)
    assert keep_energy_once(stored.units, batch=1) == 1
    assert _kept(stored).keys() == {newer}
    _break(monkeypatch, older, UnavailableError())
    assert keep_energy_once(stored.units) == 0
    assert _kept(stored).keys() == {newer}
    stored.clock.advance(timedelta(hours=7).total_seconds())
    assert keep_energy_once(stored.units) == 1
    assert _kept(stored)[older]["why"] == UNREAD


def test_what_a_later_release_kept_next_to_is_passed_over(case: Case) -> None:
    found = asdict(case.energy())
    with case.stored.units.begin(OPERATOR, READ, quiet=True) as unit:
        unit.session.execute(update(Attempt).values(energy={**found, "grams_of_carbon": 7}))
    assert asdict(case.energy()) == found
    (view,) = case.fleet.attempts(case.job_id)
    assert attempt_view(view)["energy"] == attempt_energy_view(AttemptEnergy(**found))


def _two_that_have_ended(stored: Stored) -> tuple[AttemptId, AttemptId]:
    """The older and the newer one, long enough ago."""
    fleet = make_fleet(stored.units, stored.node_id)
    fleet.beat()
    job_ids = [fleet.submit(shape={"gpus_per_node": 1}) for _ in range(2)]
    fleet.cycle()
    older, newer = (fleet.attempts(job_id)[0].attempt.id for job_id in job_ids)
    with stored.units.begin(OPERATOR, READ, quiet=True) as unit:
        unit.session.execute(update(Attempt).values(state="STOPPING", running_at=unit.now, claimed_at=unit.now))
        for attempt_id, seconds in ((older, 30), (newer, 60)):
            ended = {"state": "ENDED", "cause": "succeeded", "ended_at": unit.now + timedelta(seconds=seconds)}
            unit.session.execute(update(Attempt).where(Attempt.id == attempt_id).values(**ended))
    stored.clock.advance(60 + SETTLED_AFTER.total_seconds() + 1)
    return older, newer


def _break(monkeypatch: pytest.MonkeyPatch, attempt_id: AttemptId, fault: Exception) -> None:
    def broken(unit: UnitOfWork, attempt: Attempt) -> AttemptEnergy:
        if attempt.id == attempt_id:
            raise fault
        return ended_energy(unit, attempt)

    monkeypatch.setattr(energy_records, "ended_energy", broken)


def _kept(stored: Stored) -> dict[AttemptId, dict[str, Any]]:
    with stored.units.read() as session:
        return {row.id: row.energy for row in session.scalars(select(Attempt)) if row.energy is not None}


def test_an_energy_that_the_release_before_stored_is_read() -> None:
    energy = AttemptEnergy(AttemptId("att_1"), 1, 2, 2, 5.0, 60.0, 61.0, is_simulated=False, why="")
    stored = {**asdict(energy), "from_a_later_release": 1}
    stored["held_gpu_seconds"] = stored.pop("assigned_gpu_seconds")
    assert AttemptEnergy.of_kept(stored) == energy
