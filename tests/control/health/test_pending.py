"""The query before each pass. It finds nothing on an idle fleet, and all the work that a pass would find."""

from datetime import timedelta

from sqlalchemy import update

from control.health.pending import has_burn_ins, judges_work
from muster.db.models import Gpu
from muster.domain.states import BurnInState
from tests.control import burn_in_case as case
from tests.control.conftest import SetClock
from tests.control.health.conftest import GPU, Court


def make_idle(court: Court) -> None:
    """No GPU is due."""
    with court.units.engine.begin() as connection:
        connection.execute(update(Gpu).values(judge_at=None))


def test_an_idle_fleet_has_no_work(court: Court) -> None:
    make_idle(court)
    assert judges_work(court.units) == (False, False)
    assert not has_burn_ins(court.units)


def test_a_signal_is_work_until_it_is_judged(court: Court) -> None:
    make_idle(court)
    court.signal("xid")
    assert judges_work(court.units) == (True, False)
    court.judge()
    make_idle(court)
    assert judges_work(court.units) == (False, False)


def test_a_gpu_is_work_from_the_time_at_which_it_is_due(court: Court, clock: SetClock) -> None:
    make_idle(court)
    with court.units.engine.begin() as connection:
        connection.execute(update(Gpu).where(Gpu.uuid == GPU).values(judge_at=clock.now + timedelta(seconds=5)))
    assert not judges_work(court.units).to_judge
    clock.advance(5)
    assert judges_work(court.units).to_judge


def test_an_attempt_is_work_until_it_ends(court: Court) -> None:
    make_idle(court)
    court.fleet.beat()
    job_id = court.fleet.submit()
    court.fleet.cycle()
    assert len(court.fleet.attempts(job_id)) == 1
    assert judges_work(court.units).to_evacuate
    court.fleet.cancel(job_id)
    assert not judges_work(court.units).to_evacuate


def test_a_burn_in_is_work_at_each_step_of_its_life(court: Court) -> None:
    host = case.enrol(court.units, "new", num_gpus=1)
    host.beat()
    assert has_burn_ins(court.units), "a GPU is UNPROVEN"
    case.order_intake(court.units)
    with court.units.engine.begin() as connection:
        connection.execute(update(Gpu).where(Gpu.uuid == host.gpus[0]).values(standing="PROBATION"))
    assert has_burn_ins(court.units), "it is ordered"
    (order,) = host.ask().orders
    assert has_burn_ins(court.units), "it runs"
    assert host.report(order, case.figures())
    assert case.newest(court.units, host.gpus[0]).state is BurnInState.MEASURED
    assert has_burn_ins(court.units)
    case.judge(court.units)
    judged = case.newest(court.units, host.gpus[0])
    assert judged.state is BurnInState.JUDGED
    assert judged.open_bands
    assert has_burn_ins(court.units), "its bands wait for peers"
