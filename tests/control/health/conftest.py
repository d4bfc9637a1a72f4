"""A host of healthy GPUs before the judge, with its reports through the intakes of any number of API processes."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, update

from control.core.unit_of_work import UnitOfWorkFactory
from control.health.judge import judge_once
from control.policy.policies import ACTIVATE, store_policy
from control.telemetry.intake import Intake, IntakeLimits
from control.telemetry.reports import IncomingReport, Outcome
from muster.db.models import Event, EvidenceRow, Gpu, GpuOverride, GpuStandingChange, Incident
from muster.domain.ids import GpuUuid, NodeId, TenantId
from muster.domain.policy.document import Policy
from muster.domain.principals import system_principal
from muster.domain.states import Standing
from muster.domain.times import to_ms
from muster.wire.telemetry import GpuReport, Report
from tests.control.conftest import SetClock
from tests.filled_once import filled
from tests.fleet_factory import OPERATOR, Fleet, enrol_host, fleet_of, make_fleet
from tests.stored_signals import add_signal
from tests.telemetry_reports import reading, report
from tests.waiting import wait_until

JUDGE = system_principal("judge")
GPU = GpuUuid("GPU-many-0")
OTHER = GpuUuid("GPU-many-1")
UNLIMITED = {"fleet_window_floor": 100, "fleet_floor": 100, "rack_floor": 100, "cohort_floor": 100}
WELL = {
    "ecc_uncorrected_volatile": 0.0,
    "ecc_uncorrected_aggregate": 0.0,
    "remapped_rows_uncorrected": 0.0,
    "remap_pending": 0.0,
    "remap_failure": 0.0,
    "recovery_action": 0.0,
    "clock_event_reasons": 0.0,
}


def sample(uuid: str = GPU, *, is_lost: bool = False, **values: float | None) -> GpuReport:
    """Return a healthy GPU except for ``values``."""
    if is_lost:
        return GpuReport(uuid=uuid, values=reading(uuid).values, is_lost=True)
    return reading(uuid, **{**WELL, **values})


@dataclass
class Court:
    fleet: Fleet
    clock: SetClock
    node_id: NodeId
    intakes: list[Intake] = field(default_factory=list)
    seq: int = 0

    @property
    def units(self) -> UnitOfWorkFactory:
        return self.fleet.units

    @property
    def now_ms(self) -> int:
        return to_ms(self.clock.now)

    def open_intake(self) -> Intake:
        """One more API process."""
        intake = Intake(self.units, limits=IntakeLimits(pause_s=0.001, waiting_per_node=1_000))
        self.intakes.append(intake)
        return intake

    def receive(self, *gpus: GpuReport, intake: Intake | None = None, **more: Any) -> Report:
        """One report, ten seconds after the one before."""
        self.clock.advance(10)
        self.seq += 1
        one = report(self.seq, self.now_ms, *gpus, **more)
        self.take(one, intake=intake)
        return one

    def take(self, *reports: Report, intake: Intake | None = None) -> list[Outcome]:
        if intake is None:
            intake = self.intakes[0] if self.intakes else self.open_intake()
        outcomes: dict[int, Outcome] = {}
        for position, one in enumerate(reports):
            incoming = IncomingReport(self.node_id, None, one, self.now_ms)
            intake.submit(incoming, partial(outcomes.__setitem__, position))
        wait_until(lambda: len(outcomes) == len(reports), pause_s=0.005)
        return [outcomes[position] for position in range(len(reports))]

    def signal(self, name: str, uuid: GpuUuid | None = GPU, **columns: Any) -> None:
        with self.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
            add_signal(unit, uuid, signal_id=name, **{"node_id": self.node_id, "at": self.clock.now, **columns})

    def beat(self) -> None:
        """The heartbeat of this node's host."""
        replace(self.fleet, node_id=self.node_id).beat()

    def without_overrides(self) -> None:
        """End the standings that the factory's person has set: rules alone decide."""
        with self.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
            unit.session.execute(update(GpuOverride).values(ended_at=unit.now))

    def judge(self) -> int:
        return judge_once(self.units, JUDGE)

    def rows(self, table: type[Any]) -> list[Any]:
        with self.units.read() as session:
            return list(session.scalars(select(table).order_by(*table.__table__.primary_key.columns)))

    def evidence(self) -> list[tuple[str, str | None]]:
        return sorted((row.fault_key, row.gpu_uuid) for row in self.rows(EvidenceRow))

    def standing(self, uuid: GpuUuid = GPU) -> Standing:
        with self.units.read() as session:
            return session.get_one(Gpu, uuid).standing

    def open_incidents(self) -> list[Incident]:
        return [incident for incident in self.rows(Incident) if incident.closed_at is None]

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.rows(Event) if event.kind == kind]


def _fill(units: UnitOfWorkFactory) -> tuple[TenantId, NodeId, NodeId]:
    fleet = make_fleet(units)
    node_id = enrol_host(units, "many", num_gpus=8)
    with units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy.model_validate({"health": {"breaker": UNLIMITED}}), reason="test")
        for standing in (Standing.PROBATION, Standing.HEALTHY):
            for gpu in unit.session.scalars(select(Gpu)):
                gpu.standing = standing
                unit.session.add(
                    GpuStandingChange(
                        gpu_uuid=gpu.uuid, target=standing, at=unit.now - timedelta(days=1), reason="test", actor="test"
                    )
                )
            unit.session.flush()
    return fleet.tenant_id, fleet.node_id, node_id


@pytest.fixture
def court(units: UnitOfWorkFactory, clock: SetClock) -> Iterator[Court]:
    """Eight HEALTHY GPUs, which the breaker does not protect."""
    tenant_id, first_id, node_id = filled(units, "court", lambda: _fill(units))
    found = Court(fleet_of(units, tenant_id, first_id), clock, node_id)
    yield found
    for intake in found.intakes:
        intake.close()
