"""Retention: what is past its time goes, and nothing that a reader still needs."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, event, func, select, text

from control.core.batches import in_batches
from control.core.sequencer import sequence_once
from control.core.unit_of_work import UnitOfWorkFactory
from control.system.retention import ACTION, BATCH, MOST_BATCHES, is_behind, sweep, sweep_once
from muster.db.models import (
    AuditEntry,
    Event,
    GpuHoldSpan,
    GpuSpare,
    IdempotencyKey,
    Job,
    JobWaitChange,
    NodeContactChange,
    OutboxMessage,
)
from muster.domain.ids import GpuUuid
from muster.domain.states import Contact
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, make_fleet
from workers.control.main import SWEEP_S, TELEMETRY_S, _pressing, keepers

DAY_S = 86_400
HISTORY = {"gpu_hold_spans", "gpu_spares", "job_wait_changes", "node_contact_changes"}
OTHERS = HISTORY | {
    *("figure_facts", "storage_faults", "stall_reports", "line_findings", "attempt_transports", "verdicts"),
    *("notifications", "notification_routes"),
}
"""Small tables, whose plan is the planner's choice."""
WHOLE = {"ledger_entries"}
"""Tables of which all rows of an hour go together."""


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


def test_history_goes_with_the_entries_counted_from_it_and_what_still_holds_stays(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    fleet = make_fleet(units)
    ended, waiting = fleet.submit(), fleet.submit()
    fleet.cancel(ended)
    old = clock.now
    clock.advance(5_000 * DAY_S)
    with units.begin(OPERATOR, ACTION, quiet=True) as unit:
        for table in (JobWaitChange, NodeContactChange):
            unit.session.execute(delete(table))
        for at in (old, clock.now):
            unit.session.add(GpuHoldSpan(gpu_uuid=GpuUuid("GPU-1"), job_id=ended, began_at=old, ended_at=at))
            unit.session.add(GpuSpare(gpu_uuid=GpuUuid("GPU-1"), began_at=old, ended_at=at))
        unit.session.add(GpuSpare(gpu_uuid=GpuUuid("GPU-1"), began_at=old))
        for job_id in (ended, waiting):
            unit.session.add(JobWaitChange(job_id=job_id, at=old, binding=""))
        for contact in (Contact.LIVE, Contact.SILENT):
            unit.session.add(NodeContactChange(node_id=fleet.node_id, at=old, contact=contact))
            unit.session.flush()
            old += timedelta(days=1)
        lost_at = unit.now - timedelta(days=1)
        unit.session.add(NodeContactChange(node_id=fleet.node_id, at=lost_at, contact=Contact.LOST))
    assert sweep_once(units, batch=3)["ledger_history"] == 3, "a full batch, whatever each table has"
    assert sweep_once(units)["ledger_history"] == 1
    with units.read() as session:
        assert session.scalars(select(JobWaitChange.job_id)).all() == [waiting]
        contacts = session.scalars(select(NodeContactChange.contact).order_by(NodeContactChange.at)).all()
    assert contacts == [Contact.SILENT, Contact.LOST], "what the node was as the kept time began"
    assert (count(units, GpuHoldSpan), count(units, GpuSpare)) == (1, 2)


MANY = """
    SET LOCAL session_replication_role = replica;
    INSERT INTO log_chunks (attempt_id, node_id, stream, byte_offset, tenant_id, job_id, content, received_at)
        SELECT 'a', 'n', '0', at, 't', 'j', '', now() + days * interval '1 day' - at * interval '1 s'
        FROM generate_series(1, 20000) AS made (at), unnest(ARRAY[0, 50]) AS days;
    INSERT INTO events (id, position, at, kind, subject_type, subject_id, payload)
        SELECT 'e' || at, 1000 + at, now() - at * interval '1 s', 'k', 's', 's', '{}'
        FROM generate_series(1, 20000) AS made (at);
    INSERT INTO outbox (topic, key, payload, created_at, next_try_at, tries, sent_at)
        SELECT 't', 'k', '{}', now(), now(), 1, now() - at * interval '1 s'
        FROM generate_series(1, 20000) AS made (at);
    INSERT INTO idempotency_keys (principal_scope, key, method_path, body_sha256, created_at)
        SELECT 's', 'k' || at, 'm', '', now() - at * interval '1 s' FROM generate_series(1, 20000) AS made (at);
    INSERT INTO ledger_entries (hour, revision, node_id, account, cause, num_ms, gpus, gpu_ms, evidence, model,
            cohort_key)
        SELECT now() - at * interval '1 s', 0, 'n', 'free', '', 1, '{g}', '{1}', '{}', 'm', 'c'
        FROM generate_series(1, 20000) AS made (at);
    INSERT INTO ledger_facts (begins_at, span_s, account, cause, tenant_id, tier, job_class, model, cohort_key, rack,
            site, num_ms)
        SELECT now() - at * interval '1 s', 3600, 'free', '', '', '', '', 'm', 'c', '', '', 1
        FROM generate_series(1, 20000) AS made (at);
    ANALYZE log_chunks, events, outbox, idempotency_keys, ledger_entries, ledger_facts
"""


@contextmanager
def before_each(units: UnitOfWorkFactory, hook: Callable[[Any, str, Any], None]) -> Iterator[None]:
    """Call ``hook`` with the cursor, the statement and its parameters before each statement."""

    def listener(*given: Any) -> None:
        hook(*given[1:4])

    event.listen(units.engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(units.engine, "before_cursor_execute", listener)


def test_no_batch_reads_a_whole_table(units: UnitOfWorkFactory, clock: SetClock) -> None:
    """A scan of a table of millions of rows would pass the limit on a statement, so that nothing was deleted."""
    plans: list[tuple[str, str]] = []
    clock.now = datetime.now(UTC)  # as the rows are made

    def explain(cursor: Any, statement: str, parameters: Any) -> None:
        if statement.startswith("DELETE"):
            cursor.execute("EXPLAIN " + statement, parameters)
            plans.append((statement.split()[2], "\n".join(line for (line,) in cursor.fetchall())))

    with units.engine.begin() as connection:
        for statement in MANY.split(";"):
            connection.execute(text(statement))
    with before_each(units, explain):
        assert sweep_once(units)["logs"] == 0
        clock.advance(31 * DAY_S)
        assert sweep_once(units)["logs"] == BATCH
        clock.advance(90 * DAY_S)
        assert sweep_once(units)["events"] == BATCH
        clock.advance(310 * DAY_S)
        assert sweep_once(units)["ledger_entries"] == BATCH, "each of these has an hour of its own"
    of_tables = [(table, plan) for table, plan in plans if table not in OTHERS]
    named = [re.sub(r"_until_[0-9]{8}", "_until", table) for table, _ in of_tables]
    once, twice = ["log_chunks_until"], ["log_chunks_until", "log_chunks_default"]
    last = ["events", "outbox", "log_chunks_default", "idempotency_keys", "ledger_facts"]
    assert named == [
        *("events", "outbox", *twice, "idempotency_keys", "ledger_facts"),
        *("events", "outbox", *once, "idempotency_keys", "ledger_facts"),
        *last,
        *(*last[:-1], "ledger_entries", "ledger_facts"),
    ], "the whole table of what was before has gone"
    found = [plan for table, plan in of_tables if "Seq Scan" in plan or ("Tid Scan" not in plan) != (table in WHOLE)]
    assert found == []


def test_a_kind_that_cannot_be_deleted_leaves_the_others_to_go(units: UnitOfWorkFactory, clock: SetClock) -> None:
    def refuse(_cursor: Any, statement: str, _parameters: Any) -> None:
        if statement.startswith("DELETE FROM events"):
            raise RuntimeError("too slow")

    with units.begin(make_fleet(units).node_principal, "retention.sweep", quiet=True) as unit:
        given: dict[str, Any] = {"method_path": "p", "body_sha256": b"", "created_at": unit.now}
        unit.session.add(IdempotencyKey(principal_scope="t", key="k", **given))
    clock.advance(91 * DAY_S)
    with before_each(units, refuse), pytest.raises(RuntimeError, match="too slow") as raised:
        sweep(units)
    assert raised.value.__notes__ == ["deleting events"]
    assert count(units, IdempotencyKey) == 0


def test_a_round_repeats_its_batches_until_nothing_is_left_or_it_has_made_its_share(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    make_fleet(units).submit()
    sequence_once(units)
    events = count(units, Event)
    clock.advance(91 * DAY_S)
    assert sweep(units, batch=2)["events"] == events > 2
    full = in_batches(lambda: {"events": BATCH, "logs": 0}, BATCH, MOST_BATCHES)
    assert full == {"events": 200_000, "logs": 0}
    assert is_behind(full), "the next round follows at once"
    assert not is_behind({"events": 199_999, "logs": 0})


def test_a_round_that_has_left_something_is_followed_by_the_next_at_once() -> None:
    waits: list[float] = []
    answers = iter((False, True, True, False))

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            return len(waits) == 5

    _pressing(60, lambda: next(answers))(Stop())
    assert waits == [60, 60, 0, 0, 60]


@pytest.mark.parametrize(
    ("loop", "work", "answer", "pause_s"),
    [
        ("retention", "workers.control.main.sweep", True, SWEEP_S),
        ("telemetry", "control.telemetry.retention.keep_once", {"blocks": 10**9}, TELEMETRY_S),
    ],
)
def test_the_loops_that_delete_go_on_at_once_while_something_is_left(
    units: UnitOfWorkFactory, monkeypatch: pytest.MonkeyPatch, loop: str, work: str, answer: object, pause_s: float
) -> None:
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            return len(waits) == 2

    monkeypatch.setattr(work, lambda _units: answer)
    next(each for each in keepers(units, "") if each.name == loop).body(Stop())
    assert waits == [pause_s, 0]


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
