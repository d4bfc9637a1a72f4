"""The court of the judgement's tests, with what an export and a replay say of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from control.health.export import pages
from control.policy.policies import active_policy
from health.replay.replay import Replay
from health.replay.stream import Moved, Output
from muster.cli.gpu.health_records import inputs_of
from muster.db.models import EvidenceRow, GpuStandingChange
from muster.domain.evidence.findings import Severity
from muster.domain.policy.health import HealthPolicy
from muster.domain.times import to_ms
from tests.control.health.conftest import Court
from tests.control.health.conftest import court as court  # noqa: PLC0414  # the fixture
from tests.fleet_factory import OPERATOR


@dataclass
class Backtest:
    """``begin``: from when on the node's history is exported."""

    court: Court
    begin: datetime
    num_pages: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)

    def export(self, *, since: datetime | None = None) -> list[dict[str, Any]]:
        """All pages, as they come over the wire."""
        self.records = list(self._pages(since or self.begin))
        return self.records

    def _pages(self, since: datetime) -> Iterator[dict[str, Any]]:
        until, at_ms = self.court.clock.now + timedelta(seconds=1), None
        self.court.clock.advance(2)
        self.num_pages = 0
        while True:
            with self.court.units.begin(OPERATOR, pages.READ, dry_run=True, quiet=True) as unit:
                found = pages.page_of_export(unit, self.court.node_id, since=since, until=until, at_ms=at_ms)
            self.num_pages += 1
            yield from json.loads(json.dumps(found.records))
            at_ms = found.next_ms
            if at_ms is None:
                return

    def replay(self, policy: HealthPolicy | None = None) -> tuple[Replay, list[Output]]:
        """Of what was exported; by the policy that is active, if no other is given."""
        world, said = Replay(policy or self.policy), list[Output]()
        for number, record in enumerate(self.records, 1):
            for given in inputs_of(record, number):
                said += world.take(given)
        return world, said

    @property
    def policy(self) -> HealthPolicy:
        with self.court.units.read() as session:
            return active_policy(session).health

    def evidence_then(self) -> list[tuple[Any, ...]]:
        """As the database has it."""
        return sorted(
            (
                row.gpu_uuid or "",
                row.fault_key,
                Severity(row.severity).name,
                sorted(row.sources),
                row.dismissed_at is not None,
                row.closed_at is not None,
                to_ms(row.onset_at) // 1000,
            )
            for row in self.court.rows(EvidenceRow)
        )

    def evidence_now(self, world: Replay) -> list[tuple[Any, ...]]:
        """As a replay has it."""
        return sorted(
            (
                each.gpu_uuid or "",
                each.fault_key,
                each.severity.name,
                sorted(each.sources),
                each.is_dismissed,
                each.closed_at_ms is not None,
                each.onset_ms // 1000,
            )
            for each in world.evidence()
        )

    def moves_then(self) -> list[tuple[str, ...]]:
        since = self.begin
        rows = [row for row in self.court.rows(GpuStandingChange) if row.at >= since and row.move_reason]
        return [(row.gpu_uuid, str(row.origin), str(row.target), str(row.move_reason)) for row in rows]


def moves_of(reported: list[Output]) -> list[tuple[str, ...]]:
    moves = [each.move for each in reported if isinstance(each, Moved) and not each.is_proposed]
    return [(move.gpu_uuid, str(move.from_standing), str(move.to_standing), str(move.reason)) for move in moves]


@pytest.fixture
def backtest(court: Court) -> Backtest:
    return Backtest(court, court.clock.now)
