"""What is SUSPECT by what shows under load alone gets a burn-in, and comes back by it, or by time where none runs."""

from sqlalchemy import select

from control.fleet import overrides
from control.fleet.gpu_locks import lock_gpus
from control.health.burn_ins import hosts
from muster.db.models import BurnIn
from muster.domain.states import BurnInOutcome, BurnInState, Standing
from tests.control.health.conftest import GPU, JUDGE, Court

WEEK_S = 8 * 86_400


def burn_ins(court: Court) -> list[BurnIn]:
    with court.units.read() as session:
        return list(session.scalars(select(BurnIn).where(BurnIn.gpu_uuid == GPU).order_by(BurnIn.ordered_at)))


def contained(court: Court, name: str = "contained") -> None:
    """No person's override answers for the GPU."""
    with court.units.begin(JUDGE, hosts.EXPIRE) as unit:
        lock_gpus(unit, [GPU])
        overrides.end(unit, GPU, reason="it is judged by itself")
    court.signal(name, GPU, kind="xid", code=94, source="kernel_log")
    court.judge()


def later(court: Court, seconds: float) -> None:
    court.clock.advance(seconds)
    court.beat()
    court.judge()


def test_a_contained_memory_error_orders_one_burn_in_and_no_time_brings_it_back(court: Court) -> None:
    court.beat()
    contained(court)
    assert court.standing() is Standing.SUSPECT
    (ordered,) = burn_ins(court)
    assert ordered.state is BurnInState.ORDERED
    assert ordered.reason.startswith("diagnosis: it shows under load alone: XID 94")
    later(court, WEEK_S)
    assert court.standing() is Standing.SUSPECT
    assert len(burn_ins(court)) == 1


def test_where_the_burn_in_cannot_run_time_counts_again(court: Court) -> None:
    court.beat()
    contained(court)
    (ordered,) = burn_ins(court)
    court.clock.advance(300)
    with court.units.begin(JUDGE, hosts.EXPIRE) as unit:
        lock_gpus(unit, [GPU])
        hosts.abandon(unit, unit.session.get_one(BurnIn, ordered.id), "no torch")
    later(court, 60)
    assert court.standing() is Standing.SUSPECT, "its score has to rise all the same"
    later(court, WEEK_S)
    assert court.standing() is Standing.HEALTHY
    assert [each.state for each in burn_ins(court)] == [BurnInState.ABANDONED]


def test_a_passed_burn_in_brings_it_back(court: Court) -> None:
    court.beat()
    contained(court)
    court.clock.advance(3600)
    court.beat()
    with court.units.begin(JUDGE, hosts.EXPIRE) as unit:
        (gpu,) = lock_gpus(unit, [GPU])
        row = unit.session.scalars(select(BurnIn).where(BurnIn.gpu_uuid == GPU)).one()
        row.state, row.tries, row.began_at = BurnInState.RUNNING, 1, unit.now
        unit.session.flush()
        row.state, row.figures, row.comparison_key, row.ended_at = BurnInState.MEASURED, {}, "key", unit.now
        unit.session.flush()
        row.state, row.outcome, row.judged_at = BurnInState.JUDGED, BurnInOutcome.PASSED, unit.now
        gpu.judge_at = unit.now
        unit.emit("gpu.burn_in_passed", "gpu", GPU, payload={})
    court.judge()
    assert court.standing() is Standing.HEALTHY
