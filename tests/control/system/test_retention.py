"""Retention: what is past its time goes, and nothing that a reader still needs."""

from typing import Any

from sqlalchemy import func, select

from control.core.batches import in_batches
from control.core.sequencer import sequence_once
from control.core.unit_of_work import UnitOfWorkFactory
from control.system.retention import BATCH, MOST_BATCHES, sweep, sweep_once
from muster.db.models import AuditEntry, Event, IdempotencyKey, Job, OutboxMessage
from tests.control.conftest import SetClock
from tests.fleet_factory import make_fleet

DAY_S = 86_400


def count(units: UnitOfWorkFactory, table: type) -> int:
    with units.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_what_is_past_its_time_goes_and_what_was_done_stays(units: UnitOfWorkFactory, clock: SetClock) -> None:
    make_fleet(units).submit()
    sequence_once(units)
    assert sweep_once(units)["events"] == 0
    events, audits = count(units, Event), count(units, AuditEntry)
    clock.advance(91 * DAY_S)
    assert sweep_once(units, batch=2)["events"] == 2, "in small batches"
    assert sweep_once(units)["events"] == events - 2
    assert (count(units, AuditEntry), count(units, Job)) == (audits, 1)


def test_a_round_repeats_its_batches_until_nothing_is_left_or_it_has_made_its_share(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    make_fleet(units).submit()
    sequence_once(units)
    events = count(units, Event)
    clock.advance(91 * DAY_S)
    assert sweep(units, batch=2)["events"] == events > 2
    assert in_batches(lambda: {"events": BATCH, "logs": 0}, BATCH, MOST_BATCHES) == {"events": 200_000, "logs": 0}


def test_an_event_without_a_position_is_never_dropped(units: UnitOfWorkFactory, clock: SetClock) -> None:
    make_fleet(units)
    clock.advance(400 * DAY_S)
    assert sweep_once(units)["events"] == 0
    sequence_once(units)
    assert sweep_once(units)["events"] > 0


def test_messages_and_keys_go_once_they_are_over(units: UnitOfWorkFactory, clock: SetClock) -> None:
    with units.begin(make_fleet(units).node_principal, "retention.sweep", quiet=True) as unit:
        sent: dict[str, Any] = {
            "topic": "ring",
            "key": "n",
            "payload": {},
            "created_at": unit.now,
            "next_try_at": unit.now,
            "tries": 1,
        }
        unit.session.add(OutboxMessage(**sent, sent_at=unit.now))
        unit.session.add(OutboxMessage(**sent))
        unit.session.add(
            IdempotencyKey(principal_scope="t", key="k", method_path="p", body_sha256=b"", created_at=unit.now)
        )
    clock.advance(8 * DAY_S)
    swept = sweep_once(units)
    assert (swept["outbox"], swept["idempotency_keys"]) == (1, 1)
    assert count(units, OutboxMessage) == 1, "what was not sent stays"
