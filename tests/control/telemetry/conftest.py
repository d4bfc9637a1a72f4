"""An intake over a real database, and reports of the factory's host through it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.telemetry import history
from control.telemetry.intake import Intake, IntakeLimits
from control.telemetry.latest import READ
from control.telemetry.reports import AcceptedReport, IncomingReport, Outcome
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.times import to_ms
from muster.wire.telemetry import Report
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, enrol_host
from tests.telemetry_reports import newest_readings
from tests.waiting import wait_until

GPU = GpuUuid("GPU-alpha-0")
OTHER = GpuUuid("GPU-alpha-1")


@dataclass
class Stored:
    units: UnitOfWorkFactory
    clock: SetClock
    node_id: NodeId
    intake: Intake
    received: list[AcceptedReport] = field(default_factory=list)

    @property
    def now_ms(self) -> int:
        return to_ms(self.clock.now)

    def take(self, *reports: Report, node_id: NodeId | None = None) -> list[Outcome]:
        """Their outcomes, in the order of the reports; all of them in as few groups as come about."""
        outcomes: dict[int, Outcome] = {}
        for position, report in enumerate(reports):
            incoming = IncomingReport(node_id or self.node_id, None, report, self.now_ms)
            self.intake.submit(incoming, partial(outcomes.__setitem__, position))
        wait_until(lambda: len(outcomes) == len(reports), pause_s=0.005)
        return [outcomes[position] for position in range(len(reports))]

    def latest(self) -> dict[str, tuple[str, int]]:
        with self.units.read() as session:
            newest = newest_readings(session)
        return {uuid: (each.reported_in.boot_id, each.reported_in.seq) for uuid, each in newest.items()}

    def history(self, metric: str, **wanted: Any) -> history.History:
        with self.units.begin(OPERATOR, READ, dry_run=True, quiet=True) as unit:
            return history.history_of(unit, GPU, metrics=(metric,), **wanted)

    def points(self, metric: str, **wanted: Any) -> list[float | None]:
        (series,) = self.history(metric, **wanted).series
        return list(series.values)


def make_stored(units: UnitOfWorkFactory, clock: SetClock, name: str = "alpha") -> Stored:
    heard: list[AcceptedReport] = []
    limits = IntakeLimits(pause_s=0.001, waiting_per_node=1_000)
    intake = Intake(units, limits=limits, on_flushed=heard.extend)
    return Stored(units, clock, enrol_host(units, name), intake, heard)


@pytest.fixture
def stored(units: UnitOfWorkFactory, clock: SetClock) -> Iterator[Stored]:
    found = make_stored(units, clock)
    yield found
    found.intake.close()
