"""Cost per epoch in the figure store: of jobs that ended, by what the ledger and the rate cards say of them."""

from datetime import timedelta

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger.figure_costs import count_costs
from control.ledger.figure_hours import COUNT, count_once
from control.ledger.figure_rows import Tally, rows_of
from ledger.accounts import Account
from ledger.figures.sketch import ERROR
from muster.domain.ids import AttemptId
from tests.control.conftest import SetClock
from tests.control.ledger.figure_case import Lived
from tests.control.ledger.test_charges import MS, add, add_hours, card, set_cards
from tests.fleet_factory import OPERATOR, make_fleet
from tests.sent_statements import statements_of


@pytest.fixture
def lived(units: UnitOfWorkFactory, clock: SetClock) -> Lived:
    clock.now = clock.now.replace(minute=0, second=0, microsecond=0)
    return Lived(units, clock, make_fleet(units))


def ended_job(
    lived: Lived,
    epochs: float | None,
    gpu_hours: int,
    model: str = "H200",
    *,
    step: int | None = None,
    tokens_per_step: float | None = None,
) -> AttemptId:
    """Return the attempt of a job that ended in the hour, with that time in the ledger."""
    (attempt_id,) = lived.job("SUCCEEDED", (0, 50, "succeeded"), ended=50)
    lived.rank(attempt_id, step=step, epochs=epochs, tokens_per_step=tokens_per_step)
    job_id = lived._of(attempt_id)[0]  # the job that the case has just stored
    add(lived.units, lived.fleet, lived.begin, Account.PRODUCTIVE, gpu_hours * MS, job_id=job_id, model=model)
    return attempt_id


def counted(lived: Lived) -> Lived:
    lived.clock.now = lived.at(66)
    while count_once(lived.units):
        pass
    return lived


def test_epochs_cost_what_their_jobs_cost_and_unpriced_jobs_are_left_out(lived: Lived) -> None:
    set_cards(lived.units, card(lived.begin - timedelta(days=1), "3"))
    add_hours(lived.units, lived.begin)
    ended_job(lived, 2.0, 4)
    ended_job(lived, 8.0, 4)
    ended_job(lived, None, 4)
    ended_job(lived, 1e-9, 4)
    ended_job(lived, 1.0, 4, model="of no card")
    counted(lived)
    assert lived.nums("cost_per_epoch") == {"money": 2, "epochs": 2}
    assert lived.value("cost_per_epoch") == pytest.approx(2 * 12 / 10)
    sketch = lived.answer("cost_per_epoch").series[0].whole.sums["money"].sketch
    assert (sketch.percentile(0), sketch.percentile(1)) == pytest.approx((12 / 8, 12 / 2), rel=ERROR * 1.001)


def test_a_program_that_reports_absurd_numbers_takes_no_figure_from_others(lived: Lived) -> None:
    set_cards(lived.units, card(lived.begin - timedelta(days=1), "3"))
    add_hours(lived.units, lived.begin)
    ended_job(lived, 2.0, 4)
    ended_job(lived, 2.0, 4, step=(1 << 53) - 1, tokens_per_step=1e300)
    counted(lived)
    assert lived.nums("cost_per_epoch") == {"money": 2, "epochs": 2}


def test_the_dearest_epochs_have_a_cost(lived: Lived) -> None:
    set_cards(lived.units, card(lived.begin - timedelta(days=1), "999999999"))
    add_hours(lived.units, lived.begin)
    ended_job(lived, 0.001, 10**8)
    counted(lived)
    assert lived.value("cost_per_epoch") == pytest.approx(999_999_999 * 1e11)


def test_the_costs_of_more_jobs_take_as_many_statements(lived: Lived) -> None:
    set_cards(lived.units, card(lived.begin - timedelta(days=1), "3"))
    add_hours(lived.units, lived.begin)
    nums = []
    for num_jobs in (1, 2):
        ended_job(lived, 2.0, 4)
        with lived.units.begin(OPERATOR, COUNT, dry_run=True, quiet=True) as unit:
            tally = Tally()
            with statements_of(unit.session.get_bind()) as sent:
                count_costs(unit, lived.begin, tally)
        assert sum(row["num"] for row in rows_of(tally)) == 2 * num_jobs
        nums.append(len(sent))
    assert nums[0] == nums[1] > 0


def test_a_later_count_has_the_prices_that_were_set_since(lived: Lived) -> None:
    add_hours(lived.units, lived.begin)
    ended_job(lived, 2.0, 4)
    counted(lived)
    assert lived.nums("cost_per_epoch") == {}
    set_cards(lived.units, card(lived.begin - timedelta(days=1), "3"))
    lived.clock.now = lived.at(27 * 60)
    while count_once(lived.units):
        pass
    assert lived.value("cost_per_epoch") == 12 / 2
