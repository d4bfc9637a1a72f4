"""Which tenant and image had the GPU when a program's XID came, and what the judge makes of them."""

from datetime import timedelta

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import overrides
from control.fleet.gpu_locks import lock_gpus
from control.health.burn_ins import hosts
from control.health.judge import judge_once
from control.health.programs import newest_diagnosis_ms
from control.policy.policies import ACTIVATE
from health.detectors.gpu.xid import IMAGE_MARK, TENANT_MARK, mark_of
from health.detectors.repeats import after_diagnosis
from muster.db.models import BurnIn, EvidenceRow, StoredSignal
from muster.domain.ids import GpuUuid
from muster.domain.states import BurnInOutcome, BurnInState, Standing
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.control.health.conftest import GPU, JUDGE, Court
from tests.fleet_factory import Fleet, make_fleet
from tests.stored_signals import add_signal


def marks_of(units: UnitOfWorkFactory, signal_id: str) -> dict[str, float]:
    with units.read() as session:
        row = session.query(StoredSignal).filter_by(signal_id=signal_id).one()
        return {name: value for name, value in row.values.items() if name in {TENANT_MARK, IMAGE_MARK}}


def running(fleet: Fleet, **spec: object) -> tuple[GpuUuid, ...]:
    job_id = fleet.submit(**spec)
    fleet.beat()
    fleet.reconcile()
    fleet.cycle()
    return fleet.attempts(job_id)[-1].hosts[0].gpus


def test_an_xid_is_marked_with_the_tenant_and_image_of_the_attempt_on_its_gpu(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    fleet = make_fleet(units)
    before = clock.now
    clock.advance(60)
    (gpu,) = running(fleet, program={"script": "/srv/train.py", "container": {"image": "team/train:1"}})
    (free,) = {GpuUuid("GPU-alpha-0"), GpuUuid("GPU-alpha-1")} - {gpu}
    clock.advance(60)
    with units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        add_signal(unit, gpu, code=31, signal_id="in it")
        add_signal(unit, gpu, code=31, signal_id="before it", at=before)
        add_signal(unit, free, code=31, signal_id="next to it")
        add_signal(unit, gpu, code=79, signal_id="no program's")
    while judge_once(units, JUDGE):
        pass
    assert marks_of(units, "in it") == {
        TENANT_MARK: mark_of(fleet.tenant_id),
        IMAGE_MARK: mark_of("team/train:1"),
    }
    assert [marks_of(units, each) for each in ("before it", "next to it", "no program's")] == [{}, {}, {}]
    with units.read() as session:
        told = [row.values for row in session.query(EvidenceRow).filter_by(fault_key="xid:31", gpu_uuid=gpu)]
    assert mark_of(fleet.tenant_id) in {values.get(TENANT_MARK) for values in told}


def test_three_tenants_that_die_on_a_gpu_after_its_passed_burn_in_make_it_suspect(court: Court) -> None:
    court.beat()
    with court.units.begin(JUDGE, hosts.EXPIRE) as unit:
        lock_gpus(unit, [GPU])
        overrides.end(unit, GPU, reason="it is judged by itself")

    def die(tenant: str) -> None:
        court.clock.advance(3600)
        court.beat()
        values = {TENANT_MARK: mark_of(tenant)}
        court.signal(f"of {tenant} at {court.now_ms}", GPU, code=31, source="kernel_log", values=values)
        court.judge()

    die("ten_a")
    die("ten_b")
    assert court.standing() is Standing.HEALTHY
    court.clock.advance(3600)
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        (ordered,) = unit.session.query(BurnIn).filter_by(gpu_uuid=GPU)
        ordered.state, ordered.tries, ordered.began_at = BurnInState.RUNNING, 1, unit.now - timedelta(minutes=15)
        unit.session.flush()
        ordered.state, ordered.figures, ordered.comparison_key = BurnInState.MEASURED, {}, "key"
        ordered.ended_at = unit.now
        unit.session.flush()
        ordered.state, ordered.outcome, ordered.judged_at = BurnInState.JUDGED, BurnInOutcome.PASSED, unit.now
        assert newest_diagnosis_ms(unit, GPU) == to_ms(unit.now - timedelta(minutes=15))
    die("ten_a")
    die("ten_c")
    assert court.standing() is Standing.HEALTHY
    die("ten_d")
    assert court.standing() is Standing.SUSPECT
    assert {each for each, _ in court.evidence()} >= {after_diagnosis.NAME, after_diagnosis.OF_PROGRAMS}
