"""A GPU that a re-run names gets one burn-in with the suspect operation, and is quarantined only if that fails."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from api.verdict_views import verdict_view
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.fleet.gpu_locks import lock_gpus
from control.health.breaker_incidents import BREAKER
from control.health.burn_ins import suspected
from control.health.burn_ins.suspected import NOT_ORDERED, REASON, order_suspected_once
from control.health.pending import has_burn_ins
from control.policy import policies
from control.watch import verdicts
from muster.cli.job.verdicts import lines_of
from muster.db.models import Breaker, BurnIn, Event, Gpu, Incident, Job, Tenant, VerdictRow
from muster.domain.ids import GpuUuid, TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import BurnInState, Standing
from muster.identity import new_id
from muster.wire.operations import SuspectOperation
from tests.control.burn_in_case import KEEPER, WRONG_SUM, Host, figures, judge, order_intake, standing
from tests.control.conftest import SetClock
from tests.control.watch.test_reruns import FALSE, FAULT, RERUN, SuspectJob
from tests.filled_once import filled_world
from tests.fleet_factory import OPERATOR


class Named:
    """A job whose re-runs of two steps name the GPU of rank 1.

    All GPUs have passed a burn-in, and no person answers for them.
    """

    ranks = (1, 1)

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.units = units
        set_rule(units, burn_in="on")
        self.job = SuspectJob(units, clock)
        self.gpu = GpuUuid(self.job.gpus()[1])
        for step, rank in zip((12, 40), self.ranks, strict=True):
            self.report(step, rank)
        self.job.end_as(16, "corruption")
        clock.advance(2 * 86_400)
        order_intake(units)
        for host in self.hosts():
            host.burn_in(figures())
        judge(units)

    def report(self, step: int, rank: int) -> None:
        report = {**RERUN, "step": step, "found": "transient", "is_again": False, "ranks": [rank], "results": FALSE}
        self.job.report({**FAULT, "step": step}, report)

    def hosts(self) -> list[Host]:
        with self.units.read() as session:
            rows = session.execute(select(Gpu.node_id, Gpu.uuid).order_by(Gpu.uuid)).all()
        nodes = sorted({node_id for node_id, _ in rows})
        return [Host(self.units, node_id, tuple(uuid for own, uuid in rows if own == node_id)) for node_id in nodes]

    def host(self) -> Host:
        return next(host for host in self.hosts() if self.gpu in host.gpus)

    def order(self) -> int:
        return order_suspected_once(self.units, KEEPER)

    def rows(self) -> Sequence[VerdictRow]:
        with self.units.read() as session:
            return session.scalars(select(VerdictRow).order_by(VerdictRow.step)).all()

    def burn_ins(self) -> Sequence[BurnIn]:
        with self.units.read() as session:
            return session.scalars(select(BurnIn).where(BurnIn.reason.startswith(REASON))).all()

    def dismiss_all(self) -> None:
        for verdict in self.job.verdicts():
            with self.units.begin(OPERATOR, verdicts.DISMISS) as unit:
                verdicts.dismiss(unit, verdict.id, reason="our own test")

    def open_scopes(self) -> dict[str, int]:
        with self.units.read() as session:
            return dict(session.get_one(Breaker, BREAKER).state["open_since_ms"])


class NamedTwice(Named):
    """The re-runs name the GPUs of both ranks: more than the circuit breaker has places for."""

    ranks = (0, 1)


def set_rule(units: UnitOfWorkFactory, **changes: object) -> None:
    watch = DEFAULT_POLICY.watch
    reruns = watch.reruns.model_copy(update=changes)
    policy = DEFAULT_POLICY.model_copy(update={"watch": watch.model_copy(update={"reruns": reruns})})
    with units.begin(OPERATOR, policies.ACTIVATE) as unit:
        policies.store_policy(unit, policy, reason="the rule of re-runs")


@pytest.fixture
def named(units: UnitOfWorkFactory, clock: SetClock) -> Named:
    return filled_world(units, clock, "a GPU that a re-run names", lambda: Named(units, clock))


def test_the_burn_in_repeats_the_operation_and_its_failure_is_measured(named: Named) -> None:
    assert standing(named.units, named.gpu) is Standing.PROBATION, "a report alone takes nothing out"
    assert named.order() == 1
    assert named.order() == 0
    (given,) = named.host().ask().orders
    assert given.gpu_uuid == named.gpu
    assert given.operation == SuspectOperation(kind="matmul", shape=(64, 32), dtype="float32", magnitude=0.02)
    assert named.host().report(given, figures(partial_sums=WRONG_SUM))
    judge(named.units)
    assert standing(named.units, named.gpu) is Standing.QUARANTINED


def test_a_dismissed_verdict_orders_none(named: Named) -> None:
    named.dismiss_all()
    assert named.order() == 0
    assert not has_burn_ins(named.units)


def test_by_default_it_is_proposed_and_the_verdict_shows_it(named: Named, clock: SetClock) -> None:
    set_rule(named.units)
    assert has_burn_ins(named.units), "the keeper's pass finds the verdicts"
    assert named.order() == 0
    (row, _), (record, *_) = named.rows(), named.job.verdicts()
    assert (row.burn_in_id, named.burn_ins()) == (None, [])
    assert row.burn_in_note is not None
    assert row.burn_in_note.startswith(f"proposed for {named.gpu}; to order it set watch.reruns.burn_in")
    assert f"  burn-in of its GPU: {record.burn_in_note}" in lines_of(verdict_view(record))
    assert not has_burn_ins(named.units), "each is decided again later, and keeps no other from its turn"
    clock.advance(3_601)
    assert named.order() == 0
    with named.units.read() as session:
        assert len(session.scalars(select(Event).where(Event.kind == NOT_ORDERED)).all()) == 2, "one a verdict"
    set_rule(named.units, burn_in="on")
    clock.advance(3_601)
    assert named.order() == 1


@pytest.mark.parametrize("changes", [{"burn_in": "off"}, {"burn_in": "on", "is_on": False}])
def test_a_rule_that_is_off_orders_none(named: Named, changes: dict[str, object]) -> None:
    set_rule(named.units, **changes)
    assert (named.order(), named.burn_ins()) == (0, [])


def test_reports_of_programs_wait_for_a_place_and_open_no_scope(units: UnitOfWorkFactory, clock: SetClock) -> None:
    named = NamedTwice(units, clock)
    assert named.order() == 1
    assert named.open_scopes() == {}
    assert [row.burn_in_note for row in named.rows()] == [None, "waits for a place in the circuit breaker"]
    with units.read() as session:
        assert session.scalars(select(Incident).where(Incident.kind == "breaker_open")).all() == []


def test_a_tenant_gets_so_many_a_day(units: UnitOfWorkFactory, clock: SetClock) -> None:
    named = NamedTwice(units, clock)
    set_rule(units, burn_in="on", burn_ins_a_day=1)
    assert named.order() == 1
    assert "watch.reruns.burn_ins_a_day" in str(named.rows()[1].burn_in_note)


def test_the_burn_in_of_a_dismissed_verdict_is_given_up(named: Named) -> None:
    assert named.order() == 1
    named.dismiss_all()
    assert named.order() == 0
    (burn_in,) = named.burn_ins()
    assert (burn_in.state, named.host().ask().orders) == (BurnInState.ABANDONED, ())
    assert named.rows()[0].burn_in_note == "given up, since the verdict was dismissed"
    with named.units.read() as session:
        taken = session.get_one(Breaker, BREAKER).state["quarantined"]
    assert [each for each in taken if each["gpu_uuid"] == named.gpu and each["ways"]] == []


def test_the_job_is_locked_before_the_gpu_as_a_dismissal_does(named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []

    def lock(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> list[Gpu]:
        with named.units.engine.connect() as other:
            try:
                other.execute(select(Job.id).where(Job.id == named.job.job_id).with_for_update(nowait=True))
            except OperationalError:
                found.append(True)
        return lock_gpus(unit, uuids)

    monkeypatch.setattr(suspected, "lock_gpus", lock)
    assert named.order() == 1
    assert found == [True, True]


def test_a_gpu_that_others_have_had_since_gets_none(named: Named) -> None:
    other_id = TenantId(new_id("tenant"))
    with named.units.begin(OPERATOR, policies.ACTIVATE) as unit:
        unit.session.add(Tenant(id=other_id, name="another", created_at=unit.now))
        unit.audit("tenant.create", "tenant", other_id)
        for row in unit.session.scalars(select(VerdictRow)):  # so the attempt's own hold is another tenant's later one
            row.tenant_id, row.created_at = other_id, row.created_at - timedelta(hours=2)
    assert named.order() == 0
    assert named.rows()[0].burn_in_note == "none is ordered, since other jobs have held the GPU since"


def test_a_gpu_gets_one_a_day_whatever_programs_report(named: Named) -> None:
    assert named.order() == 1
    named.host().burn_in(figures())
    judge(named.units)
    assert (named.order(), standing(named.units, named.gpu)) == (0, Standing.PROBATION)
    first, second = named.rows()
    assert (first.burn_in_id is not None, first.burn_in_note) == (True, None)
    assert (second.burn_in_id, second.burn_in_note) == (None, "none is ordered, since the GPU has one already")
