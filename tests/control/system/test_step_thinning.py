"""Steps of attempts that ended long ago: an even selection stays, and nothing of a younger attempt goes."""

from itertools import pairwise

import pytest
from sqlalchemy import func, select, text, update

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs.job_energy import energy_of
from control.jobs.jobs import READ
from control.jobs.read import attempts_of
from control.system import retention
from control.system.step_thinning import STEPS_KEPT
from muster.db.models import Attempt, TrainingStep
from muster.domain.ids import AttemptId, JobId
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, make_fleet

DAY_S = 86_400
MAKE = text(
    """
    INSERT INTO training_steps (attempt_id, step, job_id, tenant_id, loss, at, pace)
    SELECT :attempt_id, step, :job_id, :tenant_id, step, now(),
        CASE WHEN step % 7 = 0 THEN CAST('{"forward_s": 1}' AS jsonb) END
    FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS made (step)
    """
)


class Ended:
    """An attempt that trained some steps, and ended."""

    def __init__(self, units: UnitOfWorkFactory, first: int, last: int) -> None:
        self.units = units
        self.fleet: Fleet = make_fleet(units)
        self.fleet.beat()
        self.job_id: JobId = self.fleet.submit()
        self.fleet.cycle()
        self.attempt_id: AttemptId = self.fleet.attempts(self.job_id)[-1].attempt.id
        with units.begin(OPERATOR, READ, quiet=True) as unit:
            ids = {"attempt_id": self.attempt_id, "job_id": self.job_id, "tenant_id": self.fleet.tenant_id}
            unit.session.execute(MAKE, {**ids, "first": first, "last": last})
            unit.session.execute(update(Attempt).values(state="STOPPING"))
            unit.session.execute(update(Attempt).values(state="ENDED", cause="succeeded", ended_at=unit.now))

    def steps(self) -> list[int]:
        with self.units.read() as session:
            return list(session.scalars(select(TrainingStep.step).order_by(TrainingStep.step)))

    def num_paced(self) -> int:
        with self.units.read() as session:
            return session.scalar(select(func.count(TrainingStep.pace))) or 0


def test_a_long_curve_keeps_its_ends_and_an_even_selection_with_its_paces(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    ended = Ended(units, 1_001, 21_000)
    clock.advance(89 * DAY_S)
    assert retention.sweep(units)["training_steps"] == 0
    clock.advance(2 * DAY_S)
    assert retention.sweep(units, batch=500)["training_steps"] == 20_000 - len(ended.steps()) + 1
    kept = ended.steps()
    assert (kept[0], kept[-1]) == (1_001, 21_000)
    assert 0.9 * STEPS_KEPT < len(kept) <= STEPS_KEPT
    assert max(after - before for before, after in pairwise(kept)) <= 2 * 11
    assert ended.num_paced() >= len(kept) - 2, "of eleven steps at least one has a pace, and that one stays"
    assert retention.sweep(units)["training_steps"] == 0, "it is not thinned again"
    with units.begin(ended.fleet.tenant, READ, dry_run=True, quiet=True) as unit:
        (attempt,) = attempts_of(unit, ended.job_id)
        assert attempt.attempt.steps_removed == 20_000 - len(kept)
        (energy,) = energy_of(unit, ended.job_id)
    assert energy.num_steps == 20_000, "what was removed was trained"


@pytest.mark.parametrize("batch", [1, 7, 2_000])
def test_the_selection_is_the_same_in_batches_of_any_size(
    units: UnitOfWorkFactory, clock: SetClock, batch: int
) -> None:
    ended = Ended(units, 0, STEPS_KEPT + 40)
    clock.advance(91 * DAY_S)
    while retention.sweep_once(units, batch=batch)["training_steps"] >= batch:
        pass
    stride = (STEPS_KEPT + 40) // (STEPS_KEPT - 2) + 1
    kept = ended.steps()
    assert len(kept) <= STEPS_KEPT
    assert len({step // stride for step in kept}) == (STEPS_KEPT + 40) // stride + 1, "each bucket has a step"


def test_a_curve_that_is_short_enough_stays_whole(units: UnitOfWorkFactory, clock: SetClock) -> None:
    ended = Ended(units, 1, STEPS_KEPT)
    clock.advance(91 * DAY_S)
    assert retention.sweep_once(units)["training_steps"] == 1, "it was checked"
    assert len(ended.steps()) == STEPS_KEPT
    assert retention.sweep_once(units)["training_steps"] == 0


def test_an_attempt_that_runs_keeps_its_steps(units: UnitOfWorkFactory, clock: SetClock) -> None:
    fleet = make_fleet(units)
    fleet.beat()
    job_id = fleet.submit()
    fleet.cycle()
    with units.begin(OPERATOR, READ, quiet=True) as unit:
        ids = {"attempt_id": fleet.attempts(job_id)[-1].attempt.id, "job_id": job_id, "tenant_id": fleet.tenant_id}
        unit.session.execute(MAKE, {**ids, "first": 1, "last": STEPS_KEPT + 100})
    clock.advance(400 * DAY_S)
    assert retention.sweep_once(units)["training_steps"] == 0
