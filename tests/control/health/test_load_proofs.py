"""What is SUSPECT by what shows under load alone gets a burn-in, and comes back by it, or by time where none runs."""

import pytest
from msgspec import UNSET, UnsetType
from sqlalchemy import select

from control.fleet import overrides
from control.fleet.gpu_locks import lock_gpus
from control.health.burn_ins import hosts
from control.health.burn_ins.verdicts import judge_burn_ins_once
from control.health.gpu_details import GpuDetail, detail_of
from health.detectors.load.clock_events import HW_THERMAL
from muster.db.models import BurnIn, Gpu
from muster.domain.states import BurnInOutcome, BurnInState, Standing
from tests.control.burn_in_case import Host, figures, newest
from tests.control.health.conftest import GPU, JUDGE, Court, sample
from tests.fleet_factory import OPERATOR

HOUR_S = 3_600
WEEK_S = 8 * 86_400


def burn_ins(court: Court) -> list[BurnIn]:
    with court.units.read() as session:
        return list(session.scalars(select(BurnIn).where(BurnIn.gpu_uuid == GPU).order_by(BurnIn.ordered_at)))


def detail(court: Court) -> GpuDetail:
    with court.units.begin(OPERATOR, hosts.EXPIRE, quiet=True) as unit:
        return detail_of(unit, GPU)


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


@pytest.mark.parametrize(
    ("named", "covers", "becomes"),
    [
        (UNSET, ["driver", "other"], Standing.SUSPECT),
        (("clocks", "other"), ["clocks", "other"], Standing.HEALTHY),
    ],
    ids=["an agent of 0.1.0", "an agent that read clocks"],
)
def test_a_burn_in_answers_an_open_thermal_fault_only_if_it_read_clocks(
    court: Court, named: tuple[str, ...] | UnsetType, covers: list[str], becomes: Standing
) -> None:
    """The clocks are held down to the end, so that no reading closes the evidence."""
    court.beat()
    with court.units.begin(JUDGE, hosts.EXPIRE) as unit:
        lock_gpus(unit, [GPU])
        overrides.end(unit, GPU, reason="it is judged by itself")
    for _ in range(8):
        court.receive(sample(clock_event_reasons=HW_THERMAL))
        court.judge()
    assert court.standing() is Standing.SUSPECT
    court.judge()
    host = Host(court.units, court.node_id, (GPU,))
    court.clock.advance(HOUR_S)
    court.beat()
    host.burn_in(figures(covers=named))
    judge_burn_ins_once(court.units, JUDGE)
    court.judge()
    assert court.standing() is becomes
    assert newest(court.units, GPU).outcome is BurnInOutcome.PASSED
    assert (newest(court.units, GPU).figures or {})["covers"] == covers
    gpu = next(row for row in court.rows(Gpu) if row.uuid == GPU)
    if becomes is Standing.SUSPECT:
        assert gpu.judge_at is not None, "it is judged again"
        assert len(burn_ins(court)) == 1, "no second burn-in that would show no more"
        assert detail(court).proposed is None
