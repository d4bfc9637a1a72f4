"""A host with two GPUs, a job that trains on one of them by the clock, and the ledger's keeper."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger.closing import keep_ledger_once
from muster.db.models import Event, LedgerEntry, LedgerFact, LedgerHour
from muster.domain.ids import AttemptId
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.fleet_factory import make_fleet
from tests.played_host import PlayedHost

HOUR_MS = 3_600_000
FOUR = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


class PlayedHour:
    """The fleet is enrolled at 4:00 by the clock."""

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.units, self.clock = units, clock
        self.fleet = make_fleet(units)
        self.host = PlayedHost(units, self.fleet.node_id)
        self.offset = 0
        self.attempts: list[tuple[AttemptId, int]] = []

    def at(self, minutes: float, *, hour: datetime = FOUR) -> None:
        """Move the clock to so many minutes after ``hour``."""
        self.clock.advance((hour - self.clock.now).total_seconds() + minutes * 60)

    def start(self, **spec: object) -> None:
        """Start a job on one GPU: placed, claimed and started at one moment."""
        self.host.beat()
        self.fleet.reconcile()
        job_id = self.fleet.submit(**spec)
        self.fleet.cycle()
        attempt = self.fleet.attempts(job_id)[-1].attempt
        assert self.host.claim(attempt.id, attempt.fence).granted
        self.host.report(attempt.id, attempt.fence, "started")
        self.attempts.append((attempt.id, attempt.fence))
        self.offset = 0

    def step(self, number: int, step_s: float, *, at_ms: int | None = None) -> None:
        """Report a step of the newest attempt that is done now, or was at ``at_ms``."""
        word: dict[str, object] = {"type": "step", "step": number, "loss": 1.0, "step_s": step_s}
        at = to_ms(self.clock.now) if at_ms is None else at_ms
        self.offset = self.host.report_words(*self.attempts[-1], word, at_ms=at, offset=self.offset).offset

    def end(self) -> None:
        record: dict[str, object] = {"launcher_exit_code": 0}
        self.host.report(*self.attempts[-1], "exited", "clean", record=record)

    def keep(self) -> int:
        """Compute all hours that are due. Return how many were."""
        number = 0
        while keep_ledger_once(self.units):
            number += 1
        return number

    def hours(self) -> Sequence[LedgerHour]:
        with self.units.read() as session:
            return session.scalars(select(LedgerHour).order_by(LedgerHour.hour)).all()

    def entries(self) -> Sequence[LedgerEntry]:
        with self.units.read() as session:
            return session.scalars(select(LedgerEntry).order_by(LedgerEntry.id)).all()

    def seconds(self, hour: datetime = FOUR) -> dict[str, float]:
        """Return the seconds of each account in the hour, corrections included."""
        sums: Counter[str] = Counter()
        for entry in self.entries():
            if entry.hour == hour:
                sums[entry.account] += entry.num_ms
        return {account: num_ms / 1000 for account, num_ms in sums.items() if num_ms}

    def facts(self, span_s: int) -> dict[str, float]:
        sums: Counter[str] = Counter()
        with self.units.read() as session:
            for fact in session.scalars(select(LedgerFact).where(LedgerFact.span_s == span_s)):
                sums[fact.account] += fact.num_ms
        return {account: num_ms / 1000 for account, num_ms in sums.items()}

    def events(self) -> list[str]:
        with self.units.read() as session:
            kinds = select(Event.kind).where(Event.kind.startswith("ledger.")).order_by(Event.serial)
            return list(session.scalars(kinds))
